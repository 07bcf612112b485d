//! Conversations of several formats as messages of chat templates.
//!
//! Templates are given what transformers gives them: tool calls, tool results
//! and other fields as they are. Content that is a list of text parts becomes one
//! string, which templates render alike and which those without lists need.

use weightloom_hub::text::{Message, OrderedJson};

use super::error::DataError;
use super::record::{Record, kind};

/// The names of roles in ShareGPT files. Other names stay as they are.
const ROLES: [(&str, &str); 13] = [
    ("human", "user"),
    ("user", "user"),
    ("prompter", "user"),
    ("gpt", "assistant"),
    ("assistant", "assistant"),
    ("model", "assistant"),
    ("bot", "assistant"),
    ("chatgpt", "assistant"),
    ("function_call", "assistant"),
    ("tool", "tool"),
    ("observation", "tool"),
    ("function_response", "tool"),
    ("system", "system"),
];

const FUNCTION_CALL: &str = "function_call";

/// The list of messages under a key: `{"role": …, "content": …}`.
pub(super) fn messages(record: &mut Record<'_>, key: &'static str) -> Result<Vec<Message>, DataError> {
    let data = record.take(key)?;
    message_list(record, key, data)
}

/// The messages that are under a key.
pub(super) fn message_list(
    record: &Record<'_>,
    key: &'static str,
    data: OrderedJson,
) -> Result<Vec<Message>, DataError> {
    let list = list(record, key, data)?;
    let message = |(at, data)| {
        let found = match &data {
            OrderedJson::Map(_) => "an object without a string `role`",
            other => kind(other),
        };
        let wrong = || record.wrong(format!("{key}[{at}]"), "an object with a string `role`", found);
        let message = Message::try_from(data).map_err(|_| wrong())?;
        joined(record, message, &format!("{key}[{at}].content"))
    };
    list.into_iter().enumerate().map(message).collect()
}

/// A list of messages that is not empty.
fn list(record: &Record<'_>, key: &'static str, data: OrderedJson) -> Result<Vec<OrderedJson>, DataError> {
    let list = match data {
        // In a table, a list is JSON in a field.
        OrderedJson::Text(text) if text.trim_start().starts_with('[') => {
            serde_json::from_str(&text).unwrap_or(OrderedJson::Text(text))
        }
        list => list,
    };
    match list {
        OrderedJson::List(list) if !list.is_empty() => Ok(list),
        OrderedJson::List(_) => Err(record.wrong(key.to_owned(), "a list of messages", "an empty list")),
        other => Err(record.wrong(key.to_owned(), "a list of messages", kind(&other))),
    }
}

/// The message with its text parts joined.
fn joined(record: &Record<'_>, message: Message, key: &str) -> Result<Message, DataError> {
    let Some(OrderedJson::List(parts)) = message.get("content") else { return Ok(message) };
    let mut text = String::new();
    for (at, part) in parts.iter().enumerate() {
        let (what, found) = match part {
            OrderedJson::Text(part) => {
                text += part;
                continue;
            }
            OrderedJson::Map(fields) => {
                let get = |name: &str| fields.iter().find(|(key, _)| key == name).map(|(_, value)| value);
                match (get("type"), get("text")) {
                    (None, Some(OrderedJson::Text(part))) => {
                        text += part;
                        continue;
                    }
                    (Some(OrderedJson::Text(kind)), Some(OrderedJson::Text(part))) if kind == "text" => {
                        text += part;
                        continue;
                    }
                    (Some(OrderedJson::Text(kind)), _) if kind != "text" => ("", "a part of another type"),
                    (_, Some(other)) => (".text", kind(other)),
                    (_, None) => ("", "an object without `text`"),
                }
            }
            other => ("", kind(other)),
        };
        return Err(record.wrong(format!("{key}[{at}]{what}"), "a text part", found));
    }
    Ok(message.with("content", text))
}

