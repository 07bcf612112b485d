//! The verdict of a report in a sentence.

use super::Report;
use crate::category::Category;
use crate::record::{ProbeVerdict, Record};
use crate::score::counts;

impl Report {
    /// Whether any probe ran. If none did, a score of 0 would be misleading.
    pub fn has_results(&self) -> bool {
        self.probes.iter().any(|record| !matches!(record.verdict, ProbeVerdict::Error | ProbeVerdict::Skip))
    }

    /// Whether any category that counts has a result. If none does, a score of 0
    /// would be misleading.
    pub fn has_score(&self) -> bool {
        let weighs = |name: &str| self.score.weights.get(name).is_some_and(|weight| *weight > 0.0);
        self.score.components.keys().any(|name| weighs(name) && self.component(name).is_some())
    }

    /// Whether the backend failed its preflight check.
    pub fn preflight_failed(&self) -> bool {
        self.probes.iter().any(|record| record.kind == "preflight" && record.verdict == ProbeVerdict::Error)
    }

    /// The headline of the verdict, or why there is none.
    pub fn sentence(&self) -> String {
        if self.probes.is_empty() {
            return "No probe ran, so nothing was judged.".to_owned();
        }
        if !self.has_results() {
            return "No probe could run, so nothing was judged.".to_owned();
        }
        self.verdict.headline()
    }

    /// Notes of the run and of the backend.
    pub fn all_notes(&self) -> Vec<String> {
        let mut notes = self.notes.clone();
        let of_backend = self.backend.iter().flat_map(|backend| &backend.notes);
        notes.extend(of_backend.filter(|note| !self.notes.contains(note)).cloned());
        notes
    }

    /// The score of a category; none if no probe of it has a result, where the
    /// report itself has 0. Unknown categories keep their score.
    pub fn component(&self, name: &str) -> Option<f64> {
        let counted = |record: &Record| counts(record, self.statistics) && record.score.is_some();
        let has_result = |category: Category| {
            self.probes.iter().any(|record| record.category() == category && counted(record))
        };
        let known = Category::from_name(name).is_none_or(has_result);
        self.score.components.get(name).copied().filter(|_| known)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;
    use crate::probe::Finding;
    use crate::score::{Score, Weights};
    use crate::statistics::Statistics;
    use crate::verdict::Verdict;

    fn report(records: Vec<Record>) -> Report {
        let score = Score::of(&records, &Weights::of_suite(None), Statistics::Paired);
        Report { verdict: Verdict::of(&records), probes: records, score, ..Report::default() }
    }

    fn record(kind: &str, verdict: ProbeVerdict, score: Option<f64>) -> Record {
        let record = Finding::error("said").into_record("one", kind, 0.0);
        Record { verdict, score, ..record }
    }

    #[test]
    fn a_report_without_results_is_not_called_noise() {
        let nothing = report(Vec::new());
        assert_eq!(nothing.sentence(), "No probe ran, so nothing was judged.");
        let failed = report(vec![record("preflight", ProbeVerdict::Error, None)]);
        assert_eq!(failed.sentence(), "No probe could run, so nothing was judged.");
        assert!(failed.preflight_failed() && !failed.has_results());
        let bad = report(vec![record("delta_kl", ProbeVerdict::Fail, Some(0.0))]);
        assert!(bad.sentence().starts_with("No effect beyond noise: "), "{}", bad.sentence());
        assert!(bad.has_results() && !bad.preflight_failed());
    }

    #[test]
    fn a_category_without_a_result_has_no_score() {
        let report = report(vec![
            record("delta_kl", ProbeVerdict::Fail, Some(0.0)),
            record("leakage", ProbeVerdict::Inconclusive, Some(0.4)),
            record("adapter_ablation", ProbeVerdict::Error, None),
        ]);
        assert_eq!(report.component("adherence"), Some(0.0));
        for name in ["calibration", "ablation", "attribution", "nonsense"] {
            assert_eq!(report.component(name), None, "{name}");
        }
    }
}
