//! What a probe says, before it is a record of an entry.

use serde_json::{Map, Value};

use super::nulls::NullStatistics;
use crate::record::{Record, Verdict};

/// What a probe says, before it is a record of an entry.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// What it says.
    pub verdict: Verdict,
    /// Between 0 and 1.
    pub score: Option<f64>,
    /// The number that it measures.
    pub raw: Option<f64>,
    /// The same in deviations of its null.
    pub z_score: Option<f64>,
    /// The base's part.
    pub base_value: Option<f64>,
    /// The tuned model's part.
    pub ft_value: Option<f64>,
    /// All that led there.
    pub evidence: Map<String, Value>,
    /// In words.
    pub message: String,
    /// Where `raw` lies with 95 % confidence.
    pub ci_95: Option<[f64; 2]>,
    /// What noise gave, for probes after this one.
    pub nulls: Option<NullStatistics>,
}

impl Finding {
    /// A verdict and why, without a number.
    pub fn without_number(verdict: Verdict, message: impl Into<String>) -> Self {
        Self {
            verdict,
            score: None,
            raw: None,
            z_score: None,
            base_value: None,
            ft_value: None,
            evidence: Map::new(),
            message: message.into(),
            ci_95: None,
            nulls: None,
        }
    }

    /// It did not apply.
    pub fn skip(message: impl Into<String>) -> Self {
        Self::without_number(Verdict::Skip, message)
    }

    /// It could not be carried out.
    pub fn error(message: impl Into<String>) -> Self {
        Self::without_number(Verdict::Error, message)
    }

    /// The same without numbers that are none. A `raw` that is none is an
    /// error: nothing that follows from it holds.
    pub fn guarded(mut self) -> Self {
        let numbers = [
            ("raw", &mut self.raw),
            ("score", &mut self.score),
            ("z_score", &mut self.z_score),
            ("base_value", &mut self.base_value),
            ("ft_value", &mut self.ft_value),
        ];
        let mut offenders: Vec<&str> = Vec::new();
        for (name, number) in numbers {
            if number.is_some_and(|number| !number.is_finite()) {
                offenders.push(name);
                *number = None;
            }
        }
        if self.ci_95.is_some_and(|ends| ends.iter().any(|end| !end.is_finite())) {
            offenders.push("ci_95");
            self.ci_95 = None;
        }
        if offenders.contains(&"raw") {
            self.verdict = Verdict::Error;
            (self.score, self.z_score, self.base_value, self.ft_value, self.ci_95) =
                (None, None, None, None, None);
            self.message = format!("the measured number is not finite ({})", self.message);
            self.evidence.insert("non_finite_inputs".to_owned(), Value::from(offenders));
        } else if !offenders.is_empty() {
            self.evidence.insert("defensively_nulled".to_owned(), Value::from(offenders));
        }
        self
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
        }
    }
}

/// Evidence from `json!({…})`.
pub(crate) fn evidence(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => Map::from_iter([("value".to_owned(), other)]),
    }
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
            ..Finding::without_number(Verdict::Pass, "m")
        }
    }

    #[test]
    fn a_raw_that_is_no_number_is_an_error() {
        let found = Finding { raw: Some(f64::NAN), ft_value: Some(f64::INFINITY), ..finding() }.guarded();
        assert_eq!(found.verdict, Verdict::Error);
        assert_eq!((found.raw, found.score, found.z_score, found.ci_95), (None, None, None, None));
        assert_eq!(found.evidence["non_finite_inputs"], serde_json::json!(["raw", "ft_value"]));
    }

    #[test]
    fn other_numbers_that_are_none_are_left_out() {
        let found = Finding { z_score: Some(f64::INFINITY), ..finding() }.guarded();
        assert_eq!(found.verdict, Verdict::Pass);
        assert_eq!((found.raw, found.z_score, found.ci_95), (Some(1.0), None, Some([0.0, 1.0])));
        assert_eq!(found.evidence["defensively_nulled"], serde_json::json!(["z_score"]));
        assert_eq!(finding().guarded(), finding());
    }
}
