//! What a probe is about.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a probe is about. A suite's score weighs these against each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// Whether the change changes what the model says.
    Adherence,
    /// Whether it changes what the document is about.
    Attribution,
    /// Whether all else stayed as it was.
    Calibration,
    /// How the change behaves when there is less or more of it.
    Ablation,
    /// What noise would do.
    Baseline,
}

impl Category {
    /// All of them, in the order of reports.
    pub const ALL: [Self; 5] =
        [Self::Adherence, Self::Attribution, Self::Calibration, Self::Ablation, Self::Baseline];

    /// The category of a kind of probe. Kinds that nobody knows count as
    /// adherence, as in dlm-sway.
    pub fn of_kind(kind: &str) -> Self {
        match kind {
            "section_internalization" | "paraphrase_invariance" | "preference_flip" => Self::Attribution,
            "style_fingerprint" | "calibration_drift" | "leakage" | "external_perplexity" => {
                Self::Calibration
            }
            "adapter_ablation" | "layer_attribution" => Self::Ablation,
            "null_adapter" => Self::Baseline,
            _ => Self::Adherence,
        }
    }

    /// Its name, as in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Adherence => "adherence",
            Self::Attribution => "attribution",
            Self::Calibration => "calibration",
            Self::Ablation => "ablation",
            Self::Baseline => "baseline",
        }
    }

    /// The category of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|category| category.name() == name)
    }

    /// What counts for it if nothing else is said.
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
