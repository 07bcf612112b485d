//! Archs: named presets of a family's configuration, kept as YAML.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use weightloom_hub::{FamilyConfig, Fields};

/// The presets in a text of ours. One that cannot be read is left out, which a
/// test would see.
pub(crate) fn archs<C: FamilyConfig>(text: &str) -> Vec<(String, C)> {
    let all: BTreeMap<String, Map<String, Value>> = serde_saphyr::from_str(text).unwrap_or_default();
    all.into_iter().filter_map(|(name, map)| Some((name, C::read(Fields::new(&map)).ok()?))).collect()
}
