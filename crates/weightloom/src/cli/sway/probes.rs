//! `weightloom sway probes`: the probe kinds and their fields.

use std::process::ExitCode;

use clap::{Args, ValueHint};
use serde_json::{Value, json};
use weightloom::Registry;
use weightloom::sway::probe::{Kind, Probes};

use super::super::failure::Failure;
use super::super::output::{Output, table};

#[derive(Args)]
pub(in crate::cli) struct ProbesArgs {
    /// Show the fields of this kind.
    #[arg(value_hint = ValueHint::Other)]
    kind: Option<String>,
}

pub(super) fn run(args: &ProbesArgs, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    let probes = &registry.judging().probes;
    match &args.kind {
        Some(kind) => one(probes.find(kind).map_err(|error| Failure::user(&error))?, output),
        None => all(probes, output),
    }
}

fn all(probes: &Probes, output: Output) -> Result<ExitCode, Failure> {
    let list: Vec<Value> = probes.kinds().iter().map(described).collect();
    output.show(&list, |_| {
        let mut table = table(&["kind", "category", "question"], &[]);
        for kind in probes.kinds() {
            table.add_row([kind.name(), kind.about.category.name(), kind.about.question]);
        }
        format!("{table}\nRun `{} sway probes KIND` for the fields of a kind.", output.program)
    })
}

fn one(kind: &Kind, output: Output) -> Result<ExitCode, Failure> {
    let mut answer = described(kind);
    answer["fields"] = kind.schema();
    output.show(&answer, |_| {
        let about = kind.about;
        let mut table = table(&["field", "type", "default", "description"], &[]);
        let schema = kind.schema();
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let description = field["description"].as_str().unwrap_or_default().replace('\n', " ");
            table.add_row([name.clone(), type_of(field, &schema), default_of(field), description]);
        }
        format!(
            "{} ({}): {}\n{}\n{}\n\n{table}\nEvery entry also has: name, kind, enabled (true), weight (1), chat (auto | always | never).",
            about.kind, about.category, about.title, about.question, about.measure
        )
    })
}

fn described(kind: &Kind) -> Value {
    let about = kind.about;
    json!({
        "kind": about.kind,
        "category": about.category,
        "title": about.title,
        "description": about.summary,
        "question": about.question,
        "measure": about.measure,
    })
}

/// The type of a field, as a short phrase.
fn type_of(field: &Value, schema: &Value) -> String {
    if let Some(name) = field["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
        return type_of(&schema["$defs"][name], schema);
    }
    if let Some(choices) = field["anyOf"].as_array().or_else(|| field["oneOf"].as_array()) {
        let named: Vec<String> = choices.iter().map(|choice| type_of(choice, schema)).collect();
        return named.join(" | ");
    }
    if let Some(word) = field.get("const") {
        return plain(word);
    }
    if let Some(words) = field["enum"].as_array() {
        return words.iter().map(plain).collect::<Vec<_>>().join(" | ");
    }
    let word = |kind: &str| match kind {
        "array" => format!("list of {}", type_of(&field["items"], schema)),
        "integer" => "integer".to_owned(),
        "number" => "number".to_owned(),
        "boolean" => "true | false".to_owned(),
        "string" => "text".to_owned(),
        "null" => "null".to_owned(),
        "object" => match field["properties"].as_object() {
            Some(fields) => format!("{{{}}}", fields.keys().cloned().collect::<Vec<_>>().join(", ")),
            None => "map".to_owned(),
        },
        other => other.to_owned(),
    };
    match &field["type"] {
        Value::String(kind) => word(kind),
        Value::Array(kinds) => {
            kinds.iter().filter_map(Value::as_str).map(word).collect::<Vec<_>>().join(" | ")
        }
        _ => "anything".to_owned(),
    }
}

fn default_of(field: &Value) -> String {
    match field.get("default") {
        None | Some(Value::Null) => "–".to_owned(),
        Some(value) => plain(value),
    }
}

/// A value as it is written in a suite.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
