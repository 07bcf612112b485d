//! Training data as a document: chats, prompts with completions, preferences and
//! texts, as lines of JSON or as a JSON list.
//!
//! Each record becomes a section. Its content is what the model learned to
//! write: the assistant's answers, the completion, the better answer or the text.

use serde_json::{Map, Value};

use super::document::{Document, DocumentError, DocumentWarning};
use super::turns::{Turns, messages};
use super::{Section, SectionKind, SectionPreference, SectionQuestion, SectionToolCall};
use crate::prompt::{ChatMessage, Prompt, Role};

/// The most records that become sections. They are spread over the file.
pub(super) const MOST_RECORDS: usize = 32;

/// Characters of a question in the name of its section.
const TAG_CHARS: usize = 48;

/// Parses training data. `file` names the text in errors.
pub(super) fn read(text: &str, file: &str) -> Result<Document, DocumentError> {
    let records = match text.trim_start().starts_with('[') {
        true => list(text, file)?,
        false => lines(text),
    };
    let mut warnings = Vec::new();
    let mut sections = Vec::new();
    for (line, record) in records {
        match record.and_then(|record| section(&record, line)) {
            Ok(section) => sections.push(section),
            Err(problem) => warnings.push(DocumentWarning::Record { line, problem }),
        }
    }
    if sections.is_empty() {
        return Err(DocumentError::NoRecords { file: file.to_owned() });
    }
    let found = sections.len();
    let sections: Vec<Section> = spread(sections, MOST_RECORDS);
    if sections.len() < found {
        warnings.push(DocumentWarning::SomeRecords { used: sections.len(), found });
    }
    Ok(Document::of(sections, warnings))
}

/// At most `most` items, evenly spread.
pub(crate) fn spread<T>(items: Vec<T>, most: usize) -> Vec<T> {
    let count = items.len();
    if count <= most {
        return items;
    }
    // Item `at` is taken if the number of items due changes there.
    let due = |at: usize| at * most / count;
    items.into_iter().enumerate().filter(|(at, _)| due(*at) != due(at + 1)).map(|(_, item)| item).collect()
}

type Numbered = Vec<(usize, Result<Value, String>)>;

fn lines(text: &str) -> Numbered {
    let numbered = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    numbered.map(|(at, line)| (at + 1, serde_json::from_str(line).map_err(|error| syntax(&error)))).collect()
}

fn list(text: &str, file: &str) -> Result<Numbered, DocumentError> {
    let failed = |error: serde_json::Error| DocumentError::Json {
        file: file.to_owned(),
        line: error.line(),
        message: syntax(&error),
    };
    let records: Vec<Value> = serde_json::from_str(text).map_err(failed)?;
    Ok(records.into_iter().enumerate().map(|(at, record)| (at + 1, Ok(record))).collect())
}

fn syntax(error: &serde_json::Error) -> String {
    let message = error.to_string();
    message.split(" at line ").next().unwrap_or_default().to_owned()
}

/// A record as a section, or why it is not one.
fn section(record: &Value, line: usize) -> Result<Section, String> {
    let Value::Object(fields) = record else { return Err("it is not a JSON object".to_owned()) };
    let has = |key: &str| fields.contains_key(key);
    let section = if has("chosen") && has("rejected") {
        preference(fields)?
    } else if has("messages") {
        chat(&Turns::of(&fields["messages"])?, fields)?
    } else if has("conversations") {
        let mut turns = Turns::of(&fields["conversations"])?;
        // Some files have the system prompt beside the turns.
        if let Some(Value::String(system)) = fields.get("system")
            && turns.messages.first().is_some_and(|first| first.role != Role::System)
            && !system.trim().is_empty()
        {
            turns.messages.insert(0, ChatMessage::new(Role::System, system));
        }
        chat(&turns, fields)?
    } else if has("completion") || has("output") || has("response") {
        completion(fields)?
    } else if let Some(Value::String(text)) = fields.get("text") {
        if text.trim().is_empty() {
            return Err("its text is empty".to_owned());
        }
        new(SectionKind::Prose, text.clone())
    } else {
        let keys: Vec<&str> = fields.keys().map(String::as_str).collect();
        return Err(format!("its keys are of no known format: {}", keys.join(", ")));
    };
    Ok(tagged(section, line))
}

