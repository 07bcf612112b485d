//! Names of model specs.

use std::fmt;

use super::error::SpecError;

/// Why a name is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum NameProblem {
    Empty,
    EmptyComponent,
    Slash,
    Character(char),
}

impl fmt::Display for NameProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("empty"),
            Self::EmptyComponent => f.write_str("empty component next to a dot"),
            Self::Slash => f.write_str("contains a slash"),
            Self::Character(c) => write!(f, "contains the character {c:?}"),
        }
    }
}

/// Checks that a name consists of components of letters, digits, `_` and `-`,
/// separated by dots.
pub(super) fn check(name: &str) -> Result<(), SpecError> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let other = name.chars().find(|&c| !is_part(c) && c != '.');
    let problem = if name.is_empty() {
        NameProblem::Empty
    } else if name.contains(['/', '\\']) {
        NameProblem::Slash
    } else if let Some(c) = other {
        NameProblem::Character(c)
    } else if name.split('.').any(str::is_empty) {
        NameProblem::EmptyComponent
    } else {
        return Ok(());
    };
    Err(SpecError::Name { name: name.to_owned(), problem })
}
