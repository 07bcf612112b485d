//! Messages of chats in training data.

use serde_json::Value;

use crate::prompt::{ChatMessage, Role};

/// A chat up to the first call of a tool. What follows answers the tool's result,
/// which prompts of a suite do not have.
#[derive(Debug)]
pub(super) struct Turns {
    pub(super) messages: Vec<ChatMessage>,
    /// The call after these messages.
    pub(super) call: Option<Call>,
    /// Texts of the assistant after that call.
    pub(super) later_answers: Vec<String>,
}

/// A call of a tool by the assistant.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) name: String,
    /// The call as JSON.
    pub(super) text: String,
}

impl Turns {
    /// Parses a list, in OpenAI's or ShareGPT's format.
    pub(super) fn of(value: &Value) -> Result<Self, String> {
        let list = list(value)?;
        let call = list.iter().enumerate().find_map(|(at, value)| Some((at, Call::of(value)?)));
        let (before, after) = list.split_at(call.as_ref().map_or(list.len(), |(at, _)| *at));
        let later = after.iter().filter_map(|value| message(value).ok());
        let later = later.filter(|one| one.role == Role::Assistant && !one.content.trim().is_empty());
        Ok(Self {
            messages: before.iter().map(message).collect::<Result<_, _>>()?,
            call: call.map(|(_, call)| call),
            later_answers: later.map(|one| one.content).collect(),
        })
    }
}

impl Call {
    /// The first call of a message.
    fn of(message: &Value) -> Option<Self> {
        let call = message.get("tool_calls")?.as_array()?.first()?;
        let function = call.get("function").unwrap_or(call);
        let name = function.get("name")?.as_str()?.to_owned();
        Some(Self { name, text: function.to_string() })
    }
}

/// The messages of a list, in OpenAI's or ShareGPT's format.
pub(super) fn messages(value: &Value) -> Result<Vec<ChatMessage>, String> {
    list(value)?.iter().map(message).collect()
}

fn list(value: &Value) -> Result<&[Value], String> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| "its messages are not a list".to_owned())
}

fn message(value: &Value) -> Result<ChatMessage, String> {
    let text = |key: &str| value.get(key).and_then(Value::as_str);
    let name = text("role").or_else(|| text("from")).ok_or("a message has no `role`")?;
    let role = match name {
        "system" | "developer" => Role::System,
        "user" | "human" => Role::User,
        "assistant" | "gpt" | "chatgpt" | "model" | "bot" => Role::Assistant,
        other => return Err(format!("unknown role `{other}`")),
    };
    let content = value.get("content").or_else(|| value.get("value"));
    Ok(ChatMessage { role, content: content.and_then(content_text).ok_or("a message has no text")? })
}

/// The text of a content: a string, or a list of parts.
fn content_text(content: &Value) -> Option<String> {
    match content {
        Value::String(text) => Some(text.clone()),
        Value::Array(parts) => {
            parts.iter().map(|part| part.get("text").and_then(Value::as_str)).collect::<Option<String>>()
        }
        _ => None,
    }
}
