//! Names of specs.

use std::fmt;

use super::error::SpecError;

/// What is wrong with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NameFault {
    /// There is none.
    Empty,
    /// Nothing stands before, behind or between dots.
    EmptyPart,
    /// It is a path or an address.
    Slash,
    /// It has a character that names do not have.
    Character(char),
}

impl fmt::Display for NameFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("it is empty"),
            Self::EmptyPart => f.write_str("there is nothing on one side of a dot"),
            Self::Slash => f.write_str("it has a slash"),
            Self::Character(c) => write!(f, "it has the character {c:?}"),
        }
    }
}

/// Names are words of letters, digits, `_` and `-`, with dots between them.
pub(super) fn check(name: &str) -> Result<(), SpecError> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let other = name.chars().find(|&c| !is_part(c) && c != '.');
    let fault = if name.is_empty() {
        NameFault::Empty
    } else if name.contains(['/', '\\']) {
        NameFault::Slash
    } else if let Some(c) = other {
        NameFault::Character(c)
    } else if name.split('.').any(str::is_empty) {
        NameFault::EmptyPart
    } else {
        return Ok(());
    };
    Err(SpecError::Name { name: name.to_owned(), fault })
}
