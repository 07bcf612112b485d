//! Errors of cards and of the files they are in.

use std::path::PathBuf;

use weightloom_errors::{FileError, Hint, did_you_mean, name_list, nearest};

use super::address::AddressError;
use super::dataset::DATASET_KEYS;
use super::fields;
use super::value::{CardLocation, Field, Kind, Origin, Value};

/// Why a card cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum CardError {
    #[error("unknown card `{name}`")]
    Unknown { name: String, near: Vec<String> },
    #[error("unknown environment `{environment}`: no card is for it")]
    UnknownEnvironment { environment: String, near: Option<String>, known: Vec<String> },
    #[error("unknown dataset `{name}`")]
    UnknownDataset { name: String, near: Vec<String> },
    #[error("card `{card}` does not describe a dataset")]
    NotDataset { card: String },
    #[error("unknown key `{key}` in `dataset_config` of card `{}` ({})", origin.card(), origin.location())]
    DatasetKey { key: String, near: Option<String>, origin: Origin },
    #[error("unknown dataset family `{family}` of card `{}` ({})", origin.card(), origin.location())]
    DatasetFamily { family: String, origin: Origin },
    #[error("cannot train on `{path}` of card `{}`: it is not a local path ({})", origin.card(), origin.location())]
    RemoteDataset { path: String, origin: Origin },
    #[error(transparent)]
    DatasetFile(FileError),
    #[error("`{file}` has SHA-256 {found}, but card `{card}` says {expected}")]
    DatasetChanged { card: String, file: String, found: String, expected: String },
    #[error("invalid card name `{name}`")]
    BadName { name: String },
    #[error("invalid card `{card}`: {problem}")]
    Invalid { card: String, problem: SourceProblem },
    #[error("duplicate card `{card}`: {first} and {second}")]
    Duplicate { card: String, first: CardLocation, second: CardLocation },
    #[error("unknown field `{name}` in card `{}` ({})", origin.card(), origin.location())]
    UnknownField { name: String, origin: Origin },
    #[error(
        "invalid `{name}` in card `{}`: expected {expected}, found {found} ({})",
        origin.card(), origin.location()
    )]
    Expected { name: String, expected: Kind, found: String, origin: Origin },
    #[error("card `{}` has both `{name}` and its alias `{other}` ({})", origin.card(), origin.location())]
    TwoNames { name: String, other: String, origin: Origin },
    #[error("duplicate `{name}` in card `{}`: it is also under `_set_` ({})", origin.card(), origin.location())]
    SetTwice {
        /// Full path of the key.
        name: String,
        origin: Origin,
    },
    #[error(
        "unexpected directive `{directive}` in `{name}` of card `{}` ({})",
        origin.card(), origin.location()
    )]
    Directive {
        /// Full path of the value.
        name: String,
        directive: String,
        origin: Origin,
    },
    #[error("unknown base `{base}` of card `{}` ({})", origin.card(), origin.location())]
    MissingBase { base: String, origin: Origin, near: Vec<String> },
    #[error("cyclic bases of card `{}`: {} ({})", origin.card(), chain.join(" → "), origin.location())]
    Cycle {
        /// From the first card back to it.
        chain: Vec<String>,
        origin: Origin,
    },
    #[error("card `{card}` has more than {limit} bases")]
    TooDeep { card: String, limit: usize },
    #[error("invalid base of card `{card}`: {problem}")]
    Base { card: String, problem: Box<CardError> },
    #[error(
        "cannot resolve the relative path `{path}` in `{name}` of card `{}`: the card is not in a folder ({})",
        origin.card(), origin.location()
    )]
    Relative { name: String, path: String, origin: Origin },
    #[error("invalid `{name}` in card `{}`: {problem} ({})", origin.card(), origin.location())]
    Address { name: String, problem: AddressError, origin: Origin },
    #[error("card `{card}` has no `checkpoint`: its owner provides the model on request")]
    Gated { card: String, url: String },
    #[error("card `{card}` has no field `{name}`")]
    Missing { card: String, name: String },
}

/// An unusable file or document in a source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum SourceProblem {
    #[error("cannot read `{}`: {message}", path.display())]
    Unreadable { path: PathBuf, message: String },
    #[error("cannot find folder `{}`", path.display())]
    NoFolder { path: PathBuf },
    #[error("`{}` has {length} bytes, more than the limit of {limit} for card files", path.display())]
    TooLong { path: PathBuf, length: u64, limit: u64 },
    #[error("{location}: {message}, in `{snippet}`")]
    Syntax { location: CardLocation, message: String, snippet: String },
    #[error("{location}: expected a map, found {found}")]
    NoMap { location: CardLocation, found: Kind },
    #[error("{location}: the card has no `name`")]
    NoName { location: CardLocation },
    #[error("{location}: invalid card name {found}")]
    BadName { location: CardLocation, found: String },
    #[error("duplicate card `{card}`: {first} and {second}")]
    Duplicate { card: String, first: CardLocation, second: CardLocation },
}

