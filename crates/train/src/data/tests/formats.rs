//! Formats of records, and records that cannot be read.

use std::sync::Arc;

use serde_json::{Value, json};
use weightloom_hub::text::{Message, OrderedJson};

use super::chats::CHATML;
use super::stage::{all_rows, folder, inside, settings, templates};
use crate::config::DataFormat;
use crate::data::error::DataError;
use crate::data::record::{Content, Origin, Parsed, parse};
use crate::data::{DataSettings, DropReason, Loader};

fn parsed(line: &Value, format: &DataFormat) -> Result<Parsed, DataError> {
    parse(&line.to_string(), format, &Origin { file: "x.jsonl".to_owned(), line: 3 })
}

/// The format, and roles with contents.
fn conversation(line: &Value) -> (&'static str, Vec<(String, OrderedJson)>) {
    let Parsed { content, format } = parsed(line, &DataFormat::Auto).unwrap();
    let Content::Chat { messages, .. } = content else { panic!("{content:?}") };
    let shown = |message: &Message| (message.role().to_owned(), message.get("content").unwrap().clone());
    (format, messages.iter().map(shown).collect())
}

fn says(role: &str, text: &str) -> (String, OrderedJson) {
    (role.to_owned(), OrderedJson::from(text))
}

#[test]
fn alpaca_records_are_conversations() {
    let line = json!({"instruction": "Add.", "input": "1 + 2", "output": "3", "text": "Add. 1 + 2 3"});
    let expected = vec![says("user", "Add.\n\n1 + 2"), says("assistant", "3")];
    assert_eq!(conversation(&line), ("alpaca", expected));
    let line = json!({"instruction": "Hi", "input": null, "output": "Ho"});
    assert_eq!(conversation(&line).1, vec![says("user", "Hi"), says("assistant", "Ho")]);
    let line = json!({
        "system": "be", "history": [["a", "b"]], "instruction": "", "input": "c", "output": "d",
    });
    let expected = [("system", "be"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")];
    assert_eq!(conversation(&line).1, expected.map(|(role, text)| says(role, text)));
}

#[test]
fn sharegpt_roles_become_those_of_templates() {
    let turns: Vec<Value> = ["system", "human", "gpt", "observation", "tool", "narrator"]
        .iter()
        .map(|from| json!({"from": from, "value": format!("by {from}"), "weight": 1}))
        .collect();
    let (format, found) = conversation(&json!({"id": 1, "conversations": turns}));
    let roles: Vec<&str> = found.iter().map(|(role, _)| role.as_str()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "tool", "narrator"]);
    assert_eq!((format, &found[1].1), ("sharegpt", &OrderedJson::from("by human")));
    // Some files have the keys of chats, or a system prompt apart.
    let line = json!({
        "system": "be",
        "conversations": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
    });
    let expected = vec![says("system", "be"), says("user", "q"), says("assistant", "a")];
    assert_eq!(conversation(&line).1, expected);
}

#[test]
fn function_calls_and_tools_have_the_form_of_templates() {
    let call = "{\"name\": \"add\", \"arguments\": {\"b\": 2, \"a\": 1}}";
    let line = json!({
        "conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": call}],
        "tools": "[{\"name\": \"add\"}]",
    });
    let content = parsed(&line, &DataFormat::Auto).unwrap().content;
    let Content::Chat { messages, tools } = content else { panic!() };
    let ordered = |text: &str| serde_json::from_str::<OrderedJson>(text).unwrap();
    assert_eq!(tools, Some(vec![ordered("{\"name\": \"add\"}")]));
    let expected = ordered(&format!("[{{\"type\": \"function\", \"function\": {call}}}]"));
    assert_eq!((messages[1].role(), messages[1].get("tool_calls")), ("assistant", Some(&expected)));
    // What chats have is passed on as it is.
    let calls = json!([{"id": "1", "function": {"name": "f", "arguments": "{}"}}]);
    let line = json!({"messages": [{"role": "assistant", "content": null, "tool_calls": calls}]});
    let content = parsed(&line, &DataFormat::Auto).unwrap().content;
    let Content::Chat { messages, .. } = content else { panic!() };
    assert_eq!(messages[0].get("tool_calls"), Some(&ordered(&calls.to_string())));
    assert_eq!(messages[0].get("content"), Some(&OrderedJson::Null));
}

