//! YAML as a person would write it, with comments.

/// A text that grows line by line.
#[derive(Debug, Default)]
pub(super) struct Yaml {
    text: String,
}

impl Yaml {
    /// A line as it is.
    pub(super) fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// A comment. It stays in its line, whatever it says.
    pub(super) fn comment(&mut self, words: &str) {
        let words: String =
            words.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
        self.line(&format!("# {words}"));
    }

    /// The beginning of an entry of the suite.
    pub(super) fn entry(&mut self, name: &str, kind: &str, intent: &str) {
        self.line(&format!("\n  # {intent}"));
        self.line(&format!("  - name: {name}"));
        self.line(&format!("    kind: {kind}"));
    }

    /// A key with a text.
    pub(super) fn key(&mut self, indent: usize, key: &str, value: &str) {
        self.line(&format!("{:indent$}{key}: {}", "", quoted(value)));
    }

    /// A key with a text, which begins an element of a list.
    pub(super) fn item(&mut self, indent: usize, key: &str, value: &str) {
        self.line(&format!("{:indent$}- {key}: {}", "", quoted(value)));
    }

    /// A key with a list of texts.
    pub(super) fn list(&mut self, indent: usize, key: &str, values: &[impl AsRef<str>]) {
        self.line(&format!("{:indent$}{key}:", ""));
        for value in values {
            self.line(&format!("{:indent$}  - {}", "", quoted(value.as_ref())));
        }
    }

    /// The whole text.
    pub(super) fn finish(self) -> String {
        self.text
    }
}

/// A text in double quotes, in one line.
fn quoted(text: &str) -> String {
    let mut result = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => result.push_str("\\\""),
            '\\' => result.push_str("\\\\"),
            '\n' => result.push_str("\\n"),
            '\t' => result.push_str("\\t"),
            '\r' => result.push_str("\\r"),
            // Also what some readers take for the end of a line.
            letter if letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                result.push_str(&format!("\\u{:04x}", u32::from(letter)));
            }
            letter => result.push(letter),
        }
    }
    result + "\""
}
