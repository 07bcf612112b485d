//! A quick check of an adapter: does it change the model more than noise would,
//! and does the model keep what it knew?

use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};
use thiserror::Error;
use weightloom_errors::Hint;

use crate::packs::Packs;
use crate::record::ProbeVerdict;
use crate::report::Report;
use crate::statistics::Statistics;
use crate::suite::{Suite, SuiteErrors};
use crate::verdict::{Decision, Grade, Verdict};

/// The least mean divergence that passes without noise to compare with.
const LEAST_CHANGE: f64 = 0.01;
/// Facts that are checked: enough to prove that few were lost.
const FACTS: usize = 40;
/// Chunks of unrelated text, and their length.
const CHUNKS: usize = 8;
const CHUNK_CHARS: usize = 1024;
/// Draws of noise under the reference statistics.
const NOISE_RUNS: u64 = 3;

/// What a quick check runs on.
#[derive(Clone, Debug)]
pub struct QuickCheck<'a> {
    /// The folder of the adapter, in PEFT's or MLX's format, or of a fine-tuned
    /// model.
    pub adapter: &'a Path,
    /// The base model; by default the one that `adapter_config.json` names.
    pub base: Option<String>,
    /// The prompts to compare on; by default built-in ones.
    pub prompts: Option<Vec<String>>,
    /// How verdicts are reached.
    pub statistics: Statistics,
}

/// Why an adapter cannot be checked.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum QuickCheckError {
    #[error("`{adapter}` does not name its base model")]
    NoBase { adapter: String },
    #[error(transparent)]
    Suite(#[from] SuiteErrors),
}

impl Hint for QuickCheckError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::NoBase { .. } => Some("name the base with --base".to_owned()),
            Self::Suite(error) => error.hint(),
        }
    }
}

impl QuickCheck<'_> {
    /// The suite that checks the adapter. `variable` looks up the home folder.
    pub fn suite(&self, variable: &dyn Fn(&str) -> Option<String>) -> Result<Suite, QuickCheckError> {
        let folder = std::path::absolute(self.adapter).unwrap_or_else(|_| self.adapter.to_owned());
        let base = match &self.base {
            Some(base) => base.clone(),
            None => base_of(&folder)
                .ok_or_else(|| QuickCheckError::NoBase { adapter: self.adapter.display().to_string() })?,
        };
        let prompts = self.prompts.as_ref().unwrap_or(&Packs::builtin().check_quick_prompts);
        let tuned =
            match folder.join("config.json").is_file() && !folder.join("adapter_config.json").is_file() {
                true => json!({"base": folder}),
                false => json!({"base": base, "adapter": folder}),
            };
        let text = json!({
            "models": {"base": {"base": base}, "ft": tuned},
            "defaults": {"statistics": self.statistics},
            "suite": [
                {"name": "noise", "kind": "null_adapter", "runs": NOISE_RUNS},
                {"name": "change", "kind": "delta_kl", "prompts": prompts, "assert_mean_gte": LEAST_CHANGE},
                {"name": "knowledge", "kind": "calibration_drift", "items_limit": FACTS},
                {"name": "neutral_text", "kind": "external_perplexity", "max_chunks": CHUNKS,
                 "chunk_chars": CHUNK_CHARS},
            ],
        });
        // Relative paths are relative to the working folder, not to the adapter.
        let mut suite = Suite::read(&text.to_string(), Path::new("check"), &variable)?;
        suite.file = self.adapter.join("check").display().to_string();
        Ok(suite)
    }
}

/// The base model that an adapter's config names.
pub fn base_of(folder: &Path) -> Option<String> {
    let file = folder.join("adapter_config.json");
    // Opening a pipe would wait for its writer.
    let text = file.is_file().then(|| std::fs::read_to_string(file))?.ok()?;
    let config: Value = serde_json::from_str(&text).ok()?;
    // PEFT's key, then MLX's.
    let named = config.get("base_model_name_or_path").or_else(|| config.get("model"))?.as_str()?;
    (!named.trim().is_empty()).then(|| named.to_owned())
}

/// The outcome of a quick check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Light {
    /// The adapter changes the model, and the model keeps what it knew.
    Green,
    /// Something is undecided.
    Yellow,
    /// The change is indistinguishable from noise, damages the model, or could
    /// not be measured.
    Red,
}

