//! Data that planners attach to plans and metadata.

use std::collections::BTreeMap;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::items::MetadataIndex;

/// A value that belongs to a planner, as JSON.
///
/// Text, because ranks exchange plans in a format that does not describe
/// itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanData(String);

/// Data of single items, such as what a storage must know about them.
pub type StorageData = BTreeMap<MetadataIndex, PlanData>;

/// A planner's data that cannot be written or read as JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot convert planner data: {message}")]
#[allow(missing_docs)]
pub struct PlanDataError {
    pub message: String,
}

impl From<serde_json::Error> for PlanDataError {
    fn from(error: serde_json::Error) -> Self {
        Self { message: error.to_string() }
    }
}

impl PlanData {
    /// Serializes a value.
    pub fn new<T: Serialize + ?Sized>(value: &T) -> Result<Self, PlanDataError> {
        Ok(Self(serde_json::to_string(value)?))
    }

    /// Deserializes the value.
    pub fn get<T: DeserializeOwned>(&self) -> Result<T, PlanDataError> {
        Ok(serde_json::from_str(&self.0)?)
    }

    /// The JSON text.
    pub fn as_json(&self) -> &str {
        &self.0
    }
}

impl Serialize for PlanData {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            return serializer.serialize_str(&self.0);
        }
        let value: &RawValue = serde_json::from_str(&self.0).map_err(serde::ser::Error::custom)?;
        value.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for PlanData {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            let text = String::deserialize(deserializer)?;
            serde_json::from_str::<&RawValue>(&text).map_err(D::Error::custom)?;
            return Ok(Self(text));
        }
        Ok(Self(Box::<RawValue>::deserialize(deserializer)?.get().to_owned()))
    }
}

/// Storage data as a list of pairs: JSON has no keys but text.
pub(crate) mod storage_data_pairs {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::{MetadataIndex, PlanData, StorageData};

    pub(crate) fn serialize<S: Serializer>(data: &StorageData, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(data)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<StorageData, D::Error> {
        Ok(Vec::<(MetadataIndex, PlanData)>::deserialize(deserializer)?.into_iter().collect())
    }
}
