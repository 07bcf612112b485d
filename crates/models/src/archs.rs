//! Archs: named presets of a family's configuration, in YAML.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use weightloom_hub::{FamilyConfig, Fields};

/// Parses the presets of a family. A test checks that all of them are valid.
pub(crate) fn archs<C: FamilyConfig>(text: &str) -> Vec<(String, C)> {
    let all: BTreeMap<String, Map<String, Value>> = serde_saphyr::from_str(text).unwrap_or_default();
    let read = |(name, mut map): (String, Map<String, Value>)| {
        // Documentation, which a test compares.
        map.remove("parameters");
        Some((name, C::read(Fields::new(&map)).ok()?))
    };
    all.into_iter().filter_map(read).collect()
}
