//! What can be wrong with a file, all of it at once.

use std::fmt;

use weightloom_errors::Hint;

use crate::place::Place;

/// What a file is for: rules that its values keep beyond their types, and what
/// it is called.
pub trait Purpose: fmt::Display + Hint {
    /// The whole: "the configuration".
    const DOCUMENT: &'static str;
    /// The file: "the file of a run".
    const FILE: &'static str;
    /// A change as a command line gives it: `train.seed=3`.
    const OVERRIDE: &'static str;
}

/// Everything that is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults<R> {
    /// The faults, in the order of the file, then of the overrides.
    pub errors: Vec<Fault<R>>,
}

impl<R> Faults<R> {
    /// Faults in the order of the file, then of the overrides.
    pub fn sorted(mut errors: Vec<Fault<R>>) -> Self {
        errors.sort_by(|one, other| one.place.cmp(&other.place));
        Self { errors }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault<R> {
    /// Where it was written.
    pub place: Place,
    /// The key with all those around it: `train.optimizer.lr`. Empty for the
    /// file as a whole.
    pub path: String,
    /// What is wrong.
    pub problem: Problem<R>,
}

/// What is wrong with a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Problem<R> {
    /// The file cannot be read.
    #[error("cannot be read: {message}")]
    Unreadable { message: String },
    /// The file is longer than anybody writes.
    #[error("has {bytes} bytes or more, but can have {most}")]
    TooLong { bytes: u64, most: u64 },
    /// The text is no YAML.
    #[error("not YAML: {message}\n{snippet}")]
    Syntax {
        message: String,
        /// The line, and a mark below the place.
        snippet: String,
    },
    /// A key that means nothing.
    #[error("there is no such key")]
    UnknownKey {
        /// The key beside it that it most likely means.
        near: Option<String>,
        /// Where there is a key of this name.
        elsewhere: Vec<String>,
        known: Vec<String>,
    },
    /// A key that stands twice in one map.
    #[error("the key stands here twice")]
    Twice,
    /// A key that must be there.
    #[error("is missing")]
    Missing { meaning: String },
    /// A value of another kind.
    #[error("expected {expected}, found {found}")]
    Kind { expected: String, found: String, remedy: Option<Remedy> },
    /// A word that is none of those that fit.
    #[error("{found} is none of {}", listed(choices))]
    Choice { found: String, near: Option<String>, choices: Vec<String> },
    /// A number that does not fit its type.
    #[error("{found} is not between {least} and {most}")]
    Range { found: String, least: i128, most: i128 },
    /// A list of another length.
    #[error("expected {expected} values, found {found}")]
    Length { found: usize, expected: usize },
    /// A variable that is not set.
    #[error("the variable `{name}` is not set")]
    Variable { name: String },
    /// Something that begins like a reference to a variable and is none.
    #[error("`{text}` is no reference to a variable")]
    Reference { text: String },
    /// An override without a value.
    #[error("there is no `=` in it")]
    NoValue,
    /// An override without a key.
    #[error("there is no key in front of `=`")]
    NoKey,
    /// An override of an element that a list does not have.
    #[error("the list has {length} values, so there is no `{index}`")]
    Index { index: String, length: usize },
    /// An override of something inside a plain value.
    #[error("there is nothing inside of {kind}")]
    NothingInside { kind: String },
    /// Values that the types do not take. Only if schema and types differ.
    #[error("{message}")]
    Types { message: String },
    /// A value that fits its type, but not its purpose.
    #[error("{0}")]
    Rule(R),
}

/// How a value of another kind could be meant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// A number or `true` that should be a text.
    Quote {
        /// With quotes.
        text: String,
    },
    /// A text that would be the right thing without quotes.
    Unquote {
        /// Without quotes.
        text: String,
    },
    /// One value where a list of such is wanted.
    List {
        /// As a list.
        text: String,
    },
    /// Another spelling.
    Write {
        /// The spelling.
        text: String,
    },
    /// Nothing where something must be.
    LeaveOut,
}

