//! Errors in a document, collected and reported together.

use std::fmt;

use weightloom_errors::{Hint, did_you_mean};

use crate::origin::Origin;

/// A broken rule of one kind of document, and how messages name the document.
pub trait DocumentRule: fmt::Display + Hint {
    /// The document: "the suite".
    const DOCUMENT: &'static str;
    /// The file to pass instead of an oversized one: "a suite".
    const FILE: &'static str;
    /// An example of an override: `train.seed=3`.
    const OVERRIDE: &'static str;
}

/// Every error in a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentErrors<R> {
    /// In the order of the file, then of the overrides.
    pub errors: Vec<DocumentError<R>>,
}

impl<R> DocumentErrors<R> {
    /// Sorts errors by origin.
    pub fn sorted(mut errors: Vec<DocumentError<R>>) -> Self {
        errors.sort_by(|one, other| one.origin.cmp(&other.origin));
        Self { errors }
    }
}

/// One error in a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentError<R> {
    /// Where the value was written.
    pub origin: Origin,
    /// The full key: `train.optimizer.lr`. Empty for the whole document.
    pub path: String,
    /// The kind of error.
    pub problem: Problem<R>,
}

/// The kind of an error, with its operands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Problem<R> {
    #[error("cannot read the file: {message}")]
    Unreadable { message: String },
    #[error("file too large: {bytes} bytes or more, limit {limit}")]
    TooLarge { bytes: u64, limit: u64 },
    #[error("invalid YAML: {message}\n{snippet}")]
    Syntax {
        message: String,
        /// The line, and a caret below the column.
        snippet: String,
    },
    #[error("unknown key")]
    UnknownKey {
        /// The most similar key of the same section.
        near: Option<String>,
        /// Full keys with this name in other sections.
        elsewhere: Vec<String>,
        known: Vec<String>,
    },
    #[error("duplicate key")]
    DuplicateKey,
    #[error("required key is missing")]
    Missing { description: String },
    #[error("expected {expected}, found {found}")]
    WrongType { expected: String, found: String, remedy: Option<Remedy> },
    #[error("expected one of {}, found {found}", in_backticks(choices))]
    UnknownChoice { found: String, near: Option<String>, choices: Vec<String> },
    #[error("expected a number from {min} to {max}, found {found}")]
    OutOfRange { found: String, min: i128, max: i128 },
    #[error("expected {expected} values, found {found}")]
    WrongLength { found: usize, expected: usize },
    #[error("environment variable `{name}` is not set")]
    UnsetVariable { name: String },
    #[error("invalid variable reference `{text}`")]
    InvalidReference { text: String },
    #[error("missing `=`")]
    NoValue,
    #[error("missing key before `=`")]
    NoKey,
    #[error("no item `{index}` in a list of {length}")]
    NoSuchIndex { index: String, length: usize },
    /// An override of a key inside a scalar.
    #[error("cannot set a key inside {kind}")]
    NotAContainer { kind: String },
    /// The schema accepts a value that the type rejects.
    #[error("{message}")]
    Deserialize { message: String },
    #[error("{0}")]
    Rule(R),
}

/// A way to turn a value of the wrong type into the right one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Remedy {
    /// A number or boolean where a string is expected.
    Quote { text: String },
    /// A quoted number where a number is expected.
    Unquote { text: String },
    /// A single value where a list is expected.
    List { text: String },
    /// Another spelling, such as `true` for `yes`.
    Write { text: String },
    /// A null where a value is expected.
    LeaveOut,
}

fn in_backticks(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

impl<R: DocumentRule> Hint for Problem<R> {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::TooLarge { .. } => format!("pass {}, not its data", R::FILE),
            Self::Syntax { snippet, .. } if snippet.contains("${env:") => {
                "quote `${env:…}` inside brackets and braces".to_owned()
            }
            Self::UnknownKey { near: Some(near), .. } => return did_you_mean(Some(near)),
            Self::UnknownKey { elsewhere, .. } if !elsewhere.is_empty() => {
                format!("did you mean {}?", in_backticks(elsewhere))
            }
            Self::UnknownKey { known, .. } => format!("use one of {}", in_backticks(known)),
            Self::DuplicateKey => "remove one of them".to_owned(),
            Self::Missing { description } => format!("add it: {description}"),
            Self::WrongType { remedy, .. } => match remedy.as_ref()? {
                Remedy::Quote { text } => format!("put it in quotes: {text}"),
                Remedy::Unquote { text } => format!("write it without quotes: {text}"),
                Remedy::List { text } => format!("write it as a list: {text}"),
                Remedy::Write { text } => format!("write `{text}`"),
                Remedy::LeaveOut => "give it a value, or remove the key".to_owned(),
            },
            Self::UnknownChoice { near, .. } => return did_you_mean(near.as_deref()),
            Self::WrongLength { expected, .. } => format!("write {expected} values"),
            Self::UnsetVariable { name } => format!("set it, or add a default: `${{env:{name}:default}}`"),
            Self::InvalidReference { .. } => {
                "write `${env:NAME}` or `${env:NAME:default}`, or `$${env:` for the literal text".to_owned()
            }
            Self::NoValue | Self::NoKey => format!("write `key=value`, such as `{}`", R::OVERRIDE),
            Self::NoSuchIndex { length: 0, .. } => "use 0 to append an item".to_owned(),
            Self::NoSuchIndex { length, .. } => {
                format!("use 0 to {} to change an item, or {length} to append one", length - 1)
            }
            Self::NotAContainer { .. } => "remove the rest of the key".to_owned(),
            Self::Rule(rule) => return rule.hint(),
            Self::Unreadable { .. }
            | Self::Syntax { .. }
            | Self::OutOfRange { .. }
            | Self::Deserialize { .. } => return None,
        })
    }
}

impl<R: DocumentRule> fmt::Display for DocumentError<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.origin, self.path.is_empty()) {
            (Origin::Code, false) => write!(f, "{}: {}", self.path, self.problem),
            (origin, true) => write!(f, "{origin}: {}", self.problem),
            (origin, false) => write!(f, "{origin}: {}: {}", self.path, self.problem),
        }
    }
}

impl<R: DocumentRule + fmt::Debug> std::error::Error for DocumentError<R> {}

impl<R: DocumentRule> Hint for DocumentError<R> {
    fn hint(&self) -> Option<String> {
        self.problem.hint()
    }
}

/// A single error displays as itself; several as a list, each with its hint.
impl<R: DocumentRule> fmt::Display for DocumentErrors<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.errors.as_slice() {
            return only.fmt(f);
        }
        write!(f, "{} errors in {}", self.errors.len(), R::DOCUMENT)?;
        for error in &self.errors {
            // Snippets span several lines.
            let text = error.to_string().replace('\n', "\n    ");
            write!(f, "\n  {text}")?;
            if let Some(hint) = error.hint() {
                write!(f, "\n    hint: {hint}")?;
            }
        }
        Ok(())
    }
}

impl<R: DocumentRule + fmt::Debug> std::error::Error for DocumentErrors<R> {}

impl<R: DocumentRule> Hint for DocumentErrors<R> {
    fn hint(&self) -> Option<String> {
        match self.errors.as_slice() {
            [only] => only.hint(),
            // `Display` lists the hints of several errors.
            _ => None,
        }
    }
}
