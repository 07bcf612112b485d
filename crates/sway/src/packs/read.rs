//! From files to texts.

use std::io::Read;
use std::path::Path;
use std::sync::OnceLock;

use serde_json::{Map, Value};
use weightloom_errors::nearest;

use super::Packs;
use super::error::{PackError, PackFault, PackProblem};

/// The longest file that is taken.
const MOST_BYTES: u64 = 64 << 20;

/// What a key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Text,
    Texts,
    Pairs,
    Words,
    Entry,
}

/// Every key, and what it holds.
pub(super) const KEYS: [(&str, Form); 12] = [
    ("sentinel_prompts", Form::Texts),
    ("sentinel_doc", Form::Text),
    ("cluster_calibration", Form::Entry),
    ("preference_calibration", Form::Entry),
    ("paraphrase_calibration", Form::Entry),
    ("stuffing", Form::Text),
    ("synonyms", Form::Words),
    ("prefix_inject_lead_in", Form::Text),
    ("calibration_pack", Form::Pairs),
    ("external_corpus_public_domain_en", Form::Text),
    ("style_elicitation_prompts", Form::Texts),
    ("check_quick_prompts", Form::Texts),
];

/// Keys that may be there and say nothing here.
const PASSED_OVER: [&str; 2] = ["version", "auto_paraphrases_example"];

/// What every entry of a suite has, and no probe's own fields do.
const HEAD: [&str; 4] = ["name", "kind", "enabled", "weight"];

impl Packs {
    /// Our own texts.
    pub fn own() -> &'static Self {
        static OWN: OnceLock<Packs> = OnceLock::new();
        OWN.get_or_init(|| {
            const WHOLE: &str = "our own texts are whole, which a test reads";
            let mut map: Map<String, Value> =
                serde_json::from_str(include_str!("../../packs/texts.json")).expect(WHOLE);
            let items: Value =
                serde_json::from_str(include_str!("../../packs/calibration.json")).expect(WHOLE);
            map.insert("calibration_pack".to_owned(), items);
            let corpus = paragraphs(include_str!("../../packs/corpus.txt"));
            map.insert("external_corpus_public_domain_en".to_owned(), Value::String(corpus));
            let mut own: Packs = serde_json::from_value(Value::Object(map)).expect(WHOLE);
            own.origin = format!("own texts, version {}", Self::VERSION);
            own
        })
    }

    /// Reads texts from a JSON file. Keys that it does not have are ours.
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

    /// Reads texts from JSON. `file` is what it is called.
    pub fn read(text: &str, file: &str) -> Result<Self, PackError> {
        let value: Value = serde_json::from_str(text).map_err(|error| {
            let message = error.to_string();
            let message = message.split(" at line ").next().unwrap_or_default().to_owned();
            alone(file, PackProblem::Syntax { line: error.line(), column: error.column(), message })
        })?;
        let Value::Object(mut map) = value else { return Err(alone(file, PackProblem::NoObject)) };
        let mut faults = Vec::new();
        let known = KEYS.map(|(key, _)| key);
        for key in map.keys().filter(|key| !PASSED_OVER.contains(&key.as_str())) {
            if !known.contains(&key.as_str()) {
                let near = nearest(key, known).map(str::to_owned);
                let problem = PackProblem::UnknownKey { near, known: known.to_vec() };
                faults.push(PackFault { key: key.clone(), problem });
            }
        }
        let mut ours = Vec::new();
        let own = serde_json::to_value(Self::own()).unwrap_or_default();
        for (key, form) in KEYS {
            match map.get_mut(key) {
                Some(value) => faults.extend(wrong(key, form, value)),
                None => {
                    ours.push(key);
                    map.insert(key.to_owned(), own.get(key).cloned().unwrap_or_default());
                }
            }
        }
        if !faults.is_empty() {
            return Err(PackError { file: file.to_owned(), faults });
        }
        map.retain(|key, _| known.contains(&key.as_str()));
        let mut packs: Self = serde_json::from_value(Value::Object(map)).map_err(|_| {
            // Every form was checked above.
            alone(file, PackProblem::Kind { expected: "a set of texts" })
        })?;
        packs.origin = match ours.as_slice() {
            [] => file.to_owned(),
            ours => format!("{file}, and own texts, version {}, for {}", Self::VERSION, ours.join(", ")),
        };
        Ok(packs)
    }
}

fn alone(file: &str, problem: PackProblem) -> PackError {
    PackError { file: file.to_owned(), faults: vec![PackFault { key: String::new(), problem }] }
}

/// What is wrong with a value. Entries lose what every entry has.
fn wrong(key: &str, form: Form, value: &mut Value) -> Option<PackFault> {
    let is_full = |value: &Value| value.as_str().is_some_and(|text| !text.trim().is_empty());
    let problem = match (form, value) {
        (Form::Text, Value::String(text)) => text.trim().is_empty().then_some(PackProblem::Empty),
        (Form::Texts | Form::Pairs, Value::Array(list)) if list.is_empty() => Some(PackProblem::Empty),
        (Form::Texts, Value::Array(list)) => {
            (!list.iter().all(is_full)).then_some(PackProblem::Kind { expected: "a list of texts" })
        }
        (Form::Pairs, Value::Array(list)) => {
            let is_pair = |value: &Value| {
                value.as_array().is_some_and(|pair| pair.len() == 2 && pair.iter().all(is_full))
            };
            let expected = "a list of pairs [\"prompt\", \" continuation\"]";
            (!list.iter().all(is_pair)).then_some(PackProblem::Kind { expected })
        }
        (Form::Words | Form::Entry, Value::Object(map)) if map.is_empty() => Some(PackProblem::Empty),
        (Form::Words, Value::Object(map)) => {
            (!map.values().all(is_full)).then_some(PackProblem::Kind { expected: "an object of words" })
        }
        (Form::Entry, Value::Object(map)) => {
            map.retain(|key, _| !HEAD.contains(&key.as_str()));
            None
        }
        (form, _) => Some(PackProblem::Kind {
            expected: match form {
                Form::Text => "a text",
                Form::Texts => "a list of texts",
                Form::Pairs => "a list of pairs [\"prompt\", \" continuation\"]",
                Form::Words => "an object of words",
                Form::Entry => "an object of fields",
            },
        }),
    };
    problem.map(|problem| PackFault { key: key.to_owned(), problem })
}

/// The paragraphs of a file, with blank lines between. Lines that begin with
/// `#` are about it.
fn paragraphs(text: &str) -> String {
    let lines: Vec<&str> =
        text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    lines.join("\n\n")
}
