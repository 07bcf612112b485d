//! Tool calls in generated text.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A call of a tool.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct ToolCall {
    pub(crate) name: String,
    pub(crate) arguments: Map<String, Value>,
}

/// Why a text is not a valid call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub(crate) enum InvalidCall {
    #[error("no JSON object")]
    NoObject,
    #[error("no `name`, or one that is not a string")]
    NoName,
    #[error("no `arguments`, or some that are not an object")]
    NoArguments,
    #[error("`{0}` is missing")]
    Missing(String),
    #[error("`{0}` has another type")]
    WrongType(String),
}

impl ToolCall {
    /// Finds a call: the whole text, a fenced block, or the first object in the
    /// text, whichever is JSON first. `tool_calls` and `function`, as servers and
    /// chat templates write them, are looked into.
    pub(crate) fn find(text: &str) -> Result<Self, InvalidCall> {
        let candidates = [Some(text.trim()), fenced_block(text), first_object(text)];
        let parsed = candidates.into_iter().flatten().find_map(object).ok_or(InvalidCall::NoObject)?;
        let mut call = parsed;
        if let Some(Value::Array(calls)) = call.get("tool_calls")
            && let Some(Value::Object(first)) = calls.first()
        {
            call = first.clone();
        }
        if let Some(Value::Object(function)) = call.get("function") {
            call = function.clone();
        }
        let Some(Value::String(name)) = call.remove("name") else { return Err(InvalidCall::NoName) };
        let arguments = match call.remove("arguments").or_else(|| call.remove("parameters")) {
            Some(Value::Object(arguments)) => arguments,
            // Some models write the arguments as a string of JSON.
            Some(Value::String(text)) => object(&text).ok_or(InvalidCall::NoArguments)?,
            _ => return Err(InvalidCall::NoArguments),
        };
        Ok(Self { name, arguments })
    }

    /// Checks the arguments against a JSON schema: required ones are there, and
    /// types match. Additional arguments are allowed.
    pub(crate) fn check(&self, parameters: &Value) -> Result<(), InvalidCall> {
        let required = parameters["required"].as_array().map_or(&[][..], Vec::as_slice);
        let missing =
            required.iter().filter_map(Value::as_str).find(|key| !self.arguments.contains_key(*key));
        if let Some(key) = missing {
            return Err(InvalidCall::Missing(key.to_owned()));
        }
        let wrong = self.arguments.iter().find(|(key, value)| {
            let wanted = &parameters["properties"][key.as_str()]["type"];
            !has_type(value, wanted)
        });
        wrong.map_or(Ok(()), |(key, _)| Err(InvalidCall::WrongType(key.clone())))
    }
}

fn object(text: &str) -> Option<Map<String, Value>> {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Some(object),
        Ok(Value::Array(calls)) => match calls.into_iter().next() {
            Some(Value::Object(first)) => Some(first),
            _ => None,
        },
        _ => None,
    }
}

/// The content of the first fenced block, without its language.
fn fenced_block(text: &str) -> Option<&str> {
    let (_, after) = text.split_once("```")?;
    let (block, _) = after.split_once("```")?;
    let content = block.find(['{', '[']).map_or("", |start| &block[start..]);
    Some(content.trim())
}

/// The first text in balanced braces. Braces in strings do not count.
fn first_object(text: &str) -> Option<&str> {
    let start = text.find('{')?;
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for (index, byte) in text.bytes().enumerate().skip(start) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' if !in_string => depth += 1,
            b'}' if !in_string => {
                depth -= 1;
                if depth == 0 {
                    return Some(&text[start..=index]);
                }
            }
            _ => {}
        }
    }
    None
}

/// Whether a value has a type of a JSON schema. An unknown type, or none, fits
/// everything; a boolean is not a number.
fn has_type(value: &Value, wanted: &Value) -> bool {
    match wanted {
        Value::Array(any) => any.iter().any(|one| has_type(value, one)),
        Value::String(name) => match name.as_str() {
            "string" => value.is_string(),
            "integer" => {
                value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|one| one.fract() == 0.0)
            }
            "number" => value.is_number(),
            "boolean" => value.is_boolean(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            "null" => value.is_null(),
            _ => true,
        },
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn calls_are_found_in_text() {
        let call = r#"{"name": "weather", "arguments": {"city": "Ax {\"}"}}"#;
        let texts = [
            call.to_owned(),
            format!("Sure!\n```json\n{call}\n```\nDone."),
            format!("I call {call} now, and {{\"name\": 1}} too."),
            format!("<tool_call>\n{call}\n</tool_call>"),
            format!("[{call}]"),
            format!(r#"{{"tool_calls": [{{"type": "function", "function": {call}}}]}}"#),
            r#"{"name": "weather", "arguments": "{\"city\": \"Ax {\\\"}\"}"}"#.to_owned(),
        ];
        for text in texts {
            let found = ToolCall::find(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!((found.name.as_str(), &found.arguments["city"]), ("weather", &json!("Ax {\"}")));
        }
    }

    #[test]
    fn other_texts_are_no_calls() {
        let error = |text: &str| ToolCall::find(text).unwrap_err();
        for text in ["", "It rains.", "{", "```", "{\"name\": \"x\"", "3", "[]", "}{", "\"{\\"] {
            assert_eq!(error(text), InvalidCall::NoObject, "{text}");
        }
        assert_eq!(error(r#"{"name": 3, "arguments": {}}"#), InvalidCall::NoName);
        assert_eq!(error(r#"{"name": "x", "arguments": 3}"#), InvalidCall::NoArguments);
        assert_eq!(error(r#"{"name": "x"}"#), InvalidCall::NoArguments);
        // Deep nesting is an error of the parser, not an overflow.
        assert_eq!(error(&"{\"a\":".repeat(100_000)), InvalidCall::NoObject);
    }

    #[test]
    fn arguments_follow_the_schema() {
        let schema = json!({"required": ["city"], "properties": {"city": {"type": "string"},
            "days": {"type": ["integer", "null"]}, "exact": {"type": "boolean"}, "any": {}}});
        let check = |arguments: Value| {
            let arguments = arguments.as_object().unwrap().clone();
            ToolCall { name: "weather".to_owned(), arguments }.check(&schema)
        };
        assert_eq!(check(json!({"city": "Ax", "days": 3, "any": [], "more": 1})), Ok(()));
        assert_eq!(check(json!({"city": "Ax", "days": null, "exact": true})), Ok(()));
        assert_eq!(check(json!({"days": 3})), Err(InvalidCall::Missing("city".to_owned())));
        assert_eq!(check(json!({"city": 3})), Err(InvalidCall::WrongType("city".to_owned())));
        assert_eq!(
            check(json!({"city": "Ax", "days": true})),
            Err(InvalidCall::WrongType("days".to_owned()))
        );
        assert_eq!(check(json!({"city": "Ax", "days": 1.5})), Err(InvalidCall::WrongType("days".to_owned())));
    }
}
