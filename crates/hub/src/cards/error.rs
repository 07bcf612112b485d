//! What can be wrong with cards and with the files they are in.

use std::path::PathBuf;

use weightloom_errors::{Hint, nearest};

use super::address::AddressError;
use super::fields;
use super::value::{Field, Kind, Origin, Place, Value};

/// Why there is no card of a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum CardError {
    /// No source has it.
    #[error("no card is called `{name}`")]
    NotKnown {
        name: String,
        /// Names that there are and that may be meant.
        near: Vec<String>,
    },
    /// What was asked for is no name.
    #[error("`{name}` is not the name of a card")]
    BadName { name: String },
    /// Its document cannot be read.
    #[error("card `{card}` cannot be read: {problem}")]
    Broken { card: String, problem: Problem },
    /// One source has it twice.
    #[error("card `{card}` is written twice: {first} and {second}")]
    Duplicate { card: String, first: Place, second: Place },
    /// A field that is not known.
    #[error("card `{}` has a field `{name}`, which is not known ({})", origin.card(), origin.place())]
    UnknownField { name: String, origin: Origin },
    /// A field of the wrong kind.
    #[error(
        "the `{name}` of card `{}` is expected to be {expected}, but is {found} ({})",
        origin.card(), origin.place()
    )]
    Expected { name: String, expected: Kind, found: String, origin: Origin },
    /// Two names of one field in one card.
    #[error("card `{}` has both `{name}` and `{other}`, which mean the same ({})", origin.card(), origin.place())]
    TwoNames { name: String, other: String, origin: Origin },
    /// A key both under `_set_` and beside it.
    #[error("the `{name}` of card `{}` is also under `_set_` ({})", origin.card(), origin.place())]
    SetTwice {
        /// The key, with the maps it is in.
        name: String,
        origin: Origin,
    },
    /// A directive where it means nothing.
    #[error(
        "the `{name}` of card `{}` has a `{directive}` in it, which means nothing there ({})",
        origin.card(), origin.place()
    )]
    Directive {
        /// The value, with the maps it is in.
        name: String,
        directive: String,
        origin: Origin,
    },
    /// A base that is not there.
    #[error("card `{}` builds on `{base}`, but there is no such card ({})", origin.card(), origin.place())]
    MissingBase {
        base: String,
        origin: Origin,
        /// Names that there are and that may be meant.
        near: Vec<String>,
    },
    /// Cards that build on each other.
    #[error("card `{}` builds on itself: {} ({})", origin.card(), chain.join(" → "), origin.place())]
    Cycle {
        /// The cards, from the first back to it.
        chain: Vec<String>,
        origin: Origin,
    },
    /// Too many cards on top of each other.
    #[error("card `{card}` builds on more than {limit} cards")]
    TooDeep { card: String, limit: usize },
    /// A card that this one builds on is broken.
    #[error("card `{card}` builds on a card that is broken: {problem}")]
    Base {
        card: String,
        /// What is wrong, which names the card that it is wrong with.
        problem: Box<CardError>,
    },
    /// A relative path in a card that lies in no folder.
    #[error(
        "the `{name}` of card `{}` is the relative path `{path}`, but the card is in no folder ({})",
        origin.card(), origin.place()
    )]
    Relative { name: String, path: String, origin: Origin },
    /// A field that is no address.
    #[error("the `{name}` of card `{}` cannot be used: {problem} ({})", origin.card(), origin.place())]
    Address { name: String, problem: AddressError, origin: Origin },
    /// A model that one has to ask for.
    #[error("card `{card}` has no `checkpoint`: the model is only given out on request")]
    Gated { card: String, url: String },
    /// A card without a field that is needed.
    #[error("card `{card}` has no `{name}`")]
    Missing { card: String, name: String },
}