/// The messages of a ShareGPT record: `{"from": …, "value": …}`, or as in chats.
pub(super) fn sharegpt(record: &mut Record<'_>) -> Result<Vec<Message>, DataError> {
    let key = "conversations";
    let system = record.optional_text("system")?;
    let data = record.take(key)?;
    let list = list(record, key, data)?;
    let mut messages = Vec::with_capacity(list.len() + 1);
    if !system.is_empty() {
        messages.push(Message::new("system", system));
    }
    for (at, turn) in list.into_iter().enumerate() {
        let place = format!("{key}[{at}]");
        let OrderedJson::Map(fields) = turn else {
            return Err(record.wrong(place, "an object with `from` and `value`", kind(&turn)));
        };
        let get = |name: &str| fields.iter().find(|(key, _)| key == name).map(|(_, value)| value);
        let from = match get("from").or_else(|| get("role")) {
            Some(OrderedJson::Text(from)) => from.clone(),
            Some(other) => return Err(record.wrong(format!("{place}.from"), "a string", kind(other))),
            None => {
                let found = "an object without `from`";
                return Err(record.wrong(place, "an object with `from` and `value`", found));
            }
        };
        let value = match get("value").or_else(|| get("content")) {
            Some(value) => value.clone(),
            None if get("tool_calls").is_some() => OrderedJson::Null,
            None => {
                let found = "an object without `value`";
                return Err(record.wrong(place, "an object with `from` and `value`", found));
            }
        };
        let role = ROLES.iter().find(|(name, _)| *name == from).map_or(&*from, |(_, role)| role);
        let mut message = if from == FUNCTION_CALL {
            let calls = tool_calls(&value).ok_or_else(|| {
                let expected = "JSON with `name` and `arguments`";
                record.wrong(format!("{place}.value"), expected, "other text")
            })?;
            Message::new(role, "").with("tool_calls", OrderedJson::List(calls))
        } else {
            joined(record, Message::new(role, value), &format!("{place}.value"))?
        };
        for (name, value) in fields {
            if !["from", "value", "role", "content"].contains(&&*name) {
                message = message.with(&name, value);
            }
        }
        messages.push(message);
    }
    Ok(messages)
}

/// The calls of a `function_call` turn, as templates expect them.
fn tool_calls(value: &OrderedJson) -> Option<Vec<OrderedJson>> {
    let calls = match value {
        OrderedJson::Text(text) => serde_json::from_str(text).ok()?,
        other => other.clone(),
    };
    let calls = match calls {
        OrderedJson::List(calls) => calls,
        call => vec![call],
    };
    let call = |call: OrderedJson| {
        let OrderedJson::Map(fields) = &call else { return None };
        fields.iter().any(|(key, value)| key == "name" && matches!(value, OrderedJson::Text(_))).then(|| {
            let kind = ("type".to_owned(), OrderedJson::from("function"));
            OrderedJson::Map(vec![kind, ("function".to_owned(), call.clone())])
        })
    };
    calls.into_iter().map(call).collect::<Option<Vec<_>>>().filter(|calls| !calls.is_empty())
}

/// The messages of an Alpaca record: an instruction, its input after a blank
/// line, and the output.
pub(super) fn alpaca(record: &mut Record<'_>) -> Result<Vec<Message>, DataError> {
    let (instruction, output) = (record.text("instruction")?, record.text("output")?);
    let (input, system) = (record.optional_text("input")?, record.optional_text("system")?);
    let mut messages = Vec::with_capacity(3);
    if !system.is_empty() {
        messages.push(Message::new("system", system));
    }
    messages.extend(history(record)?);
    let question = match (instruction.is_empty(), input.is_empty()) {
        (_, true) => instruction,
        (true, false) => input,
        (false, false) => format!("{instruction}\n\n{input}"),
    };
    messages.push(Message::new("user", question));
    messages.push(Message::new("assistant", output));
    Ok(messages)
}

/// Earlier turns of an Alpaca record: pairs of an instruction and its output.
fn history(record: &mut Record<'_>) -> Result<Vec<Message>, DataError> {
    let list = match record.find("history") {
        None | Some(OrderedJson::Null) => return Ok(Vec::new()),
        Some(OrderedJson::List(list)) => list,
        Some(other) => return Err(record.wrong("history".to_owned(), "a list of pairs", kind(&other))),
    };
    let mut messages = Vec::with_capacity(2 * list.len());
    for (at, pair) in list.into_iter().enumerate() {
        match pair {
            OrderedJson::List(pair) if pair.len() == 2 => {
                for (role, said) in ["user", "assistant"].into_iter().zip(pair) {
                    let OrderedJson::Text(said) = said else {
                        return Err(record.wrong(format!("history[{at}]"), "a pair of strings", kind(&said)));
                    };
                    messages.push(Message::new(role, said));
                }
            }
            other => return Err(record.wrong(format!("history[{at}]"), "a pair of strings", kind(&other))),
        }
    }
    Ok(messages)
}

/// The tools that a conversation may call: a list, or a list as JSON in a string.
pub(super) fn tools(record: &mut Record<'_>) -> Result<Option<Vec<OrderedJson>>, DataError> {
    match record.find("tools") {
        None | Some(OrderedJson::Null) => Ok(None),
        Some(OrderedJson::List(tools)) => Ok(Some(tools)),
        Some(OrderedJson::Text(text)) if text.trim().is_empty() => Ok(None),
        Some(OrderedJson::Text(text)) => match serde_json::from_str(&text) {
            Ok(OrderedJson::List(tools)) => Ok(Some(tools)),
            _ => Err(record.wrong("tools".to_owned(), "a list of tools", "a string without a JSON list")),
        },
        Some(other) => Err(record.wrong("tools".to_owned(), "a list of tools", kind(&other))),
    }
}