impl Light {
    /// The outcome of a report. Damage is always red. Else paired tests decide by
    /// the verdict; the reference decides by the z-score if there is one, else by
    /// the score.
    pub fn of(report: &Report) -> Self {
        let failed = report.probes.iter().any(|record| record.verdict == ProbeVerdict::Error);
        if failed || report.verdict.grade() == Grade::Damaged {
            return Self::Red;
        }
        let Some(change) = report.probes.iter().find(|record| record.kind == "delta_kl") else {
            return Self::Red;
        };
        let by_limits = |value: f64, green: f64, yellow: f64| match value {
            _ if value >= green => Self::Green,
            _ if value >= yellow => Self::Yellow,
            _ => Self::Red,
        };
        let Verdict { changed, damaged, .. } = &report.verdict;
        match (report.statistics, change.z_score) {
            (Statistics::Paired, _) => match (changed.decision, damaged.decision) {
                (Decision::Yes, Decision::No) => Self::Green,
                (Decision::No, _) => Self::Red,
                _ => Self::Yellow,
            },
            (Statistics::Reference, Some(z)) => by_limits(z, 3.0, 1.0),
            (Statistics::Reference, None) => by_limits(report.score.overall, 0.6, 0.3),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;
    use crate::probe::Finding;

    fn report(
        statistics: Statistics,
        [change, knowledge]: [ProbeVerdict; 2],
        z_score: Option<f64>,
        overall: f64,
    ) -> Report {
        let mut record = Finding::without_number(change, "m").into_record("change", "delta_kl", 0.0);
        record.z_score = z_score;
        let facts =
            Finding::without_number(knowledge, "m").into_record("knowledge", "calibration_drift", 0.0);
        let probes = vec![record, facts];
        let mut report = Report { statistics, verdict: Verdict::of(&probes), probes, ..Report::default() };
        report.score.overall = overall;
        report
    }

    #[test]
    fn each_statistics_decides_in_its_own_way() {
        use ProbeVerdict::{Error, Fail, Inconclusive, Pass};
        let paired = |verdicts| Light::of(&report(Statistics::Paired, verdicts, Some(9.0), 1.0));
        assert_eq!(paired([Pass, Pass]), Light::Green);
        assert_eq!([[Inconclusive, Pass], [Pass, Inconclusive]].map(paired), [Light::Yellow; 2]);
        assert_eq!([[Fail, Pass], [Error, Pass], [Pass, Error]].map(paired), [Light::Red; 3]);
        let reference = |z, overall| Light::of(&report(Statistics::Reference, [Fail, Pass], z, overall));
        assert_eq!(
            [Some(3.0), Some(1.0), Some(0.9)].map(|z| reference(z, 1.0)),
            [Light::Green, Light::Yellow, Light::Red]
        );
        assert_eq!(
            [0.6, 0.3, 0.2].map(|overall| reference(None, overall)),
            [Light::Green, Light::Yellow, Light::Red]
        );
        assert_eq!(Light::of(&Report::default()), Light::Red);
    }

    #[test]
    fn damage_is_red_whatever_changed() {
        use ProbeVerdict::{Fail, Pass};
        for statistics in [Statistics::Paired, Statistics::Reference] {
            assert_eq!(Light::of(&report(statistics, [Pass, Fail], Some(9.0), 1.0)), Light::Red);
        }
    }

    #[test]
    fn the_base_is_read_from_the_adapter() {
        let folder = tempfile::tempdir().unwrap();
        let check =
            QuickCheck { adapter: folder.path(), base: None, prompts: None, statistics: Statistics::Paired };
        let error = check.suite(&|_| None).unwrap_err();
        assert!(matches!(error, QuickCheckError::NoBase { .. }) && error.hint().is_some());
        let config = folder.path().join("adapter_config.json");
        std::fs::write(config, r#"{"base_model_name_or_path": "org/tiny"}"#).unwrap();
        let suite = check.suite(&|_| None).unwrap();
        assert_eq!((suite.base.base.as_str(), suite.entries().len()), ("org/tiny", 4));
    }
}
