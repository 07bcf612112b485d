//! Cards created in code.

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value};

/// Unchecked fields of a card; a store checks them.
#[derive(Clone, Debug, PartialEq)]
pub struct CardDraft {
    fields: Map<String, Value>,
}

impl CardDraft {
    /// A card with a name.
    pub fn new(name: &str) -> Self {
        Self { fields: Map::new() }.with("name", name)
    }

    /// Adds a field.
    pub fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(field.to_owned(), value.into());
        self
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.fields.get("name").and_then(Value::as_str).unwrap_or_default()
    }

    /// The fields by name.
    pub fn fields(&self) -> &Map<String, Value> {
        &self.fields
    }

    pub(super) fn into_fields(self) -> Map<String, Value> {
        self.fields
    }
}

/// Name and base first, for readers.
impl Serialize for CardDraft {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const FIRST: [&str; 2] = ["name", "base"];
        let first = FIRST.iter().filter_map(|key| self.fields.get_key_value(*key));
        let others = self.fields.iter().filter(|(key, _)| !FIRST.contains(&key.as_str()));
        let mut map = serializer.serialize_map(Some(self.fields.len()))?;
        for (key, value) in first.chain(others) {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}
