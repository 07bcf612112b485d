//! Reports as JSON: sorted keys, ASCII only, finite numbers only.

use std::fmt::Write;

use serde_json::Value;

use super::{Report, ReportError};
use crate::verdict::Verdict;

impl Report {
    /// The report as JSON. Equal reports give equal bytes.
    pub fn to_json(&self) -> String {
        // Numbers that are not finite become `null` here.
        let value = serde_json::to_value(self).unwrap_or(Value::Null);
        let mut text = String::new();
        write(&mut text, &value, 0);
        text.push('\n');
        text
    }

    /// Parses a report of this program or of dlm-sway, which may lack fields.
    /// `file` names the text in errors.
    pub fn from_json(text: &str, file: &str) -> Result<Self, ReportError> {
        let parsed = serde_json::from_str::<Value>(text).or_else(|error| {
            // dlm-sway may write NaN and Infinity, which JSON lacks.
            serde_json::from_str(&without_non_finite(text)).map_err(|_| error)
        });
        let value = parsed.map_err(|error| {
            let message = error.to_string();
            let message = message.split(" at line ").next().unwrap_or_default().to_owned();
            ReportError::Syntax { file: file.to_owned(), line: error.line(), column: error.column(), message }
        })?;
        let shape = |message: &str| ReportError::Shape { file: file.to_owned(), message: message.to_owned() };
        let Value::Object(mut map) = value else { return Err(shape("it is not an object")) };
        if !map.contains_key("probes") || !map.contains_key("score") {
            return Err(shape("`probes` or `score` is missing"));
        }
        if let Some(found) = map.get("schema_version").and_then(Value::as_u64).filter(|found| *found != 1) {
            return Err(ReportError::Version { file: file.to_owned(), found });
        }
        // A null counts as a missing field.
        map.retain(|_, value| !value.is_null());
        if let Some(score) = map.get_mut("score").and_then(Value::as_object_mut) {
            for (key, empty) in [
                ("overall", Value::from(0.0)),
                ("band", Value::from("noise")),
                ("components", Value::Object(Default::default())),
                ("weights", Value::Object(Default::default())),
                ("findings", Value::Array(Vec::new())),
            ] {
                if score.get(key).is_none_or(Value::is_null) {
                    score.insert(key.to_owned(), empty);
                }
            }
        }
        // The records decide: a verdict in the file cannot contradict them.
        map.remove("verdict");
        let mut report: Self =
            serde_json::from_value(Value::Object(map)).map_err(|error| shape(&error.to_string()))?;
        report.verdict = Verdict::of(&report.probes);
        Ok(report)
    }
}

/// Writes a value as JSON, with sorted keys and ASCII only.
pub(super) fn write(text: &mut String, value: &Value, depth: usize) {
    let indent = |text: &mut String, depth: usize| {
        text.push('\n');
        text.extend(std::iter::repeat_n(' ', 2 * depth));
    };
    match value {
        Value::Array(list) if !list.is_empty() => {
            text.push('[');
            for (index, item) in list.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                indent(text, depth + 1);
                write(text, item, depth + 1);
            }
            indent(text, depth);
            text.push(']');
        }
        Value::Object(map) if !map.is_empty() => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort_unstable();
            text.push('{');
            for (index, key) in keys.into_iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                indent(text, depth + 1);
                quoted(text, key);
                text.push_str(": ");
                write(text, &map[key], depth + 1);
            }
            indent(text, depth);
            text.push('}');
        }
        Value::String(inner) => quoted(text, inner),
        other => text.push_str(&other.to_string()),
    }
}

fn quoted(text: &mut String, inner: &str) {
    text.push('"');
    for letter in inner.chars() {
        match letter {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            ' '..='~' => text.push(letter),
            other => {
                let mut units = [0; 2];
                for unit in other.encode_utf16(&mut units) {
                    // Writing to a string cannot fail.
                    let _ = write!(text, "\\u{unit:04x}");
                }
            }
        }
    }
    text.push('"');
}

/// Replaces `NaN` and infinities outside of strings by `null`.
fn without_non_finite(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    let mut inside = false;
    while let Some(letter) = rest.chars().next() {
        let odd = ["NaN", "-Infinity", "Infinity"].into_iter().find(|odd| rest.starts_with(odd));
        match (inside, odd) {
            (false, Some(odd)) => {
                result.push_str("null");
                rest = &rest[odd.len()..];
                continue;
            }
            (true, _) if letter == '\\' => {
                // An escaped character does not end the string.
                let taken: String = rest.chars().take(2).collect();
                result.push_str(&taken);
                rest = &rest[taken.len()..];
                continue;
            }
            _ if letter == '"' => inside = !inside,
            _ => {}
        }
        result.push(letter);
        rest = &rest[letter.len_utf8()..];
    }
    result
}
