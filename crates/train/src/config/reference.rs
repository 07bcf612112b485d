//! The reference page: every key of a run's file, from the types.

use serde_json::Value;
use weightloom_document::outline::{Key, Kind, Nullable, Section};
use weightloom_document::{Content, Node};

use super::dump::dump;
use super::outline::outline;
use super::{Config, DataConfig, LoraConfig, ModelConfig, TrainConfig};

const INTRODUCTION: &str = "\
# The file of a training run

A run is one YAML file with three sections: `model`, `data` and `train`. Only \
`model.name` has to be there, and `data.paths` unless `data.type` is `dummy`. \
A key that is not known is an error, and all errors of a file are told at \
once, each with its line.

Values can be changed without touching the file: `train.optimizer.lr=1e-4`. \
The key is a path with dots; elements of lists are counted from 0 \
(`data.paths.0`), and the number behind the last one adds one. The value is \
YAML and stands in the place of what was there.

`${env:NAME}` in a value stands for the variable of that name, and \
`${env:NAME:default}` for the default if it is not set. Without quotes around \
the value, a number is then a number. `$${env:` stands for the text itself.

This page is made from the types. After a change, remake it with \
`WEIGHTLOOM_REMAKE=1 cargo test -p weightloom-train --test reference`.
";

/// The reference page, as Markdown.
pub fn reference() -> String {
    let mut page = INTRODUCTION.to_owned();
    // Keys come in the order of the types, which only a written configuration
    // has.
    let order = Node::parse(&dump(&sample())).map(|node| node.content).unwrap_or(Content::Nothing);
    section(&mut page, outline(), &order, "");
    page
}

/// A configuration in which every section is there.
fn sample() -> Config {
    let model: ModelConfig = ModelConfig {
        name: String::new(),
        arch: None,
        weights_path: None,
        tokenizer_path: None,
        freeze_modules: Vec::new(),
        tp_plan: Default::default(),
        config_overrides: Default::default(),
        lora: Some(LoraConfig::default()),
    };
    let data: DataConfig =
        serde_json::from_value(Value::Object(Default::default())).expect("every key of `data` has a default");
    Config { model, data, train: TrainConfig::default() }
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
        *page += "\n| Key | Type | Default | Meaning |\n|---|---|---|---|\n";
    }
    for key in plain {
        let cells = [format!("`{}`", key.name), kind(key), default(key), meaning(key)];
        let cells = cells.map(|cell| cell.replace('|', "\\|"));
        *page += &format!("| {} |\n", cells.join(" | "));
    }
    for key in sections {
        let path = if path.is_empty() { key.name.clone() } else { format!("{path}.{}", key.name) };
        *page += &format!("\n## `{path}`\n\n{}", key.meaning);
        if key.nullable == Nullable::Yes {
            *page += " Nothing of it holds unless the section is there.";
        }
        *page += "\n";
        let content = match (order, inner(key)) {
            (Content::Map(map), Some(index)) => &map[index].value.content,
            _ => &Content::Nothing,
        };
        if let Kind::Section(below) = &key.kind {
            section(page, below, content, &path);
        }
    }
}

fn kind(key: &Key) -> String {
    let name = match &key.kind {
        // The words stand with their meanings.
        Kind::Choice(_) => "word".to_owned(),
        Kind::Map(values) => match **values {
            Kind::Whole { .. } => "map of whole numbers".to_owned(),
            _ => "map".to_owned(),
        },
        Kind::List(items, Some(length)) => {
            let text = Kind::List(items.clone(), None).expected();
            text.replace("a list of ", &format!("list of {length} "))
        }
        other => other.expected().trim_start_matches("a ").to_owned(),
    };
    match key.nullable {
        Nullable::Yes => format!("{name}, or `null`"),
        Nullable::No => name,
    }
}

fn default(key: &Key) -> String {
    match &key.default {
        None => "must be given".to_owned(),
        Some(value) => format!("`{}`", shown(value)),
    }
}

/// A value as it is written in a file.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(list) => format!("[{}]", list.iter().map(shown).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

fn meaning(key: &Key) -> String {
    let mut text = key.meaning.clone();
    if let Kind::Choice(choices) = &key.kind {
        for choice in choices {
            text += &format!("<br>`{}`: {}", choice.name, choice.meaning);
        }
    }
    text
}