/// Something in a source that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Problem {
    /// A file or folder that cannot be read.
    #[error("cannot read `{}`: {message}", path.display())]
    Unreadable { path: PathBuf, message: String },
    /// A folder that was asked for and is not there.
    #[error("there is no folder `{}`", path.display())]
    NoFolder { path: PathBuf },
    /// A file that is too long to be one of cards.
    #[error("`{}` has {length} bytes, more than the {limit} that a file of cards may have", path.display())]
    TooLong { path: PathBuf, length: u64, limit: u64 },
    /// A document that is no YAML.
    #[error("{place}: {message}, in `{snippet}`")]
    Syntax { place: Place, message: String, snippet: String },
    /// A document that is no map.
    #[error("{place}: a card is expected to be a map, but is {found}")]
    NoMap { place: Place, found: Kind },
    /// A card without a name.
    #[error("{place}: a card without a `name`")]
    NoName { place: Place },
    /// A card whose name is none.
    #[error("{place}: {found} is not the name of a card")]
    BadName { place: Place, found: String },
    /// A card that is there twice.
    #[error("card `{card}` is written twice: {first} and {second}")]
    Duplicate { card: String, first: Place, second: Place },
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

/// A value in few words.
pub(super) fn described(value: &Value) -> String {
    match value {
        Value::Text(text) | Value::Number { written: text, .. } => format!("`{}`", cropped(text)),
        Value::Bool(value) => format!("`{value}`"),
        other => other.kind().to_string(),
    }
}

/// The beginning of a text, on one line.
pub(super) fn cropped(text: &str) -> String {
    const LONGEST: usize = 80;
    let mut line: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if let Some((end, _)) = line.char_indices().nth(LONGEST) {
        line.truncate(end);
        line.push('…');
    }
    line
}

impl Hint for CardError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::NotKnown { near, .. } | Self::MissingBase { near, .. } => {
                let near: Vec<String> = near.iter().map(|name| format!("`{name}`")).collect();
                (!near.is_empty()).then(|| format!("did you mean {}?", near.join(" or ")))
            }
            Self::BadName { .. } => Some(NAMES.to_owned()),
            Self::Broken { problem, .. } => problem.hint(),
            Self::Duplicate { .. } => Some(TWICE.to_owned()),
            Self::UnknownField { name, .. } => Some(match nearest(name, fields::names()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("fields of your own begin with `x-`, such as `x-{name}`"),
            }),
            Self::TwoNames { name, .. } => Some(format!("put all of it under `{name}`")),
            Self::SetTwice { .. } => Some("keep one of the two".to_owned()),
            Self::Directive { .. } => {
                Some("the value replaces what is below as a whole; leave the directive out".to_owned())
            }
            Self::Cycle { chain, .. } if chain.len() == 2 => {
                Some("a card may build on one of its own name if an earlier source has it".to_owned())
            }
            Self::Base { problem, .. } => problem.hint(),
            Self::Relative { .. } => {
                Some("write the whole path, or an address such as hf://org/name".to_owned())
            }
            Self::Address { problem, .. } => problem.hint(),
            Self::Gated { url, .. } => Some(format!(
                "ask for it at {url}, then write a card with `base` and the `checkpoint` you were given"
            )),
            Self::Expected { expected: Kind::WholeNumber, .. } => {
                Some("write the number of bytes".to_owned())
            }
            Self::Expected { expected: Kind::Text, found, .. } if found.starts_with('`') => {
                Some(format!("write \"{}\" if a text is meant", found.trim_matches('`')))
            }
            _ => None,
        }
    }
}

const NAMES: &str =
    "names have letters, digits, `.`, `_` and `-`, and perhaps `@` with an environment behind it";
const TWICE: &str = "remove one of them or give it another name; only another source may override a card";

impl Hint for Problem {
    fn hint(&self) -> Option<String> {
        match self {
            Self::BadName { .. } => Some(NAMES.to_owned()),
            Self::NoName { .. } => Some("write `name:` with the name of the card".to_owned()),
            Self::Duplicate { .. } => Some(TWICE.to_owned()),
            _ => None,
        }
    }
}
