//! Constraints on config values, beyond their types.

use weightloom_document::{DocumentError, DocumentErrors, DocumentRule};
use weightloom_errors::Hint;

use crate::extensions::UnknownName;

pub use weightloom_document::Remedy;

/// All errors of a config.
pub type ConfigErrors = DocumentErrors<Rule>;
/// One error of a config.
pub type ConfigFault = DocumentError<Rule>;
/// The reason of a [`ConfigFault`].
pub type Problem = weightloom_document::Problem<Rule>;

/// A constraint that a value violates.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Rule {
    #[error("{found} is less than {least}")]
    Below { found: u64, least: u64 },
    #[error("{found} is not {wanted}")]
    Outside { found: String, wanted: &'static str },
    #[error("must not be empty")]
    Empty { advice: &'static str },
    #[error("{found} does not divide `{of}`, which is {whole}")]
    Divides { found: usize, of: &'static str, whole: usize },
    #[error("{found} is not supported yet")]
    NotYet { found: usize, supported: usize },
    #[error("{found} requires `{other}` to be {wanted}")]
    Needs { found: String, other: &'static str, wanted: &'static str },
    #[error("{found} steps exceed `{of}`, which is {limit}")]
    Exceeds { found: u64, of: &'static str, limit: u64 },
    #[error("has {found} values, but {because} requires {expected}")]
    Count { found: usize, expected: usize, because: String },
    #[error(transparent)]
    Unknown(#[from] UnknownName),
    #[error("excludes `{other}`")]
    Excludes { other: &'static str },
    /// An option that an extension rejects.
    #[error("{problem}")]
    Option { problem: String },
}

/// The divisors of a number, as a list for hints.
pub(crate) fn divisors(whole: usize) -> String {
    let mut all = Vec::new();
    // Pairs of divisors, so that large numbers are fast.
    let mut small = 1usize;
    while small.checked_mul(small).is_some_and(|square| square <= whole) && small <= 1 << 20 {
        if whole.is_multiple_of(small) {
            all.push(small);
            if small != whole / small {
                all.push(whole / small);
            }
        }
        small += 1;
    }
    all.sort_unstable();
    all.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

impl Hint for Rule {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Below { least, .. } => format!("set it to {least} or more"),
            Self::Outside { wanted, .. } => format!("set it to {wanted}"),
            Self::Empty { advice } => (*advice).to_owned(),
            Self::Divides { whole, .. } => format!("set it to one of {}", divisors(*whole)),
            Self::NotYet { supported, .. } => format!("set it to {supported}, or remove it"),
            Self::Needs { other, wanted, .. } => format!("set `{other}` to {wanted}, or remove this key"),
            Self::Exceeds { of, limit, .. } => format!("set it to {limit} or less, or raise `{of}`"),
            Self::Excludes { other } => format!("remove one of them: this key or `{other}`"),
            Self::Option { .. } => return None,
            Self::Unknown(error) => return error.hint(),
            Self::Count { expected, .. } => format!("list {expected} values, or remove it"),
        })
    }
}

impl DocumentRule for Rule {
    const DOCUMENT: &'static str = "the config";
    const FILE: &'static str = "a training config";
    const OVERRIDE: &'static str = "train.optimizer.lr=1e-4";
}