#[test]
fn text_parts_are_joined() {
    let parts = json!([{"type": "text", "text": "one "}, "two ", {"text": "three"}]);
    let line = json!({"messages": [{"role": "user", "content": parts}]});
    assert_eq!(conversation(&line), ("chat", vec![says("user", "one two three")]));
}

#[test]
fn what_is_wrong_in_a_record_is_named() {
    let image = json!([{"type": "text", "text": "a"}, {"type": "image", "url": "x"}]);
    for (line, expected) in [
        (
            json!({"messages": [{"role": "user", "content": image}]}),
            "`messages[0].content[1]` must be a text part, not a part of another type",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": 7}]}]}),
            "`messages[0].content[0].text` must be a text part, not a number",
        ),
        (
            json!({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt"}]}),
            "`conversations[1]` must be an object with `from` and `value`, not an object without `value`",
        ),
        (
            json!({"conversations": ["a"]}),
            "`conversations[0]` must be an object with `from` and `value`, not a string",
        ),
        (
            json!({"conversations": [{"from": "function_call", "value": "add(1)"}]}),
            "`conversations[0].value` must be JSON with `name` and `arguments`, not other text",
        ),
        (
            json!({"instruction": "a", "output": "b", "history": [["x"]]}),
            "`history[0]` must be a pair of strings, not a list",
        ),
        (
            json!({"conversations": [], "tools": []}),
            "`conversations` must be a list of messages, not an empty list",
        ),
        (
            json!({"messages": [{"role": "user"}], "tools": "add"}),
            "`tools` must be a list of tools, not a string without a JSON list",
        ),
        (
            json!({"conversations": [], "messages": []}),
            "the keys `messages`, `conversations` belong to several formats",
        ),
        (
            json!({"instruction": "a", "outputs": "b"}),
            "cannot detect the format from the keys `instruction`, `outputs`",
        ),
    ] {
        let error = parsed(&line, &DataFormat::Auto).unwrap_err();
        assert_eq!(error.to_string(), format!("x.jsonl:3: {expected}"), "{line}");
    }
    let error = parsed(&json!({"instruction": "a", "outputs": "b"}), &DataFormat::Alpaca).unwrap_err();
    assert_eq!(error.to_string(), "x.jsonl:3: missing key `output`; found `instruction`, `outputs`");
}

#[test]
fn bad_lines_are_dropped_if_asked_and_the_first_is_named() {
    let lines =
        "{\"text\": 7}\n{\"text\": \"one\"}\n{\"text\": \n\n{\"instruction\": \"a\", \"output\": \"b\"}\n";
    let folder = folder(&[("x.jsonl", lines.as_bytes())]);
    let error = Loader::new(settings(&folder, json!({}))).map(|_| ()).unwrap_err();
    assert!(error.to_string().ends_with("x.jsonl:1: `text` must be a string, not a number"), "{error}");
    let settings = settings(&folder, json!({"bad_lines": "drop"}));
    let mut loader =
        Loader::new(DataSettings { templates: Arc::new(templates(CHATML)), ..settings }).unwrap();
    let summary = loader.summary(&mut |_| {}).unwrap();
    assert_eq!((summary.read, summary.used), (4, 2));
    let formats: Vec<(&str, u64)> =
        summary.formats.iter().map(|(name, documents)| (name.as_str(), *documents)).collect();
    assert_eq!(formats, [("alpaca", 1), ("text", 1)]);
    let [dropped] = &summary.dropped[..] else { panic!("{:?}", summary.dropped) };
    assert_eq!((dropped.reason, dropped.documents), (DropReason::BadLine, 2));
    let first = format!("{}:1: `text` must be a string, not a number", inside(&folder, "x.jsonl"));
    assert_eq!(dropped.first.as_deref(), Some(&*first));
    assert!(summary.check_dropped(0.4).is_err());
    assert_eq!(all_rows(&mut loader).len(), 1);
}
