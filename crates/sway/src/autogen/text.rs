//! YAML with comments, formatted for people.

use serde_json::{Map, Value};

use super::material::Placed;
use crate::prompt::{ChatMessage, Prompt};

/// A YAML text under construction.
#[derive(Debug, Default)]
pub(crate) struct Yaml {
    text: String,
}

impl Yaml {
    /// Adds a line.
    pub(crate) fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Adds a comment on one line.
    pub(crate) fn comment(&mut self, words: &str) {
        let words: String =
            words.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
        self.line(&format!("# {words}"));
    }

    /// Adds an indented comment on one line.
    pub(super) fn comment_at(&mut self, indent: usize, words: &str) {
        self.line(&format!("{:indent$}# {words}", ""));
    }

    /// Starts an entry of the suite.
    pub(crate) fn entry(&mut self, name: &str, kind: &str, intent: &str) {
        self.line(&format!("\n  # {intent}"));
        self.line(&format!("  - name: {name}"));
        self.line(&format!("    kind: {kind}"));
    }

    /// Adds a key with a string.
    pub(crate) fn key(&mut self, indent: usize, key: &str, value: &str) {
        self.line(&format!("{:indent$}{key}: {}", "", quoted(value)));
    }

    /// Adds a key with an object. JSON on one line is YAML.
    pub(super) fn json(&mut self, indent: usize, key: &str, object: &Map<String, Value>) {
        let mut text = String::new();
        for letter in Value::Object(object.clone()).to_string().chars() {
            push_escaped(&mut text, letter);
        }
        self.line(&format!("{:indent$}{key}: {text}", ""));
    }

    /// Adds a list element that starts with a key and a prompt.
    pub(super) fn prompt_item(&mut self, indent: usize, key: &str, prompt: &Prompt) {
        self.line(&format!("{:indent$}- {key}: {}", "", prompt_text(prompt)));
    }

    /// Adds a key with a list of prompts, each with its place as a comment.
    pub(super) fn placed(&mut self, indent: usize, key: &str, prompts: &[Placed]) {
        self.line(&format!("{:indent$}{key}:", ""));
        for Placed { prompt, place } in prompts {
            let comment = place.as_ref().map_or_else(String::new, |place| format!("  # {place}"));
            self.line(&format!("{:indent$}  - {}{comment}", "", prompt_text(prompt)));
        }
    }

    /// Adds a key with a list of prompts.
    pub(super) fn prompts(&mut self, indent: usize, key: &str, prompts: &[Prompt]) {
        self.line(&format!("{:indent$}{key}:", ""));
        for prompt in prompts {
            self.line(&format!("{:indent$}  - {}", "", prompt_text(prompt)));
        }
    }

    /// Adds a key with a list of strings.
    pub(crate) fn list(&mut self, indent: usize, key: &str, values: &[impl AsRef<str>]) {
        self.line(&format!("{:indent$}{key}:", ""));
        for value in values {
            self.line(&format!("{:indent$}  - {}", "", quoted(value.as_ref())));
        }
    }

    /// The whole text.
    pub(crate) fn finish(self) -> String {
        self.text
    }
}

/// A prompt on one line.
fn prompt_text(prompt: &Prompt) -> String {
    match prompt {
        Prompt::Text(text) => quoted(text),
        Prompt::Messages(messages) => {
            let message = |message: &ChatMessage| {
                format!("{{role: {}, content: {}}}", message.role.name(), quoted(&message.content))
            };
            format!("[{}]", messages.iter().map(message).collect::<Vec<_>>().join(", "))
        }
    }
}

/// A double-quoted string on one line.
fn quoted(text: &str) -> String {
    let mut result = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => result.push_str("\\\""),
            '\\' => result.push_str("\\\\"),
            '\n' => result.push_str("\\n"),
            '\t' => result.push_str("\\t"),
            '\r' => result.push_str("\\r"),
            letter => push_escaped(&mut result, letter),
        }
    }
    result + "\""
}

/// Adds a letter of a string. Some parsers take control characters for line ends.
fn push_escaped(text: &mut String, letter: char) {
    if letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}' | '\u{feff}') {
        text.push_str(&format!("\\u{:04x}", u32::from(letter)));
    } else {
        text.push(letter);
    }
}