fn listed(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

impl<R: Purpose> Hint for Problem<R> {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Unreadable { .. } | Self::Types { .. } => return None,
            Self::TooLong { .. } => format!("give {}, not its data", R::FILE),
            Self::Syntax { snippet, .. } if snippet.contains("${env:") => {
                "inside of brackets and braces, put `${env:…}` in quotes".to_owned()
            }
            Self::Syntax { .. } => return None,
            Self::UnknownKey { near: Some(near), .. } => format!("write `{near}`"),
            Self::UnknownKey { elsewhere, .. } if !elsewhere.is_empty() => {
                format!("there is {}", listed(elsewhere))
            }
            Self::UnknownKey { known, .. } => format!("known keys: {}", known.join(", ")),
            Self::Twice => "leave one of them out".to_owned(),
            Self::Missing { meaning } => format!("add it: {meaning}"),
            Self::Kind { remedy, .. } => match remedy.as_ref()? {
                Remedy::Quote { text } => format!("put it in quotes: {text}"),
                Remedy::Unquote { text } => format!("write it without quotes: {text}"),
                Remedy::List { text } => format!("write it as a list: {text}"),
                Remedy::Write { text } => format!("write `{text}`"),
                Remedy::LeaveOut => "give it a value, or leave the key out".to_owned(),
            },
            Self::Choice { near, .. } => format!("write `{}`", near.as_ref()?),
            Self::Range { .. } => return None,
            Self::Length { expected, .. } => format!("give {expected}"),
            Self::Variable { name } => format!("set it, or write `${{env:{name}:…}}` with what holds then"),
            Self::Reference { .. } => {
                "write ${env:NAME} or ${env:NAME:default}; $${env: stands for the text itself".to_owned()
            }
            Self::NoValue | Self::NoKey => format!("write key=value: {}", R::OVERRIDE),
            Self::Index { length: 0, .. } => "write 0 to add one".to_owned(),
            Self::Index { length, .. } => {
                format!("write one of 0 to {} to change it, or {length} to add one", length - 1)
            }
            Self::NothingInside { .. } => "leave out what stands behind it".to_owned(),
            Self::Rule(rule) => return rule.hint(),
        })
    }
}

impl<R: Purpose> fmt::Display for Fault<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.place, self.path.is_empty()) {
            (Place::Code, false) => write!(f, "{}: {}", self.path, self.problem),
            (place, true) => write!(f, "{place}: {}", self.problem),
            (place, false) => write!(f, "{place}: {}: {}", self.path, self.problem),
        }
    }
}

impl<R: Purpose + fmt::Debug> std::error::Error for Fault<R> {}

impl<R: Purpose> Hint for Fault<R> {
    fn hint(&self) -> Option<String> {
        self.problem.hint()
    }
}

/// One fault is told as itself. Several are listed, each with its hint.
impl<R: Purpose> fmt::Display for Faults<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.errors.as_slice() {
            return only.fmt(f);
        }
        write!(f, "{} faults in {}", self.errors.len(), R::DOCUMENT)?;
        for fault in &self.errors {
            // Snippets have lines of their own.
            let text = fault.to_string().replace('\n', "\n    ");
            write!(f, "\n  {text}")?;
            if let Some(hint) = fault.hint() {
                write!(f, "\n    hint: {hint}")?;
            }
        }
        Ok(())
    }
}

impl<R: Purpose + fmt::Debug> std::error::Error for Faults<R> {}

impl<R: Purpose> Hint for Faults<R> {
    fn hint(&self) -> Option<String> {
        match self.errors.as_slice() {
            [only] => only.hint(),
            // They stand with each.
            _ => None,
        }
    }
}

/// A file without rules of its own, for tests.
#[cfg(test)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoRule;

#[cfg(test)]
impl fmt::Display for NoRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no rule")
    }
}

#[cfg(test)]
impl Hint for NoRule {
    fn hint(&self) -> Option<String> {
        None
    }
}

#[cfg(test)]
impl Purpose for NoRule {
    const DOCUMENT: &'static str = "the note";
    const FILE: &'static str = "a note";
    const OVERRIDE: &'static str = "a=1";
}
