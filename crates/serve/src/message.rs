//! Chat messages: from OpenAI's format to that of chat templates.

use weightloom_hub::text::{Message, OrderedJson};

use crate::api_error::ApiError;
use crate::json_object::unexpected;

/// Converts a message.
///
/// Joins content parts by newlines, renames the role `developer` to `system`,
/// which templates expect, and parses the arguments of tool calls, which
/// templates render as JSON.
pub(crate) fn parse(data: &OrderedJson, place: &str) -> Result<Message, ApiError> {
    let OrderedJson::Map(fields) = data else { return Err(unexpected(place, "an object", data)) };
    let get = |key: &str| fields.iter().find(|(name, _)| name == key).map(|(_, value)| value);
    let role = match get("role") {
        Some(OrderedJson::Text(role)) if role == "developer" => "system",
        Some(OrderedJson::Text(role)) => role,
        Some(other) => return Err(unexpected(&format!("{place}.role"), "a string", other)),
        None => return Err(ApiError::invalid_field(place, format!("`{place}` has no role"))),
    };
    let calls = get("tool_calls").filter(|calls| **calls != OrderedJson::Null);
    let at = format!("{place}.content");
    let content = match get("content") {
        Some(OrderedJson::Text(text)) => OrderedJson::Text(text.clone()),
        Some(OrderedJson::List(parts)) => OrderedJson::Text(join_parts(parts, &at)?),
        None | Some(OrderedJson::Null) if calls.is_some() => OrderedJson::Null,
        None | Some(OrderedJson::Null) => {
            return Err(ApiError::invalid_field(place, format!("`{place}` has no content")));
        }
        Some(other) => return Err(unexpected(&at, "a string or a list of parts", other)),
    };
    let mut message = Message::new(role, content);
    for (key, value) in fields {
        message = match key.as_str() {
            "role" | "content" => message,
            "tool_calls" => message.with(key, parse_arguments(value)),
            _ => message.with(key, value.clone()),
        };
    }
    Ok(message)
}

fn join_parts(parts: &[OrderedJson], place: &str) -> Result<String, ApiError> {
    let text = |(at, part)| part_text(part, format!("{place}[{at}]"));
    let texts: Vec<&str> = parts.iter().enumerate().map(text).collect::<Result<_, _>>()?;
    Ok(texts.join("\n"))
}

/// The text of a content part.
fn part_text(part: &OrderedJson, place: String) -> Result<&str, ApiError> {
    let OrderedJson::Map(fields) = part else { return Err(unexpected(&place, "an object", part)) };
    let get = |key: &str| fields.iter().find(|(name, _)| name == key).map(|(_, value)| value);
    let message = match (get("type"), get("text")) {
        (Some(OrderedJson::Text(kind)), Some(OrderedJson::Text(text))) if kind == "text" => return Ok(text),
        (Some(OrderedJson::Text(kind)), _) if kind == "text" => format!("`{place}` has no text"),
        (Some(OrderedJson::Text(kind)), _) => {
            format!("`{place}` has type `{kind}`, but the model supports only text")
        }
        _ => format!("`{place}` has no type"),
    };
    Err(ApiError::invalid_field(place, message))
}

/// Tool calls with their arguments as objects, where they are valid JSON objects.
fn parse_arguments(calls: &OrderedJson) -> OrderedJson {
    let OrderedJson::List(calls) = calls else { return calls.clone() };
    let arguments = |(key, value): &(String, OrderedJson)| {
        let object = match value {
            OrderedJson::Text(text) if key == "arguments" => serde_json::from_str(text).ok(),
            _ => None,
        };
        (
            key.clone(),
            object.filter(|data| matches!(data, OrderedJson::Map(_))).unwrap_or_else(|| value.clone()),
        )
    };
    let function = |(key, value): &(String, OrderedJson)| match value {
        OrderedJson::Map(fields) if key == "function" => {
            (key.clone(), OrderedJson::Map(fields.iter().map(arguments).collect()))
        }
        other => (key.clone(), other.clone()),
    };
    let call = |call: &OrderedJson| match call {
        OrderedJson::Map(fields) => OrderedJson::Map(fields.iter().map(function).collect()),
        other => other.clone(),
    };
    OrderedJson::List(calls.iter().map(call).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    fn message(text: &str) -> Result<Message, String> {
        let data: OrderedJson = serde_json::from_str(text).unwrap();
        parse(&data, "messages[0]").map_err(|error| error.message().to_owned())
    }

    #[test]
    fn text_parts_are_joined_and_images_are_rejected() {
        let two = message(
            r#"{"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}"#,
        );
        assert_eq!(two, Ok(Message::new("system", "a\nb")));
        assert_eq!(
            message(r#"{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}"#).unwrap_err(),
            "`messages[0].content[0]` has type `image_url`, but the model supports only text"
        );
        assert_eq!(message("3").unwrap_err(), "`messages[0]` must be an object, not 3");
        assert_eq!(message(r#"{"content": "a"}"#).unwrap_err(), "`messages[0]` has no role");
        assert_eq!(message(r#"{"role": "user"}"#).unwrap_err(), "`messages[0]` has no content");
    }

    #[test]
    fn tool_call_arguments_become_objects() {
        let called = message(
            r#"{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]}"#,
        )
        .unwrap();
        let expected: OrderedJson =
            serde_json::from_str(r#"[{"id": "1", "function": {"name": "f", "arguments": {"x": 1}}}]"#)
                .unwrap();
        assert_eq!(called.get("tool_calls"), Some(&expected));
        assert_eq!(called.get("content"), Some(&OrderedJson::Null));
    }
}
