//! Views: variants of a model.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

use crate::error::QueryError;

/// An `f64` that can be a map key; compared by its bits.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Real(pub f64);

impl PartialEq for Real {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Real {}

impl Hash for Real {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

impl PartialOrd for Real {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Real {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// A variant of a model.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum View {
    /// The model before fine-tuning.
    Base,
    /// The model after fine-tuning.
    Tuned,
    /// The base with the adapter scaled by a factor.
    Scaled(Real),
    /// A random adapter as in dlm-sway: both matrices are normal with standard
    /// deviation `init_scale · √rank_scale`.
    Noise {
        seed: u64,
        init_scale: Real,
        /// Emulates an adapter of another rank.
        rank_scale: Real,
    },
    /// A random adapter with the ranks and norms of the real one in every
    /// module.
    Matched { seed: u64 },
    /// The adapter without the modules whose names start with one of these.
    Without { modules: Vec<String> },
}

impl View {
    /// Checks that its parameters are valid.
    pub(crate) fn check(&self) -> Result<(), QueryError> {
        let parameters = match self {
            Self::Scaled(strength) => vec![("strength", strength.0, strength.0.is_finite())],
            Self::Noise { init_scale, rank_scale, .. } => vec![
                ("init_scale", init_scale.0, init_scale.0.is_finite()),
                ("rank_scale", rank_scale.0, rank_scale.0.is_finite() && rank_scale.0 > 0.0),
            ],
            _ => Vec::new(),
        };
        match parameters.into_iter().find(|(.., is_valid)| !is_valid) {
            None => Ok(()),
            Some((name, value, _)) => {
                Err(QueryError::Failed { message: format!("invalid {name} `{value}` of the view `{self}`") })
            }
        }
    }
}

impl fmt::Display for View {
    /// The name in traces and messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Base => f.write_str("base"),
            Self::Tuned => f.write_str("ft"),
            Self::Scaled(strength) => write!(f, "scaled_{:.2}", strength.0),
            Self::Noise { seed, rank_scale, .. } if rank_scale.0 == 1.0 => write!(f, "null_{seed}"),
            Self::Noise { seed, rank_scale, .. } => write!(f, "null_{seed}_rank{:.2}", rank_scale.0),
            Self::Matched { seed } => write!(f, "matched_{seed}"),
            Self::Without { modules } => write!(f, "without_{}", modules.join("+")),
        }
    }
}
