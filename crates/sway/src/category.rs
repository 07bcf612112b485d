//! Categories of probes.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The aspect of fine-tuning that a probe judges. The score of a suite is the
/// weighted mean over categories.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// The model changed.
    Adherence,
    /// The change is about the document.
    Attribution,
    /// Everything else stayed as it was.
    Calibration,
    /// The change behaves well when the adapter is weakened or strengthened.
    Ablation,
    /// The noise that other categories are compared with.
    Baseline,
}

impl Category {
    /// All categories, in the order of reports.
    pub const ALL: [Self; 5] =
        [Self::Adherence, Self::Attribution, Self::Calibration, Self::Ablation, Self::Baseline];

    /// The name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Adherence => "adherence",
            Self::Attribution => "attribution",
            Self::Calibration => "calibration",
            Self::Ablation => "ablation",
            Self::Baseline => "baseline",
        }
    }

    /// Finds a category by name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|category| category.name() == name)
    }

    /// The weight unless a suite gives another.
    pub fn default_weight(self) -> f64 {
        match self {
            Self::Adherence => 0.30,
            Self::Attribution => 0.35,
            Self::Calibration => 0.20,
            Self::Ablation => 0.15,
            Self::Baseline => 0.0,
        }
    }
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