impl CardError {
    pub(super) fn expected(name: &str, expected: Kind, field: &Field) -> Self {
        Self::Expected {
            name: name.to_owned(),
            expected,
            found: described(&field.value),
            origin: field.origin.clone(),
        }
    }
}

/// A value in a message.
pub(super) fn described(value: &Value) -> String {
    match value {
        Value::Text(text) | Value::Number { written: text, .. } => format!("`{}`", excerpt(text)),
        Value::Bool(value) => format!("`{value}`"),
        other => other.kind().to_string(),
    }
}

/// The start of a text, on one line.
pub(super) fn excerpt(text: &str) -> String {
    const MAX_CHARS: usize = 80;
    let mut line: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if let Some((end, _)) = line.char_indices().nth(MAX_CHARS) {
        line.truncate(end);
        line.push('…');
    }
    line
}

impl Hint for CardError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Unknown { near, .. } | Self::MissingBase { near, .. } => {
                (!near.is_empty()).then(|| format!("did you mean {}?", name_list(near, 3)))
            }
            Self::UnknownEnvironment { near, known, .. } => {
                let others = format!(
                    "use one of {}; or name a card after it, such as `my_model@cluster`",
                    known.join(", ")
                );
                did_you_mean(near.as_deref()).or(Some(others))
            }
            Self::UnknownDataset { near, .. } if near.is_empty() => {
                Some("run `weightloom data list`, or list files in `data.paths`".to_owned())
            }
            Self::UnknownDataset { near, .. } => Some(format!("did you mean {}?", name_list(near, 3))),
            Self::NotDataset { .. } => Some(
                "name a card with `dataset_config: {paths: […]}`, or list files in `data.paths`".to_owned(),
            ),
            Self::DatasetKey { near, .. } => did_you_mean(near.as_deref())
                .or_else(|| Some(format!("use {}", name_list(&DATASET_KEYS, DATASET_KEYS.len())))),
            Self::DatasetFamily { .. } => Some("write `dataset_family: files`, or remove it".to_owned()),
            Self::RemoteDataset { .. } => Some("download the files, and name their folder".to_owned()),
            Self::DatasetFile(error) => error.hint(),
            Self::DatasetChanged { .. } => {
                Some("restore the file, or write its new SHA-256 into the card".to_owned())
            }
            Self::BadName { .. } => Some(NAMES.to_owned()),
            Self::Invalid { problem, .. } => problem.hint(),
            Self::Duplicate { .. } => Some(TWICE.to_owned()),
            Self::UnknownField { name, .. } => did_you_mean(nearest(name, fields::names()))
                .or_else(|| Some(format!("prefix custom fields with `x-`, such as `x-{name}`"))),
            Self::TwoNames { name, .. } => Some(format!("use only `{name}`")),
            Self::SetTwice { .. } => Some("remove one of them".to_owned()),
            Self::Directive { .. } => {
                Some("remove the directive; the value replaces the inherited one as a whole".to_owned())
            }
            Self::Cycle { chain, .. } if chain.len() == 2 => {
                Some("use another name, or override a card of this name from an earlier source".to_owned())
            }
            Self::Base { problem, .. } => problem.hint(),
            Self::Relative { .. } => {
                Some("use an absolute path, or an address such as hf://org/name".to_owned())
            }
            Self::Address { problem, .. } => problem.hint(),
            Self::Gated { url, .. } => {
                Some(format!("request access at {url}, then write a card with `base` and your `checkpoint`"))
            }
            Self::Expected { expected: Kind::WholeNumber, .. } => {
                Some("write the number of bytes".to_owned())
            }
            Self::Expected { expected: Kind::Text, found, .. } if found.starts_with('`') => {
                Some(format!("quote it as \"{}\"", found.trim_matches('`')))
            }
            _ => None,
        }
    }
}

const NAMES: &str = "use letters, digits, `.`, `_` and `-`, optionally followed by `@` and an environment";
const TWICE: &str = "remove or rename one of them; only another source can override a card";

impl Hint for SourceProblem {
    fn hint(&self) -> Option<String> {
        match self {
            Self::BadName { .. } => Some(NAMES.to_owned()),
            Self::NoName { .. } => Some("add `name:` to the card".to_owned()),
            Self::Duplicate { .. } => Some(TWICE.to_owned()),
            _ => None,
        }
    }
}
