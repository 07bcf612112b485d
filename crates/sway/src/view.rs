//! One variant of a model.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

/// A number that can be a key: equal if its bits are.
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

/// One variant of a model.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum View {
    /// Before the fine-tuning.
    Base,
    /// After it.
    Tuned,
    /// So much of the change.
    Scaled(Real),
    /// Noise in place of the adapter, as dlm-sway draws it: both matrices are
    /// normal with the deviation `init_scale · √rank_scale`.
    Noise {
        /// What the noise is drawn from.
        seed: u64,
        /// The deviation.
        init_scale: Real,
        /// A factor that stands for another rank.
        rank_scale: Real,
    },
    /// A change as large as the adapter's, module by module, of the same rank,
    /// in a random direction.
    Matched {
        /// What the direction is drawn from.
        seed: u64,
    },
    /// The change without its part in some modules.
    Without {
        /// Beginnings of the names of modules that stay as they were.
        modules: Vec<String>,
    },
}

impl fmt::Display for View {
    /// As traces and messages name it.
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
