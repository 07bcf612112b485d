//! Options of an extension: keys of the config that only it has.

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use weightloom_document::Section;

/// The options of an extension without any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NoOptions {}

/// An option with a value of the right type that the extension rejects.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct OptionProblem {
    pub option: String,
    pub problem: String,
}

impl OptionProblem {
    /// A problem with an option.
    pub fn new(option: &str, problem: impl Into<String>) -> Self {
        Self { option: option.to_owned(), problem: problem.into() }
    }
}

/// Without the registered names, which the schema does not know, the others are
/// exclusive.
pub(crate) fn one_of(schema: &mut schemars::Schema) {
    if let Some(choices) = schema.remove("anyOf") {
        schema.insert("oneOf".to_owned(), choices);
    }
}

/// Deserializes options; absent ones are an empty map.
pub(crate) fn read_options<T: DeserializeOwned>(options: Option<&Map<String, Value>>) -> Result<T, String> {
    let options = options.cloned().unwrap_or_default();
    serde_json::from_value(Value::Object(options)).map_err(|error| error.to_string())
}

/// What a factory says about options, or why they cannot be read.
pub(crate) fn problems_of<T: DeserializeOwned>(
    options: Option<&Map<String, Value>>,
    find: impl FnOnce(&T) -> Vec<OptionProblem>,
) -> Vec<OptionProblem> {
    match read_options(options) {
        Ok(options) => find(&options),
        Err(problem) => vec![OptionProblem::new("", problem)],
    }
}

/// The keys of options.
pub(crate) fn section_of<T: JsonSchema>() -> Result<Section, String> {
    let schema = schemars::schema_for!(T).to_value();
    // A type without fields has a schema without properties.
    if schema.get("properties").is_none() && schema["additionalProperties"] == Value::Bool(false) {
        return Ok(Section { keys: Vec::new() });
    }
    Section::from_json_schema(&schema).map_err(|error| error.0)
}
