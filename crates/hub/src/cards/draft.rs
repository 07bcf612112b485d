//! A card that a program makes.

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value};

/// The fields of a card, as yet unchecked: they are when a store reads them.
#[derive(Clone, Debug, PartialEq)]
pub struct CardDraft {
    fields: Map<String, Value>,
}

impl CardDraft {
    /// A card of this name.
    pub fn new(name: &str) -> Self {
        Self { fields: Map::new() }.with("name", name)
    }

    /// The same with one more field.
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

/// The name first, and then the base: that is what a reader looks for.
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