fn new(kind: SectionKind, content: String) -> Section {
    Section {
        id: String::new(),
        kind,
        content,
        questions: Vec::new(),
        preferences: Vec::new(),
        tool_calls: Vec::new(),
        tag: None,
    }
}

/// Names a section by its line and first question.
fn tagged(section: Section, line: usize) -> Section {
    let asked = section.questions.first().map(|question| &question.prompt);
    let asked = asked.or(section.preferences.first().map(|preference| &preference.prompt));
    let asked = asked.or(section.tool_calls.first().map(|call| &call.prompt));
    let text = asked.map_or(section.content.as_str(), Prompt::question);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let start: String = words.chars().take(TAG_CHARS).collect();
    let dots = if words.chars().count() > TAG_CHARS { "…" } else { "" };
    Section { tag: Some(format!("line {line}: {start}{dots}")), ..section }
}

/// A chat: each answer is asked for with the messages before it.
fn chat(turns: &Turns, fields: &Map<String, Value>) -> Result<Section, String> {
    let messages = &turns.messages;
    let questions: Vec<SectionQuestion> = messages
        .iter()
        .enumerate()
        .filter(|(_, message)| message.role == Role::Assistant && !message.content.trim().is_empty())
        .filter_map(|(at, answer)| {
            let prompt = prompt(&messages[..at])?;
            Some(SectionQuestion { prompt, gold: answer.content.clone() })
        })
        .collect();
    let mut tool_calls = Vec::new();
    if let Some(call) = &turns.call
        && let Some(prompt) = prompt(messages)
        && let Some(tool_spec) = described_tool(fields, &call.name)
    {
        tool_calls.push(SectionToolCall { prompt, tool_spec });
    }
    let mut answers: Vec<&str> = questions.iter().map(|question| question.gold.as_str()).collect();
    answers.extend(turns.later_answers.iter().map(String::as_str));
    if answers.is_empty() {
        answers.extend(turns.call.as_ref().map(|call| call.text.as_str()));
    }
    if answers.is_empty() {
        return Err("no assistant's answer follows a user's message".to_owned());
    }
    let content = answers.join("\n\n");
    Ok(Section { questions, tool_calls, ..new(SectionKind::Instruction, content) })
}

/// The tool of this name in `tools` of a record.
fn described_tool(fields: &Map<String, Value>, name: &str) -> Option<Map<String, Value>> {
    let tools = fields.get("tools")?.as_array()?;
    let functions =
        tools.iter().map(|tool| tool.get("function").unwrap_or(tool)).filter_map(Value::as_object);
    functions.into_iter().find(|function| function.get("name").and_then(Value::as_str) == Some(name)).cloned()
}

/// Messages as a prompt; a question alone is plain text. None unless the user
/// spoke last.
fn prompt(messages: &[ChatMessage]) -> Option<Prompt> {
    match messages {
        [ChatMessage { role: Role::User, content }] => Some(Prompt::from(content)),
        [.., ChatMessage { role: Role::User, .. }] => Some(Prompt::Messages(messages.to_vec())),
        _ => None,
    }
}

/// A prompt with a completion, or an instruction with its output.
fn completion(fields: &Map<String, Value>) -> Result<Section, String> {
    let text = |key: &str| fields.get(key).and_then(Value::as_str).filter(|text| !text.trim().is_empty());
    let gold = match fields.get("completion") {
        Some(list @ Value::Array(_)) => answer(list)?,
        _ => {
            let found = ["completion", "output", "response"].into_iter().find_map(text);
            found.ok_or("its completion is empty")?.to_owned()
        }
    };
    let prompt = match fields.get("prompt") {
        Some(list @ Value::Array(_)) => {
            prompt(&messages(list)?).ok_or("its prompt does not end with a user's message")?
        }
        _ => {
            let asked = text("prompt").or_else(|| text("instruction")).ok_or("it has no prompt")?;
            match text("input") {
                Some(input) => Prompt::from(format!("{asked}\n\n{input}")),
                None => Prompt::from(asked),
            }
        }
    };
    let questions = vec![SectionQuestion { prompt, gold: gold.clone() }];
    Ok(Section { questions, ..new(SectionKind::Instruction, gold) })
}

