//! Training data as a document: chats, prompts with completions, preferences and
//! texts, as lines of JSON or as a JSON list.
//!
//! Each record becomes a section. Its content is what the model learned to
//! write: the assistant's answers, the completion, the better answer or the text.

use serde_json::{Map, Value};

use super::document::{Document, DocumentError, DocumentWarning};
use super::{Section, SectionKind, SectionPreference, SectionQuestion};
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
        chat(&messages(&fields["messages"])?)?
    } else if has("conversations") {
        let mut turns = messages(&fields["conversations"])?;
        // Some files have the system prompt beside the turns.
        if let Some(Value::String(system)) = fields.get("system")
            && turns.first().is_some_and(|first| first.role != Role::System)
            && !system.trim().is_empty()
        {
            turns.insert(0, ChatMessage::new(Role::System, system));
        }
        chat(&turns)?
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
    Section { id: String::new(), kind, content, questions: Vec::new(), preferences: Vec::new(), tag: None }
}

/// Names a section by its line and first question.
fn tagged(section: Section, line: usize) -> Section {
    let asked = section.questions.first().map(|question| &question.prompt);
    let asked = asked.or(section.preferences.first().map(|preference| &preference.prompt));
    let text = asked.map_or(section.content.as_str(), Prompt::question);
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let start: String = words.chars().take(TAG_CHARS).collect();
    let dots = if words.chars().count() > TAG_CHARS { "…" } else { "" };
    Section { tag: Some(format!("line {line}: {start}{dots}")), ..section }
}

/// The messages of a list, in OpenAI's or ShareGPT's format.
fn messages(value: &Value) -> Result<Vec<ChatMessage>, String> {
    let Value::Array(list) = value else { return Err("its messages are not a list".to_owned()) };
    let message = |value: &Value| {
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
    };
    list.iter().map(message).collect()
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

/// A chat: each answer is asked for with the messages before it.
fn chat(messages: &[ChatMessage]) -> Result<Section, String> {
    let questions: Vec<SectionQuestion> = messages
        .iter()
        .enumerate()
        .filter(|(_, message)| message.role == Role::Assistant && !message.content.trim().is_empty())
        .filter_map(|(at, answer)| {
            let prompt = prompt(&messages[..at])?;
            Some(SectionQuestion { prompt, gold: answer.content.clone() })
        })
        .collect();
    if questions.is_empty() {
        return Err("no assistant's answer follows a user's message".to_owned());
    }
    let answers: Vec<&str> = questions.iter().map(|question| question.gold.as_str()).collect();
    let content = answers.join("\n\n");
    Ok(Section { questions, ..new(SectionKind::Instruction, content) })
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
