//! Where a value was written.

use std::fmt;

/// Where a value was written, as it is told.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Place {
    /// A configuration that was made in code, so in no file.
    Code,
    /// A file as a whole.
    File {
        /// The file.
        file: String,
    },
    /// A place in a file.
    Position {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// The character in the line, from 1.
        column: u64,
    },
    /// A change that was given besides the file.
    Override {
        /// Which one of them, from 0.
        number: usize,
        /// As it was given.
        given: String,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code => f.write_str("the configuration"),
            Self::File { file } => f.write_str(file),
            Self::Position { file, line, column } => write!(f, "{file}:{line}:{column}"),
            Self::Override { given, .. } => write!(f, "override `{given}`"),
        }
    }
}

/// The same, as values carry it while they are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// In the file.
    At {
        /// The line, from 1.
        line: u64,
        /// The character in the line, from 1.
        column: u64,
    },
    /// In one of the overrides.
    Override(usize),
    /// Nowhere: it is what holds if nothing is said.
    Default,
}

/// What marks mean: the file, and the overrides.
#[derive(Clone, Copy, Debug)]
pub struct Texts<'a> {
    /// What the file is called.
    pub file: &'a str,
    /// Changes besides the file, as they were given.
    pub overrides: &'a [String],
}

impl Texts<'_> {
    /// What a mark means.
    pub fn place(&self, mark: Mark) -> Place {
        let file = self.file.to_owned();
        match mark {
            Mark::At { line, column } => Place::Position { file, line, column },
            Mark::Override(number) => {
                let given = self.overrides.get(number).cloned().unwrap_or_default();
                Place::Override { number, given }
            }
            Mark::Default => Place::File { file },
        }
    }
}
