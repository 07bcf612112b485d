//! Evidence: the numbers that support a finding.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The numbers that support a finding, as a JSON object.
///
/// Every kind of probe has an evidence type, whose fields are the keys of the
/// object. Parts that several kinds share, or that are added after judging, are
/// types too: a part is added with [`Evidence::with`] and read back, also from
/// a report file, with [`Evidence::read`].
///
/// ```
/// use weightloom_sway::probe::{Evidence, RawInterval};
///
/// let evidence = Evidence::default().with(&RawInterval { raw_ci_95: Some([0.1, 0.2]) });
/// assert_eq!(evidence["raw_ci_95"], serde_json::json!([0.1, 0.2]));
/// assert_eq!(evidence.read::<RawInterval>().unwrap().raw_ci_95, Some([0.1, 0.2]));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Evidence {
    fields: Map<String, Value>,
    /// Whether a part could not be added.
    #[serde(skip)]
    incomplete: bool,
}

impl Evidence {
    /// Evidence with the fields of `part`.
    pub fn of(part: &impl Serialize) -> Self {
        Self::default().with(part)
    }

    /// Adds the fields of `part`.
    pub fn with(mut self, part: &impl Serialize) -> Self {
        self.add(part);
        self
    }

    /// Adds the fields of `part`. Numbers that are not finite become `null`.
    pub fn add(&mut self, part: &impl Serialize) {
        match serde_json::to_value(part) {
            Ok(Value::Object(fields)) => self.fields.extend(fields),
            _ => self.incomplete = true,
        }
    }

    /// Whether a part could not be added, because it is not a map of fields.
    pub fn is_incomplete(&self) -> bool {
        self.incomplete
    }

    /// The fields of a part; none if one has another type than expected, as may
    /// happen in a report of another program.
    pub fn read<T: DeserializeOwned>(&self) -> Option<T> {
        T::deserialize(&self.fields).ok()
    }
}

impl Deref for Evidence {
    type Target = Map<String, Value>;

    fn deref(&self) -> &Self::Target {
        &self.fields
    }
}

impl DerefMut for Evidence {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.fields
    }
}

impl From<Map<String, Value>> for Evidence {
    fn from(fields: Map<String, Value>) -> Self {
        Self { fields, incomplete: false }
    }
}

/// How much an entry counts within its category.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct EntryWeight {
    pub(crate) weight: f64,
}

/// The confidence interval of the measured number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct RawInterval {
    pub raw_ci_95: Option<[f64; 2]>,
}

/// Where the measured number must lie to pass, for plots.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RawLimit {
    /// The limit.
    pub raw_limit: f64,
    /// The side of the limit that passes.
    pub raw_passes: PassingSide,
}

/// The side of a limit that passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum PassingSide {
    Above,
    Below,
}

impl RawLimit {
    /// Numbers above the limit pass.
    pub fn above(raw_limit: f64) -> Self {
        Self { raw_limit, raw_passes: PassingSide::Above }
    }

    /// Numbers below the limit pass.
    pub fn below(raw_limit: f64) -> Self {
        Self { raw_limit, raw_passes: PassingSide::Below }
    }

    /// Whether a number passes. The limit itself does where more is better, as
    /// in the names of the fields (`gte`, `lt`).
    pub fn holds(&self, raw: f64) -> bool {
        match self.raw_passes {
            PassingSide::Above => raw >= self.raw_limit,
            PassingSide::Below => raw < self.raw_limit,
        }
    }
}

/// z-scores against noise of several ranks, under the reference statistics.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct Calibration {
    pub z_by_rank: Option<BTreeMap<String, f64>>,
}

/// The comparison with noise of the adapter's size, under paired statistics.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NullComparison {
    /// The number under each draw of noise, in the order of seeds.
    pub null_samples: Vec<f64>,
    /// How many units would probably decide, if these did not.
    pub needed_units: Option<usize>,
    /// What a unit is.
    pub unit: String,
    /// Whether something else than this comparison decided.
    pub decided_otherwise: bool,
}

/// The test against a limit, under paired statistics.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitTest {
    /// The limit in words, as in `limit 30 facts`.
    pub bound: String,
    /// How many units would probably decide, if these did not.
    pub needed_units: Option<usize>,
    /// What a unit is.
    pub unit: String,
    /// The p-value of the limit being kept.
    pub p_beyond: f64,
}

/// Whether what was taught holds for the taught words only, under paired
/// statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct TaughtWordsOnly {
    pub taught_words_only: bool,
}

/// Numbers that were left out because they are not finite.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct NonFinite {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) non_finite_inputs: Vec<&'static str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) defensively_nulled: Vec<&'static str>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parts_are_read_one_by_one() {
        let evidence: Evidence =
            json!({"null_samples": [1.0, 2.0], "raw_ci_95": "odd"}).as_object().unwrap().clone().into();
        assert_eq!(evidence.read::<NullComparison>().unwrap().null_samples, [1.0, 2.0]);
        assert_eq!(evidence.read::<RawInterval>(), None);
        assert_eq!(evidence.read::<EntryWeight>(), None);
        let weighted = evidence.with(&EntryWeight { weight: 2.0 });
        assert_eq!(weighted["weight"], json!(2.0));
    }
}
