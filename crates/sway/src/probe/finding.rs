//! The result of a probe.

use super::calibration::NullStatistics;
use super::evidence::{Evidence, NonFinite, RawInterval, RawLimit};
use super::generations::Generations;
use super::items::ItemResults;
use crate::record::{ProbeVerdict, Record};

/// The result of a probe, before it becomes the [`Record`] of an entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
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
    pub evidence: Evidence,
    /// The finding in words.
    pub message: String,
    /// 95 % confidence interval of `raw`.
    pub ci_95: Option<[f64; 2]>,
    /// What noise measured, for later probes.
    pub nulls: Option<NullStatistics>,
}

impl Finding {
    /// A verdict with its reason, and no number.
    pub fn without_number(verdict: ProbeVerdict, message: impl Into<String>) -> Self {
        Self {
            verdict,
            score: None,
            raw: None,
            z_score: None,
            base_value: None,
            ft_value: None,
            evidence: Evidence::default(),
            message: message.into(),
            ci_95: None,
            nulls: None,
        }
    }

    /// The probe does not apply.
    pub fn skip(message: impl Into<String>) -> Self {
        Self::without_number(ProbeVerdict::Skip, message)
    }

    /// The probe cannot run.
    pub fn error(message: impl Into<String>) -> Self {
        Self::without_number(ProbeVerdict::Error, message)
    }

    /// Removes numbers that are not finite. If `raw` is not finite, the finding
    /// becomes an error.
    pub fn without_non_finite(mut self) -> Self {
        let numbers = [
            ("raw", &mut self.raw),
            ("score", &mut self.score),
            ("z_score", &mut self.z_score),
            ("base_value", &mut self.base_value),
            ("ft_value", &mut self.ft_value),
        ];
        let mut removed: Vec<&'static str> = Vec::new();
        for (name, number) in numbers {
            if number.is_some_and(|number| !number.is_finite()) {
                removed.push(name);
                *number = None;
            }
        }
        if self.ci_95.is_some_and(|ends| ends.iter().any(|end| !end.is_finite())) {
            removed.push("ci_95");
            self.ci_95 = None;
        }
        let part = if removed.contains(&"raw") {
            self.verdict = ProbeVerdict::Error;
            (self.score, self.z_score, self.base_value, self.ft_value, self.ci_95) =
                (None, None, None, None, None);
            self.message = format!("the measured number is not finite ({})", self.message);
            NonFinite { non_finite_inputs: removed, ..NonFinite::default() }
        } else {
            NonFinite { defensively_nulled: removed, ..NonFinite::default() }
        };
        self.evidence.add(&part);
        self
    }

    /// What contradicts itself or cannot be read back, if anything. Numbers that
    /// are not finite are not: [`Finding::without_non_finite`] removes them.
    pub fn inconsistency(&self) -> Option<InconsistentFinding> {
        let outside = |score: f64| score.is_finite() && !(0.0..=1.0).contains(&score);
        if let Some(score) = self.score.filter(|score| outside(*score)) {
            return Some(InconsistentFinding::Score { score });
        }
        if let Some([low, high]) = self.ci_95.filter(|[low, high]| low > high) {
            return Some(InconsistentFinding::Interval { low, high });
        }
        if self.evidence.is_incomplete() {
            return Some(InconsistentFinding::Part);
        }
        // Reports and comparisons of runs look these up in the evidence of any kind.
        let shared: [(&'static str, bool); 4] = [
            ("items", self.evidence.read::<ItemResults>().is_some()),
            ("generations", self.evidence.read::<Generations>().is_some()),
            ("raw_limit", self.evidence.read::<RawLimit>().is_some()),
            ("raw_ci_95", self.evidence.read::<RawInterval>().is_some()),
        ];
        let wrong = shared.into_iter().find(|(key, fits)| self.evidence.contains_key(*key) && !fits);
        wrong.map(|(key, _)| InconsistentFinding::Shared { key })
    }

    /// The record of an entry.
    pub fn into_record(self, name: &str, kind: &str, duration_s: f64) -> Record {
        Record {
            name: name.to_owned(),
            kind: kind.to_owned(),
            verdict: self.verdict,
            score: self.score,
            raw: self.raw,
            z_score: self.z_score,
            base_value: self.base_value,
            ft_value: self.ft_value,
            evidence: self.evidence,
            message: self.message,
            duration_s,
            ci_95: self.ci_95,
            p_value: None,
            p_adjusted: None,
            about: None,
            chart: None,
            table: None,
        }
    }
}

/// What in a finding contradicts itself.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum InconsistentFinding {
    #[error("its score {score} is not from 0 to 1")]
    Score { score: f64 },
    #[error("its interval begins at {low}, after its end at {high}")]
    Interval { low: f64, high: f64 },
    #[error("a part of its evidence is not a map of fields")]
    Part,
    #[error("`{key}` in its evidence has another form than in other probes")]
    Shared { key: &'static str },
    #[error("it compares with {found} draws of noise; there are {wanted}")]
    Draws { found: usize, wanted: u64 },
    #[error("its {what} is {number}")]
    Claim { what: &'static str, number: f64 },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding() -> Finding {
        Finding {
            score: Some(0.5),
            raw: Some(1.0),
            z_score: Some(2.0),
            ci_95: Some([0.0, 1.0]),
            ..Finding::without_number(ProbeVerdict::Pass, "m")
        }
    }

    #[test]
    fn a_raw_number_that_is_not_finite_is_an_error() {
        let found =
            Finding { raw: Some(f64::NAN), ft_value: Some(f64::INFINITY), ..finding() }.without_non_finite();
        assert_eq!(found.verdict, ProbeVerdict::Error);
        assert_eq!((found.raw, found.score, found.z_score, found.ci_95), (None, None, None, None));
        assert_eq!(found.evidence["non_finite_inputs"], serde_json::json!(["raw", "ft_value"]));
    }

    #[test]
    fn other_numbers_that_are_not_finite_are_removed() {
        let found = Finding { z_score: Some(f64::INFINITY), ..finding() }.without_non_finite();
        assert_eq!(found.verdict, ProbeVerdict::Pass);
        assert_eq!((found.raw, found.z_score, found.ci_95), (Some(1.0), None, Some([0.0, 1.0])));
        assert_eq!(found.evidence["defensively_nulled"], serde_json::json!(["z_score"]));
        assert_eq!(finding().without_non_finite(), finding());
    }
}
