//! What suites may name: built-in kinds and those of your own crate.

use serde_json::Value;
use weightloom_document::Section;
use weightloom_document::schema::UnsupportedSchema;

use crate::backend::Backends;
use crate::probe::Probes;

/// The kinds of probes and backends that suites may name. A value that is passed
/// in, not global state: two programs in one process may have different ones.
///
/// ```
/// use weightloom_sway::Extensions;
///
/// let extensions = Extensions::standard();
/// assert!(extensions.probes.find("delta_kl").is_ok());
/// assert!(extensions.backends.find("hf").is_ok());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Extensions {
    /// The kinds of probes.
    pub probes: Probes,
    /// The kinds of backends.
    pub backends: Backends,
}

impl Extensions {
    /// The built-in kinds.
    pub fn standard() -> Self {
        Self::default()
    }
}

/// The keys of a JSON schema. A type without fields has a schema without
/// properties.
pub(crate) fn section_of(schema: &Value) -> Result<Section, UnsupportedSchema> {
    let has_no_keys =
        schema.get("properties").is_none() && schema["additionalProperties"] == Value::Bool(false);
    if has_no_keys { Ok(Section { keys: Vec::new() }) } else { Section::from_json_schema(schema) }
}
