//! Records of a report: one per entry of a suite.

use std::borrow::Cow;
use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::category::Category;
use crate::probe::{Chart, Evidence, EvidenceTable, RecordedAbout, about, built_in};
use crate::statistics::Statistics;

/// The verdict of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeVerdict {
    /// As it should be.
    Pass,
    /// Not as it should be.
    Fail,
    /// Worth a look.
    Warn,
    /// The probe does not apply.
    Skip,
    /// The probe could not run.
    Error,
    /// The data do not decide.
    Inconclusive,
}

impl fmt::Display for ProbeVerdict {
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

/// The result of one entry. The fields up to `ci_95` are those of dlm-sway.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The name of the entry.
    pub name: String,
    /// The kind of the probe.
    pub kind: String,
    /// The verdict.
    pub verdict: ProbeVerdict,
    /// From 0 to 1.
    pub score: Option<f64>,
    /// The measured number.
    pub raw: Option<f64>,
    /// The measured number in standard deviations of its null distribution.
    pub z_score: Option<f64>,
    /// The value of the base.
    pub base_value: Option<f64>,
    /// The value of the fine-tuned model.
    pub ft_value: Option<f64>,
    /// The numbers that support the finding.
    #[serde(default)]
    pub evidence: Evidence,
    /// The finding in words.
    #[serde(default)]
    pub message: String,
    /// How long the probe took.
    #[serde(default)]
    pub duration_s: f64,
    /// 95 % confidence interval of `raw`.
    pub ci_95: Option<[f64; 2]>,
    /// p-value of the claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p_value: Option<f64>,
    /// p-value corrected for the number of claims in the suite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p_adjusted: Option<f64>,
    /// What the probe is about, if its kind is not built in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<RecordedAbout>,
    /// The chart of the evidence, if the kind is not built in.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "if_known")]
    pub chart: Option<Chart>,
    /// The table of the evidence, if the kind is not built in.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "if_known")]
    pub table: Option<EvidenceTable>,
}

/// A value that a later version may write differently: none if it has another
/// shape.
fn if_known<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<Option<T>, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(from)?).ok())
}

impl Record {
    /// What the probe is about.
    pub fn about(&self) -> Cow<'_, RecordedAbout> {
        match (&self.about, about(&self.kind)) {
            (Some(recorded), _) => Cow::Borrowed(recorded),
            (None, Some(built_in)) => Cow::Owned(built_in.into()),
            (None, None) => Cow::Owned(RecordedAbout::unknown(&self.kind)),
        }
    }

    /// The chart of the evidence: that of the built-in kind, or the recorded one.
    pub fn chart(&self, statistics: Statistics) -> Option<Cow<'_, Chart>> {
        let chart = match built_in(&self.kind) {
            Some(kind) => kind.chart(&self.evidence, statistics).map(Cow::Owned),
            None => self.chart.as_ref().map(Cow::Borrowed),
        };
        chart.filter(|chart| chart.shape.is_drawable())
    }

    /// The table of the evidence: that of the built-in kind, or the recorded one.
    pub fn table(&self) -> Option<Cow<'_, EvidenceTable>> {
        match built_in(&self.kind) {
            Some(kind) => kind.table(&self.evidence).map(Cow::Owned),
            None => self.table.as_ref().map(Cow::Borrowed),
        }
    }

    /// The category that the score counts in.
    pub fn category(&self) -> Category {
        self.about().category
    }
}
