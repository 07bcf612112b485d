//! What can be wrong with a configuration, beyond its types.

use weightloom_document::{Fault, Faults, Purpose};
use weightloom_errors::Hint;

pub use weightloom_document::Remedy;

/// Everything that is wrong with a configuration.
pub type ConfigErrors = Faults<Rule>;
/// One thing that is wrong.
pub type ConfigFault = Fault<Rule>;
/// What is wrong with a value.
pub type Problem = weightloom_document::Problem<Rule>;

/// A value that fits its type, but not its purpose.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Rule {
    /// A number that is too small.
    #[error("{found} is less than {least}")]
    Below { found: u64, least: u64 },
    /// A number outside of what makes sense.
    #[error("{found} is not {wanted}")]
    Outside { found: String, wanted: &'static str },
    /// Nothing where something must be.
    #[error("is empty")]
    Empty { advice: &'static str },
    /// A number that must divide another.
    #[error("{found} does not divide `{of}`, which is {whole}")]
    Divides { found: usize, of: &'static str, whole: usize },
    /// Something that is planned.
    #[error("{found} is not supported yet")]
    NotYet { found: usize, supported: usize },
    /// A value that needs another.
    #[error("{found} needs `{other}` to be {wanted}")]
    Needs { found: String, other: &'static str, wanted: &'static str },
    /// More steps than there are.
    #[error("{found} steps are more than `{of}`, which is {limit}")]
    Exceeds { found: u64, of: &'static str, limit: u64 },
    /// A list whose length follows from other keys.
    #[error("has {found} values, but {because} makes {expected}")]
    Count { found: usize, expected: usize, because: String },
}

/// Divisors of a number, for those who must choose one.
pub(crate) fn divisors(whole: usize) -> String {
    let mut all = Vec::new();
    // By pairs, so that a large number costs no time.
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
            Self::Below { least, .. } => format!("write {least} or more"),
            Self::Outside { wanted, .. } => format!("write {wanted}"),
            Self::Empty { advice } => (*advice).to_owned(),
            Self::Divides { whole, .. } => format!("it can be {}", divisors(*whole)),
            Self::NotYet { supported, .. } => format!("write {supported}, or leave it out"),
            Self::Needs { other, wanted, .. } => format!("set `{other}` to {wanted}, or leave this out"),
            Self::Exceeds { of, limit, .. } => format!("write {limit} or less, or raise `{of}`"),
            Self::Count { expected, .. } => format!("give {expected} values, or leave it out"),
        })
    }
}

impl Purpose for Rule {
    const DOCUMENT: &'static str = "the configuration";
    const FILE: &'static str = "the file of a run";
    const OVERRIDE: &'static str = "train.optimizer.lr=1e-4";
}
