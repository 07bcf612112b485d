//! Where a value was written.

use std::fmt;

use weightloom_errors::SourceLocation;

/// Where a value was written, as error messages show it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Origin {
    /// A configuration built in code.
    Code,
    /// A file, or a position in it.
    File(SourceLocation),
    /// An override from the command line.
    Override {
        /// Position among the overrides, from 0.
        number: usize,
        /// As typed: `train.seed=3`.
        text: String,
    },
}

impl Origin {
    /// The line of a position in a file.
    pub fn line(&self) -> Option<u64> {
        match self {
            Self::File(location) => location.line,
            Self::Code | Self::Override { .. } => None,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code => f.write_str("the configuration"),
            Self::File(location) => location.fmt(f),
            Self::Override { text, .. } => write!(f, "override `{text}`"),
        }
    }
}

/// The origin of a node, in a form that is cheap to copy.
///
/// [`Sources::origin`] adds the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A position in the file.
    At {
        /// Counted from 1.
        line: u64,
        /// In characters, counted from 1.
        column: u64,
    },
    /// The number of an override.
    Override(usize),
    /// A default value.
    Default,
}

/// The texts that marks refer to.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// The name of the file.
    pub file: &'a str,
    /// The overrides, as typed.
    pub overrides: &'a [String],
}

impl Sources<'_> {
    /// The origin that a mark refers to. A default belongs to the whole file.
    pub fn origin(&self, mark: Mark) -> Origin {
        match mark {
            Mark::At { line, column } => Origin::File(SourceLocation::at(self.file, line, column)),
            Mark::Override(number) => {
                let text = self.overrides.get(number).cloned().unwrap_or_default();
                Origin::Override { number, text }
            }
            Mark::Default => Origin::File(SourceLocation::new(self.file)),
        }
    }
}
