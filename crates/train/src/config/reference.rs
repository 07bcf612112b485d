//! The reference page of the config, generated from the types.

use serde_json::Value;
use weightloom_document::schema::{Key, Kind, Nullable, Section};
use weightloom_document::{Content, Node};

use super::dump::dump;
use super::outline::outline;
use super::{
    Config, DataConfig, EarlyStopping, EmaConfig, EvalConfig, LoraConfig, ModelConfig, SpikeConfig,
    TrainConfig,
};
use crate::extensions::Extensions;

const INTRODUCTION: &str = "\
# Training config

A training run is configured by one YAML file with the sections `model`, `data` \
and `train`. Required keys are `model.name`, and `data.paths` unless `data.type` \
is `dummy`. Unknown keys are errors. All errors of a file are reported at once, \
with line and column.

Override values on the command line: `train.optimizer.lr=1e-4`. List elements \
are counted from 0 (`data.paths.0`); the index after the last element appends. \
The value is parsed as YAML and replaces the previous value.

`${env:NAME}` in a value expands to an environment variable, and \
`${env:NAME:default}` to the default if the variable is not set. An unquoted \
value that expands to a number is a number. Write `$${env:` for a literal `${env:`.

This page is generated from the types. To update it, run \
`WEIGHTLOOM_REMAKE=1 cargo test -p weightloom-train --test it reference`.
";

/// The reference page as Markdown.
pub fn reference() -> String {
    reference_with(&Extensions::standard())
}

/// The reference page of a program with its own extensions. Options of each have a section at the end.
pub fn reference_with(extensions: &Extensions) -> String {
    let mut page = INTRODUCTION.to_owned();
    // Only a serialized config has the keys in the order of the types.
    let order = Node::parse(&dump(&sample())).map(|node| node.content).unwrap_or(Content::Null);
    section(&mut page, &outline(extensions), &order, "");
    let Extensions { losses, optimizers, schedules, .. } = extensions;
    let losses = losses.names().into_iter().map(|name| ("loss", name, losses.options(name)));
    let optimizers = optimizers.names().into_iter().map(|name| ("optimizer", name, optimizers.options(name)));
    let schedules = schedules.names().into_iter().map(|name| ("schedule", name, schedules.options(name)));
    for (section_name, name, options) in losses.chain(optimizers).chain(schedules) {
        let Some(options) = options.filter(|options| !options.keys.is_empty()) else { continue };
        page += &format!("\n## `train.{section_name}.options` of `{name}`\n");
        section(&mut page, options, &Content::Null, "");
    }
    page
}

/// A config with every section.
fn sample() -> Config {
    let model: ModelConfig = ModelConfig {
        name: String::new(),
        arch: None,
        weights_path: None,
        strictness: Default::default(),
        tokenizer_path: None,
        freeze_modules: Vec::new(),
        tp_plan: Default::default(),
        config_overrides: Default::default(),
        lora: Some(LoraConfig::default()),
    };
    let data: DataConfig =
        serde_json::from_value(Value::Object(Default::default())).expect("every key of `data` has a default");
    let eval = EvalConfig { early_stopping: Some(EarlyStopping::default()), ..EvalConfig::default() };
    let (on_spike, ema) = (Some(SpikeConfig::default()), Some(EmaConfig::default()));
    Config { model, data, train: TrainConfig { on_spike, ema, eval, ..TrainConfig::default() } }
}

fn section(page: &mut String, keys_of: &Section, order: &Content, path: &str) {
    let mut keys: Vec<&Key> = keys_of.keys.iter().collect();
    let inner = |key: &Key| match order {
        Content::Map(map) => map.iter().position(|entry| entry.key == key.name),
        _ => None,
    };
    keys.sort_by_key(|key| inner(key));
    let (sections, plain): (Vec<&Key>, Vec<&Key>) =
        keys.into_iter().partition(|key| matches!(key.kind, Kind::Section(_)));
    if !plain.is_empty() {
        *page += "\n| Key | Type | Default | Description |\n|---|---|---|---|\n";
    }
    for key in plain {
        let cells = [format!("`{}`", key.name), kind(key), default(key), meaning(key)];
        let cells = cells.map(|cell| cell.replace('|', "\\|"));
        *page += &format!("| {} |\n", cells.join(" | "));
    }
    for key in sections {
        let path = if path.is_empty() { key.name.clone() } else { format!("{path}.{}", key.name) };
        *page += &format!("\n## `{path}`\n\n{}", key.description);
        if key.nullable == Nullable::Yes {
            *page += " Disabled unless the section is present.";
        }
        *page += "\n";
        let content = match (order, inner(key)) {
            (Content::Map(map), Some(index)) => &map[index].value.content,
            _ => &Content::Null,
        };
        if let Kind::Section(below) = &key.kind {
            section(page, below, content, &path);
        }
    }
}

fn kind(key: &Key) -> String {
    let name = match &key.kind {
        // The description lists the choices.
        Kind::Choice(_) => "choice".to_owned(),
        Kind::Map(values) => match **values {
            Kind::Integer { .. } => "map of integers".to_owned(),
            _ => "map".to_owned(),
        },
        Kind::List(items, Some(length)) => {
            let text = Kind::List(items.clone(), None).expected();
            text.replace("a list of ", &format!("list of {length} "))
        }
        other => other.expected().trim_start_matches("a ").trim_start_matches("an ").to_owned(),
    };
    match key.nullable {
        Nullable::Yes => format!("{name}, or `null`"),
        Nullable::No => name,
    }
}

fn default(key: &Key) -> String {
    match &key.default {
        None => "required".to_owned(),
        Some(value) => format!("`{}`", shown(value)),
    }
}

/// A value as written in YAML.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(list) => format!("[{}]", list.iter().map(shown).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

fn meaning(key: &Key) -> String {
    let mut text = key.description.clone();
    let choices = match &key.kind {
        Kind::Choice(choices) | Kind::BoolOrChoice(choices) => choices.as_slice(),
        Kind::List(items, _) => match &**items {
            Kind::Choice(choices) => choices.as_slice(),
            _ => &[],
        },
        _ => &[],
    };
    for choice in choices {
        text += &format!("<br>`{}`: {}", choice.name, choice.description);
    }
    text
}
