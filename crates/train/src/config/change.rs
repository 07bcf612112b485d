//! Differences between the config of a checkpoint and that of the run that resumes
//! it.
//!
//! Some change what the run computes, such as the learning rate: the result would
//! be neither the old run nor the new one. Others do not, such as the interval of
//! checkpoints or the number of ranks.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::Config;

/// A key with different values in a checkpoint and in the current config.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub struct ConfigChange {
    pub key: String,
    /// The value in the checkpoint, as JSON.
    pub was: String,
    /// The current value, as JSON.
    pub is: String,
    pub effect: ChangeEffect,
}

/// What a change of the config does to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeEffect {
    /// The steps compute something else.
    Meaning,
    /// The steps compute the same, or there are more of them.
    Harmless,
}

impl fmt::Display for ConfigChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {} → {}", self.key, self.was, self.is)
    }
}

/// Sections and keys that do not change what a step computes. The files of
/// `data.paths`, `data.mixture` and `data.dataset` are compared one by one, with
/// the weights of a mixture, and initial weights are not loaded again.
const HARMLESS: [&str; 18] = [
    "train.device",
    "train.checkpoint",
    "train.callbacks",
    "train.logging",
    "train.eval",
    "train.accelerator",
    "train.micro_batch_size",
    "train.gradient_checkpointing",
    "model.tp_plan",
    "model.strictness",
    "data.paths",
    "data.mixture",
    "data.dataset",
    "data.eval_paths",
    "data.eval_sets",
    // They answer what has happened.
    "train.on_nan",
    "train.on_spike",
    "data.max_dropped",
];

/// Keys whose increase adds steps.
const EXTENT: [&str; 2] = ["train.max_steps", "train.epochs"];

/// The differences between the recorded config of a checkpoint and the current
/// one, in the order of their keys.
pub fn changes(recorded: &Value, current: &Config) -> Vec<ConfigChange> {
    // Read and written again, so that keys that are new since then have their
    // defaults.
    let recorded = match serde_json::from_value::<Config>(recorded.clone()) {
        Ok(config) => values(&to_value(&config)),
        Err(_) => values(recorded),
    };
    let current = values(&to_value(current));
    let mut keys: Vec<&String> = recorded.keys().chain(current.keys()).collect();
    keys.sort();
    keys.dedup();
    let mut changes = Vec::new();
    for key in keys {
        let (was, is) = (recorded.get(key), current.get(key));
        if was != is {
            let shown = |value: Option<&Value>| value.map_or_else(|| "not set".to_owned(), Value::to_string);
            changes.push(ConfigChange {
                key: key.clone(),
                was: shown(was),
                is: shown(is),
                effect: effect(key, was, is),
            });
        }
    }
    changes
}

pub(crate) fn to_value(config: &Config) -> Value {
    serde_json::to_value(config).unwrap_or_default()
}

fn effect(key: &str, was: Option<&Value>, is: Option<&Value>) -> ChangeEffect {
    let within = |section: &str| {
        key.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let extended = || {
        let number = |value: Option<&Value>| value.and_then(Value::as_u64);
        matches!((number(was), number(is)), (Some(was), Some(is)) if is > was)
    };
    if HARMLESS.iter().any(|section| within(section)) || EXTENT.contains(&key) && extended() {
        return ChangeEffect::Harmless;
    }
    ChangeEffect::Meaning
}

/// All values by dotted key. Lists are values.
fn values(root: &Value) -> BTreeMap<String, Value> {
    fn collect(value: &Value, path: &str, all: &mut BTreeMap<String, Value>) {
        match value {
            Value::Object(map) if !map.is_empty() => {
                for (key, value) in map {
                    let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    collect(value, &path, all);
                }
            }
            value => {
                all.insert(path.to_owned(), value.clone());
            }
        }
    }
    let mut all = BTreeMap::new();
    collect(root, "", &mut all);
    all
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    const BASE: &str = "model: {name: llama, config_overrides: {vocab_size: 67}}
data: {paths: [a.jsonl]}
train: {max_steps: 10, optimizer: {lr: 0.001}}";

    fn config(overrides: &[&str]) -> Config {
        let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
        crate::config::read(BASE, "run.yaml", &overrides, &|_| None).unwrap()
    }

    fn effects(overrides: &[&str]) -> Vec<(String, ChangeEffect)> {
        let found = changes(&to_value(&config(&[])), &config(overrides));
        found.into_iter().map(|change| (change.key, change.effect)).collect()
    }

    #[test]
    fn each_change_has_an_effect() {
        assert_eq!(effects(&[]), []);
        for (override_, effect) in [
            ("train.optimizer.lr=0.002", ChangeEffect::Meaning),
            ("train.schedule.kind=linear", ChangeEffect::Meaning),
            ("train.global_batch_size=4", ChangeEffect::Meaning),
            ("train.precision=bf16", ChangeEffect::Meaning),
            ("train.seed=3", ChangeEffect::Meaning),
            ("train.max_steps=5", ChangeEffect::Meaning),
            ("train.max_steps=20", ChangeEffect::Harmless),
            ("train.epochs=3", ChangeEffect::Harmless),
            ("train.micro_batch_size=1", ChangeEffect::Harmless),
            ("train.logging.logging_steps=7", ChangeEffect::Harmless),
            ("train.checkpoint.save_steps=7", ChangeEffect::Harmless),
            ("train.eval.samples.prompts=[x]", ChangeEffect::Harmless),
            ("train.accelerator.tp=2", ChangeEffect::Harmless),
            ("data.max_seq_len=64", ChangeEffect::Meaning),
            ("data.packing=false", ChangeEffect::Meaning),
            ("data.train_on=all", ChangeEffect::Meaning),
            ("data.eval_paths=[b.jsonl]", ChangeEffect::Harmless),
            ("model.strictness=non_strict", ChangeEffect::Harmless),
            ("model.name=gpt2", ChangeEffect::Meaning),
            ("model.config_overrides.vocab_size=68", ChangeEffect::Meaning),
        ] {
            let key = override_.split('=').next().unwrap().to_owned();
            assert_eq!(effects(&[override_]), [(key, effect)], "{override_}");
        }
        let lora = effects(&["model.lora.rank=4"]);
        assert!(lora.iter().any(|change| *change == ("model.lora.rank".to_owned(), ChangeEffect::Meaning)));
    }

    #[test]
    fn changes_show_both_values() {
        let found = changes(&to_value(&config(&[])), &config(&["train.optimizer.lr=0.002"]));
        assert_eq!(found[0].to_string(), "`train.optimizer.lr`: 0.001 → 0.002");
    }

    #[test]
    fn keys_that_an_older_config_lacks_have_their_defaults() {
        let mut recorded = to_value(&config(&[]));
        recorded["data"].as_object_mut().unwrap().remove("max_dropped");
        assert_eq!(changes(&recorded, &config(&[])), []);
    }
}
