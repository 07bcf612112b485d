//! Prompts in a data file.

use std::path::Path;

use serde_json::Value;
use weightloom_files::read_text;

use super::MineError;
use crate::sections::Document;

/// The largest file that is read.
const MAX_TEXT: u64 = 1 << 30;

/// The most characters of a text that are used as a prompt.
const LONGEST: usize = 400;

/// Keys of a record that hold a prompt, in order of preference.
const KEYS: [&str; 6] = ["prompt", "question", "instruction", "messages", "conversations", "text"];

/// Roles and senders of the user in a chat.
const USERS: [&str; 2] = ["user", "human"];

/// Prompts found in a data file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidates {
    /// The prompts, in the order of the file.
    pub prompts: Vec<String>,
    /// Lines of records without a prompt.
    pub without: Vec<usize>,
}

impl Candidates {
    /// Reads a file: records of `.jsonl`, lines of `.txt`, paragraphs of `.md`,
    /// and questions and paragraphs of `.dlm`.
    pub fn read_file(file: &Path) -> Result<Self, MineError> {
        let name = file.display().to_string();
        let ending = file.extension().unwrap_or_default().to_string_lossy().to_lowercase();
        let text = || read_text(file, MAX_TEXT);
        match ending.as_str() {
            "jsonl" => Self::of_records(&text()?, &name),
            "txt" => Ok(Self::of_texts(text()?.lines())),
            "md" | "markdown" | "dlm" => Ok(Self::of_document(&Document::read_file(file)?)),
            _ => Err(MineError::Type { file: name, found: format!(".{ending}") }),
        }
    }

    fn of_texts<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        Self { prompts: texts.filter_map(beginning).collect(), without: Vec::new() }
    }

    fn of_document(document: &Document) -> Self {
        let questions = document.sections.iter().flat_map(|section| &section.questions);
        let paragraphs = document.sections.iter().flat_map(|section| section.content.split("\n\n"));
        Self::of_texts(questions.map(|question| question.prompt.question()).chain(paragraphs))
    }

    /// Reads JSON lines. `file` names the text in errors.
    pub fn of_records(text: &str, file: &str) -> Result<Self, MineError> {
        let mut found = Self::default();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let record: Value = serde_json::from_str(line).map_err(|error| MineError::Json {
                file: file.to_owned(),
                line: index + 1,
                message: error.to_string(),
            })?;
            match KEYS.iter().find_map(|key| prompt_of(record.get(key)?)).as_deref().and_then(beginning) {
                Some(prompt) => found.prompts.push(prompt),
                None => found.without.push(index + 1),
            }
        }
        Ok(found)
    }
}

/// The prompt in a value: a text, or the first message of the user.
fn prompt_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(messages) => messages.iter().find_map(|message| {
            let role = message.get("role").or_else(|| message.get("from"))?.as_str()?;
            let content = message.get("content").or_else(|| message.get("value"))?.as_str()?;
            USERS.contains(&role).then(|| content.to_owned())
        }),
        _ => None,
    }
}

/// The beginning of a text, cut between words.
fn beginning(text: &str) -> Option<String> {
    let text = text.trim();
    let cut = match text.char_indices().nth(LONGEST) {
        None => text,
        Some((end, _)) => {
            let whole = &text[..end];
            whole.rfind(char::is_whitespace).map_or(whole, |space| whole[..space].trim_end())
        }
    };
    (!cut.is_empty()).then(|| cut.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    #[test]
    fn every_kind_of_record_gives_its_prompt_and_others_are_counted() {
        let text = r#"{"prompt": "A?", "completion": "B"}
{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}]}

{"conversations": [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Yes"}]}
{"answer": "none"}
{"text": "   "}
{"instruction": "Do it", "output": "x"}
{"prompt": [{"role": "user", "content": "Chat"}], "chosen": []}
{"text": "Plain"}
"#;
        let found = Candidates::of_records(text, "data.jsonl").unwrap();
        assert_eq!(found.prompts, ["A?", "Hi", "Hello", "Do it", "Chat", "Plain"]);
        assert_eq!(found.without, [5, 6]);
        let error = Candidates::of_records("{}\n{", "data.jsonl").unwrap_err();
        assert!(error.to_string().starts_with("data.jsonl:2: invalid JSON"), "{error}");
    }

    #[test]
    fn long_texts_are_cut_between_words() {
        let long = "ünï word ".repeat(100);
        let cut = beginning(&long).unwrap();
        assert!(cut.chars().count() <= LONGEST && cut.chars().count() > LONGEST - 10);
        assert!(cut.ends_with("ünï") || cut.ends_with("word"), "{cut}");
        assert_eq!(beginning(&"x".repeat(999)).unwrap().len(), LONGEST);
        assert_eq!(beginning(" \n"), None);
    }

    #[test]
    fn files_are_read_by_their_type() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let file = folder.path().join(name);
            std::fs::write(&file, text).unwrap();
            Candidates::read_file(&file)
        };
        assert_eq!(write("a.txt", "One\n\n Two \n").unwrap().prompts, ["One", "Two"]);
        assert_eq!(write("a.md", "# T\n\nOne.\n\nTwo.\n").unwrap().prompts, ["One.", "Two."]);
        assert_eq!(write("a.jsonl", "{\"text\": \"x\"}\n").unwrap().prompts, ["x"]);
        let error = write("a.csv", "x").unwrap_err();
        assert!(error.to_string().contains("unsupported file type `.csv`"), "{error}");
        let missing = Candidates::read_file(&folder.path().join("none.txt"));
        assert!(matches!(missing, Err(MineError::File(_))));
    }
}
