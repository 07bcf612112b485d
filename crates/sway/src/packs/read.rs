//! Reading text packs.

use std::io::Read;
use std::path::Path;
use std::sync::OnceLock;

use serde_json::{Map, Value};
use weightloom_errors::nearest;

use super::Packs;
use super::error::{PackError, PackKeyError, PackProblem};

/// The longest file that is accepted.
const MOST_BYTES: u64 = 64 << 20;

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueType {
    Text,
    Texts,
    Pairs,
    Words,
    Entry,
}

/// Every key, with the type of its value.
pub(super) const KEYS: [(&str, ValueType); 12] = [
    ("sentinel_prompts", ValueType::Texts),
    ("sentinel_doc", ValueType::Text),
    ("cluster_calibration", ValueType::Entry),
    ("preference_calibration", ValueType::Entry),
    ("paraphrase_calibration", ValueType::Entry),
    ("stuffing", ValueType::Text),
    ("synonyms", ValueType::Words),
    ("prefix_inject_lead_in", ValueType::Text),
    ("calibration_pack", ValueType::Pairs),
    ("external_corpus_public_domain_en", ValueType::Text),
    ("style_elicitation_prompts", ValueType::Texts),
    ("check_quick_prompts", ValueType::Texts),
];

/// Keys that are accepted and ignored.
const IGNORED: [&str; 2] = ["version", "auto_paraphrases_example"];

/// Keys that every entry of a suite has, which are not fields of a probe.
const HEAD: [&str; 4] = ["name", "kind", "enabled", "weight"];

impl Packs {
    /// The built-in texts.
    pub fn builtin() -> &'static Self {
        static BUILTIN: OnceLock<Packs> = OnceLock::new();
        BUILTIN.get_or_init(|| {
            const WHOLE: &str = "the built-in texts are valid, and a test reads them";
            let mut map: Map<String, Value> =
                serde_json::from_str(include_str!("../../packs/texts.json")).expect(WHOLE);
            let items: Value =
                serde_json::from_str(include_str!("../../packs/calibration.json")).expect(WHOLE);
            map.insert("calibration_pack".to_owned(), items);
            let corpus = paragraphs(include_str!("../../packs/corpus.txt"));
            map.insert("external_corpus_public_domain_en".to_owned(), Value::String(corpus));
            let mut builtin: Packs = serde_json::from_value(Value::Object(map)).expect(WHOLE);
            builtin.origin = format!("built-in texts, version {}", Self::VERSION);
            builtin
        })
    }

    /// Reads a JSON file. The built-in texts stand for missing keys.
    pub fn read_file(file: &Path) -> Result<Self, PackError> {
        let name = file.display().to_string();
        let alone = |problem| alone(&name, problem);
        let unreadable =
            |error: std::io::Error| alone(PackProblem::Unreadable { message: error.to_string() });
        let mut text = String::new();
        let opened = std::fs::File::open(file).map_err(unreadable)?;
        opened.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
        if text.len() as u64 > MOST_BYTES {
            return Err(alone(PackProblem::TooLong { most: MOST_BYTES }));
        }
        Self::read(&text, &name)
    }

    /// Parses JSON. `file` names the text in errors.
    pub fn read(text: &str, file: &str) -> Result<Self, PackError> {
        let value: Value = serde_json::from_str(text).map_err(|error| {
            let message = error.to_string();
            let message = message.split(" at line ").next().unwrap_or_default().to_owned();
            alone(file, PackProblem::Syntax { line: error.line(), column: error.column(), message })
        })?;
        let Value::Object(mut map) = value else { return Err(alone(file, PackProblem::NotAnObject)) };
        let mut errors = Vec::new();
        let known = KEYS.map(|(key, _)| key);
        for key in map.keys().filter(|key| !IGNORED.contains(&key.as_str())) {
            if !known.contains(&key.as_str()) {
                let near = nearest(key, known).map(str::to_owned);
                let problem = PackProblem::UnknownKey { near, known: known.to_vec() };
                errors.push(PackKeyError { key: key.clone(), problem });
            }
        }
        let mut missing = Vec::new();
        let builtin = serde_json::to_value(Self::builtin()).unwrap_or_default();
        for (key, kind) in KEYS {
            match map.get_mut(key) {
                Some(value) => errors.extend(check(key, kind, value)),
                None => {
                    missing.push(key);
                    map.insert(key.to_owned(), builtin.get(key).cloned().unwrap_or_default());
                }
            }
        }
        if !errors.is_empty() {
            return Err(PackError { file: file.to_owned(), errors });
        }
        map.retain(|key, _| known.contains(&key.as_str()));
        let mut packs: Self = serde_json::from_value(Value::Object(map)).map_err(|_| {
            // Every type was checked above.
            alone(file, PackProblem::Kind { expected: "a set of texts" })
        })?;
        packs.origin = match missing.as_slice() {
            [] => file.to_owned(),
            missing => {
                let missing = missing.join(", ");
                format!("{file}, with built-in texts, version {}, for {missing}", Self::VERSION)
            }
        };
        Ok(packs)
    }
}

fn alone(file: &str, problem: PackProblem) -> PackError {
    PackError { file: file.to_owned(), errors: vec![PackKeyError { key: String::new(), problem }] }
}

/// The error of a value. Removes the keys of entries that are not fields.
fn check(key: &str, kind: ValueType, value: &mut Value) -> Option<PackKeyError> {
    let is_full = |value: &Value| value.as_str().is_some_and(|text| !text.trim().is_empty());
    let problem = match (kind, value) {
        (ValueType::Text, Value::String(text)) => text.trim().is_empty().then_some(PackProblem::Empty),
        (ValueType::Texts | ValueType::Pairs, Value::Array(list)) if list.is_empty() => {
            Some(PackProblem::Empty)
        }
        (ValueType::Texts, Value::Array(list)) => {
            (!list.iter().all(is_full)).then_some(PackProblem::Kind { expected: "a list of texts" })
        }
        (ValueType::Pairs, Value::Array(list)) => {
            let is_pair = |value: &Value| {
                value.as_array().is_some_and(|pair| pair.len() == 2 && pair.iter().all(is_full))
            };
            let expected = "a list of pairs [\"prompt\", \" continuation\"]";
            (!list.iter().all(is_pair)).then_some(PackProblem::Kind { expected })
        }
        (ValueType::Words | ValueType::Entry, Value::Object(map)) if map.is_empty() => {
            Some(PackProblem::Empty)
        }
        (ValueType::Words, Value::Object(map)) => {
            (!map.values().all(is_full)).then_some(PackProblem::Kind { expected: "an object of words" })
        }
        (ValueType::Entry, Value::Object(map)) => {
            map.retain(|key, _| !HEAD.contains(&key.as_str()));
            None
        }
        (kind, _) => Some(PackProblem::Kind {
            expected: match kind {
                ValueType::Text => "a text",
                ValueType::Texts => "a list of texts",
                ValueType::Pairs => "a list of pairs [\"prompt\", \" continuation\"]",
                ValueType::Words => "an object of words",
                ValueType::Entry => "an object of fields",
            },
        }),
    };
    problem.map(|problem| PackKeyError { key: key.to_owned(), problem })
}

/// The paragraphs of a file, separated by blank lines. Lines that start with `#`
/// are comments.
fn paragraphs(text: &str) -> String {
    let lines: Vec<&str> =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    lines.join("\n\n")
}