/// A better and a worse answer, as texts or as messages. Without a prompt, both
/// are whole chats that differ in their last message.
fn preference(fields: &Map<String, Value>) -> Result<Section, String> {
    let (chosen, rejected) = (answer(&fields["chosen"])?, answer(&fields["rejected"])?);
    let prompt = match fields.get("prompt") {
        Some(Value::String(text)) => Prompt::from(text),
        Some(list) => prompt(&messages(list)?).ok_or("its prompt does not end with a user's message")?,
        None => {
            let whole = messages(&fields["chosen"]).map_err(|_| "it has no prompt".to_owned())?;
            let before = whole.split_last().map_or(&[][..], |(_, before)| before);
            prompt(before).ok_or("it has no prompt")?
        }
    };
    let preferences = vec![SectionPreference { prompt, chosen: chosen.clone(), rejected }];
    Ok(Section { preferences, ..new(SectionKind::Preference, chosen) })
}

/// An answer: a text, or the last message of a list.
fn answer(value: &Value) -> Result<String, String> {
    let text = match value {
        Value::String(text) => text.clone(),
        list => messages(list)?.pop().map(|last| last.content).unwrap_or_default(),
    };
    if text.trim().is_empty() { Err("an answer is empty".to_owned()) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;
    use serde_json::json;

    fn one(record: &str) -> Section {
        let mut document = read(record, "data.jsonl").unwrap();
        assert_eq!((document.sections.len(), document.warnings.len()), (1, 0), "{record}");
        document.sections.remove(0)
    }

    fn user(content: &str) -> ChatMessage {
        ChatMessage::new(Role::User, content)
    }

    #[test]
    fn every_answer_of_a_chat_is_a_question() {
        let section = one(
            r#"{"messages": [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "Orla."},
                {"role": "user", "content": [{"type": "text", "text": "Where?"}]}, {"role": "assistant", "content": "At sea."}]}"#
                .replace('\n', " ")
                .as_str(),
        );
        assert_eq!(section.kind, SectionKind::Instruction);
        assert_eq!(section.content, "Orla.\n\nAt sea.");
        assert_eq!(section.tag.as_deref(), Some("line 1: Who are you?"));
        let asked: Vec<(&Prompt, &str)> =
            section.questions.iter().map(|one| (&one.prompt, one.gold.as_str())).collect();
        let second = Prompt::Messages(vec![
            user("Who are you?"),
            ChatMessage::new(Role::Assistant, "Orla."),
            user("Where?"),
        ]);
        assert_eq!(asked, [(&"Who are you?".into(), "Orla."), (&second, "At sea.")]);
    }

    #[test]
    fn sharegpt_has_other_names() {
        let section = one(
            r#"{"system": "Be brief.", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}"#,
        );
        let prompt = Prompt::Messages(vec![ChatMessage::new(Role::System, "Be brief."), user("Hi")]);
        assert_eq!(section.questions, [SectionQuestion { prompt, gold: "Hello".to_owned() }]);
    }

    #[test]
    fn prompts_have_completions_in_several_formats() {
        for record in [
            r#"{"prompt": "2 + 2?", "completion": "4"}"#,
            r#"{"prompt": [{"role": "user", "content": "2 + 2?"}], "completion": [{"role": "assistant", "content": "4"}]}"#,
            r#"{"instruction": "2 + 2?", "input": "", "output": "4"}"#,
        ] {
            let questions = vec![SectionQuestion { prompt: "2 + 2?".into(), gold: "4".to_owned() }];
            assert_eq!(one(record).questions, questions, "{record}");
        }
        let long = one(r#"{"instruction": "Add.", "input": "2, 2", "output": "4"}"#);
        assert_eq!(long.questions[0].prompt, "Add.\n\n2, 2".into());
        assert_eq!(one(r#"{"text": "Only words."}"#).kind, SectionKind::Prose);
    }

    #[test]
    fn preferences_are_texts_or_chats() {
        let expected = SectionPreference {
            prompt: "Hi".into(),
            chosen: "Hello!".to_owned(),
            rejected: "What?".to_owned(),
        };
        for record in [
            r#"{"prompt": "Hi", "chosen": "Hello!", "rejected": "What?"}"#,
            r#"{"prompt": [{"role": "user", "content": "Hi"}], "chosen": [{"role": "assistant", "content": "Hello!"}], "rejected": [{"role": "assistant", "content": "What?"}]}"#,
            r#"{"chosen": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}], "rejected": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "What?"}]}"#,
        ] {
            let section = one(record);
            assert_eq!(
                (section.kind, section.preferences),
                (SectionKind::Preference, vec![expected.clone()])
            );
        }
    }

    #[test]
    fn a_tool_call_ends_the_questions_of_a_chat() {
        let chat = |tools: Value, after: Value| {
            let mut messages = vec![
                json!({"role": "user", "content": "Hi"}),
                json!({"role": "assistant", "content": "Hello."}),
                json!({"role": "user", "content": "Rain?"}),
                json!({"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": "{}"}}]}),
            ];
            messages.extend(after.as_array().unwrap().iter().cloned());
            json!({"messages": messages, "tools": tools})
        };
        let tool = json!({"name": "weather", "parameters": {}});
        let later =
            json!([{"role": "tool", "content": "yes"}, {"role": "assistant", "content": "It rains."}]);
        let section = one(&chat(json!([{"type": "function", "function": tool}]), later.clone()).to_string());
        assert_eq!(section.content, "Hello.\n\nIt rains.");
        let golds: Vec<&str> = section.questions.iter().map(|one| one.gold.as_str()).collect();
        assert_eq!(golds, ["Hello."], "the answer after the tool's result has no prompt");
        let before = vec![user("Hi"), ChatMessage::new(Role::Assistant, "Hello."), user("Rain?")];
        let expected = SectionToolCall {
            prompt: Prompt::Messages(before),
            tool_spec: tool.as_object().unwrap().clone(),
        };
        assert_eq!(section.tool_calls, [expected]);
        // A tool that is not described cannot be asked for.
        assert_eq!(one(&chat(json!([]), later).to_string()).tool_calls, []);
        // A call alone is what was learned.
        let alone = r#"{"messages": [{"role": "user", "content": "Rain?"}, {"role": "assistant", "content": null,
            "tool_calls": [{"function": {"name": "weather", "arguments": {}}}]}], "tools": [{"name": "weather"}]}"#;
        let section = one(&alone.replace('\n', " "));
        let content: Value = serde_json::from_str(&section.content).unwrap();
        assert_eq!(content, json!({"name": "weather", "arguments": {}}));
        assert_eq!((section.questions.len(), section.tool_calls.len()), (0, 1));
    }

    #[test]
    fn every_record_that_is_left_out_is_named() {
        let text = "{\"text\": \"words\"}\n\nnot json\n{\"x\": 1}\n{\"messages\": [{\"role\": \"tool\", \"content\": \"x\"}]}\n3\n";
        let document = read(text, "data.jsonl").unwrap();
        let warnings: Vec<String> = document.warnings.iter().map(ToString::to_string).collect();
        assert_eq!((document.sections.len(), warnings.len()), (1, 4));
        for (warning, part) in warnings.iter().zip([
            "line 3: ",
            "line 4: ",
            "line 5: the record is omitted: unknown role `tool`",
            "line 6: ",
        ]) {
            assert!(warning.starts_with(part), "{warning}");
        }
        assert!(matches!(read("{}", "data.jsonl"), Err(DocumentError::NoRecords { .. })));
        assert!(matches!(read("[{", "data.json"), Err(DocumentError::Json { .. })));
    }

    #[test]
    fn long_data_are_sampled_evenly_and_say_so() {
        let text: String = (0..100).map(|at| format!("{{\"text\": \"words {at}\"}}\n")).collect();
        let document = read(&text, "data.jsonl").unwrap();
        assert_eq!(document.sections.len(), MOST_RECORDS);
        assert_eq!(document.warnings, [DocumentWarning::SomeRecords { used: MOST_RECORDS, found: 100 }]);
        let list = format!("[{}]", text.trim_end().replace('\n', ","));
        assert_eq!(read(&list, "data.json").unwrap(), document);
        assert_eq!(spread((0..6).collect(), 3), [1, 3, 5]);
        assert_eq!(spread((0..3).collect(), 3), [0, 1, 2]);
    }
}
