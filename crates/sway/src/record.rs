//! What a probe found.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What a probe says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Pass,
    /// Not as it should be.
    Fail,
    /// Worth a look.
    Warn,
    /// It did not apply.
    Skip,
    /// It could not be carried out.
    Error,
    /// The data do not decide.
    Inconclusive,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Warn => "warn",
            Self::Skip => "skip",
            Self::Error => "error",
            Self::Inconclusive => "inconclusive",
        })
    }
}

/// What a probe found. The fields are those of dlm-sway, and after them ours.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The entry's name.
    pub name: String,
    /// The probe's kind.
    pub kind: String,
    /// What it says.
    pub verdict: Verdict,
    /// Between 0 and 1.
    pub score: Option<f64>,
    /// The number that it measures.
    pub raw: Option<f64>,
    /// The same in deviations of its null distribution.
    pub z_score: Option<f64>,
    /// The base's part.
    pub base_value: Option<f64>,
    /// The tuned model's part.
    pub ft_value: Option<f64>,
    /// All that led there.
    #[serde(default)]
    pub evidence: Map<String, Value>,
    /// In words.
    #[serde(default)]
    pub message: String,
    /// How long it took.
    #[serde(default)]
    pub duration_s: f64,
    /// Where `raw` lies with 95 % confidence.
    pub ci_95: Option<[f64; 2]>,
    /// The probability of such a number if nothing had changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p_value: Option<f64>,
    /// The same, with all probes of the suite counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p_adjusted: Option<f64>,
}
