//! Families that are described in a file instead of compiled.
//!
//! A `model.yaml` on a search path is found by the dotted name of its folder:
//! `my_org.my_moe` is `my_org/my_moe/model.yaml`. It says what the decoder is
//! made of, which keys of a `config.json` its numbers come from, how the names
//! in checkpoints translate, and what tensor parallelism shares.
//!
//! Wherever a value of the decoder stands, a map with `from` takes it from the
//! configuration: `{from: n_embd}`, `{from: rope_parameters.rope_theta}`. If it
//! is not there, there may be a `default`, which may be taken from elsewhere.
//! Numbers can be changed on the way: `{from: n_embd, times: 4}`, `over: 2`,
//! `power: 0.5`, in this order.

mod error;
mod position;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weightloom_checkpoint::{Index, KeyMap};
use weightloom_errors::nearest;
use weightloom_nn::{DecoderConfig, Parallel};

use crate::config::{ConfigError, overridden};
use crate::family::AnyFamily;

pub use error::DescribeError;
use position::{line_of, line_of_word};

/// The file that describes a family.
pub const DESCRIPTION_FILE: &str = "model.yaml";

/// A family as a file describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// What it is, for readers.
    #[serde(default)]
    pub description: Option<String>,
    /// What the `model_type` of a `config.json` is; the name if not given.
    #[serde(default)]
    pub model_type: Option<String>,
    /// What the published models call their class.
    #[serde(default)]
    pub architecture: Option<String>,
    /// Keys of the configuration, with values for those that may be missing;
    /// `null` for those that may not.
    #[serde(default)]
    pub config: Map<String, Value>,
    /// Keys that may be missing without a value in their place.
    #[serde(default)]
    pub optional: Vec<String>,
    /// The decoder, with values from the configuration.
    pub decoder: Map<String, Value>,
    /// From the names in a checkpoint to the decoder's.
    #[serde(default)]
    pub keys: KeyMap,
    /// What tensor parallelism shares; what suits most models if not given.
    #[serde(default)]
    pub tensor_parallel: Option<Parallel>,
    /// Named presets of the configuration.
    #[serde(default)]
    pub archs: std::collections::BTreeMap<String, Map<String, Value>>,
}

/// A described family under its name.
#[derive(Clone, Debug, PartialEq)]
pub struct Described {
    name: String,
    file: PathBuf,
    description: Description,
}

impl Described {
    /// Reads a description.
    pub fn read(name: &str, file: &Path) -> Result<Self, DescribeError> {
        let text = std::fs::read_to_string(file).map_err(|error| DescribeError::Read {
            file: file.display().to_string(),
            message: error.to_string(),
        })?;
        Self::parse(name, file, &text)
    }

    /// Reads a description from its text.
    pub fn parse(name: &str, file: &Path, text: &str) -> Result<Self, DescribeError> {
        let broken =
            |line, message| DescribeError::Broken { file: file.display().to_string(), line, message };
        let description: Description = serde_saphyr::from_str(text).map_err(|error| {
            let message = error.without_snippet().to_string();
            // The line is told with the file.
            let message = message.split(" at line ").next().unwrap_or_default().to_owned();
            broken(error.location().map(|place| place.line()), message)
        })?;
        let described = Self { name: name.to_owned(), file: file.to_owned(), description };
        if let Err(error) = described.check_references() {
            let line = match &error {
                ConfigError::UnknownKey { key, .. } => described.line_of_reference(text, key),
                _ => None,
            };
            return Err(broken(line.or_else(|| line_of(text, &["decoder"])), error.to_string()));
        }
        // Every arch must make a decoder.
        for (arch, config) in &described.description.archs {
            if let Err(error) = described.decoder(config) {
                let line = of_decoder(text, &error).or_else(|| line_of(text, &["archs", arch]));
                return Err(broken(line, format!("arch `{arch}`: {error}")));
            }
        }
        // Without archs, the defaults must, if they say everything.
        let Description { archs, config, optional, .. } = &described.description;
        let complete = optional.is_empty() && config.values().all(|default| !default.is_null());
        if archs.is_empty() && complete {
            described.decoder(&Map::new()).map_err(|error| {
                let line = of_decoder(text, &error).or_else(|| line_of(text, &["decoder"]));
                broken(line, error.to_string())
            })?;
        }
        Ok(described)
    }

    /// Where a key is taken from the configuration that is none of its keys.
    fn line_of_reference(&self, text: &str, key: &str) -> Option<u64> {
        let mut found = None;
        // As it is written, with what stands behind a dot.
        references(&Value::Object(self.description.decoder.clone()), &mut |path| {
            if found.is_none() && path.split('.').next() == Some(key) {
                found = line_of_word(text, "decoder", path);
            }
        });
        found
    }

    /// Finds a description by its dotted name.
    pub fn find(name: &str, search: &[PathBuf]) -> Result<Self, DescribeError> {
        let parts: Vec<&str> = name.split('.').collect();
        let fits = |part: &&str| {
            !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-')
        };
        if parts.len() < 2 || !parts.iter().all(fits) {
            return Err(DescribeError::Name { name: name.to_owned() });
        }
        let places: Vec<PathBuf> = search
            .iter()
            .map(|folder| {
                parts.iter().fold(folder.clone(), |path, part| path.join(part)).join(DESCRIPTION_FILE)
            })
            .collect();
        for place in &places {
            if is_there(place)? {
                return Self::read(name, place);
            }
        }
        let all = Self::names(search);
        Err(DescribeError::Missing {
            name: name.to_owned(),
            near: nearest(name, all.iter().map(String::as_str)).map(str::to_owned),
            searched: places.iter().map(|place| place.display().to_string()).collect(),
        })
    }

    /// Every dotted name that is described on a search path.
    pub fn names(search: &[PathBuf]) -> Vec<String> {
        let mut names = Vec::new();
        for folder in search {
            collect(folder, "", 0, &mut names);
        }
        names.sort();
        names.dedup();
        names
    }

    /// The file it was read from.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// What it is, for readers.
    pub fn about(&self) -> Option<&str> {
        self.description.description.as_deref()
    }

    fn full(&self, config: &Map<String, Value>) -> Result<Map<String, Value>, ConfigError> {
        let mut full = config.clone();
        for (key, default) in &self.description.config {
            let given = full.get(key).is_some_and(|value| !value.is_null());
            if !given {
                if default.is_null() {
                    return Err(ConfigError::Missing { key: key.clone() });
                }
                full.insert(key.clone(), default.clone());
            }
        }
        Ok(full)
    }

    /// The keys of its configuration.
    fn known(&self) -> impl Iterator<Item = &str> {
        let Description { config, optional, .. } = &self.description;
        config.keys().chain(optional).map(String::as_str)
    }

    fn knows(&self, key: &str) -> bool {
        self.known().any(|known| known == key)
    }

    /// Every key that the decoder takes from the configuration must be one of
    /// its keys.
    fn check_references(&self) -> Result<(), ConfigError> {
        let mut wrong = None;
        let mut look = |key: &str| {
            let key = key.split('.').next().unwrap_or(key);
            if wrong.is_none() && !self.knows(key) {
                let near = nearest(key, self.known()).map(str::to_owned);
                wrong = Some(ConfigError::UnknownKey { key: key.to_owned(), near });
            }
        };
        references(&Value::Object(self.description.decoder.clone()), &mut look);
        wrong.map_or(Ok(()), Err)
    }
}

/// Whether there is a file. What is there and cannot be used is not missing.
fn is_there(place: &Path) -> Result<bool, DescribeError> {
    let file = || place.display().to_string();
    match std::fs::metadata(place) {
        Ok(found) if found.is_file() => Ok(true),
        Ok(found) if found.is_dir() => Err(DescribeError::NotAFile { file: file(), found: "a folder" }),
        Ok(_) => Err(DescribeError::NotAFile { file: file(), found: "something else" }),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            match std::fs::symlink_metadata(place) {
                Ok(_) => Err(DescribeError::NotAFile { file: file(), found: "a link that leads nowhere" }),
                Err(_) => Ok(false),
            }
        }
        Err(error) => Err(DescribeError::Read { file: file(), message: error.to_string() }),
    }
}

/// The line of what is wrong with the decoder itself, if that is what an error
/// is about.
fn of_decoder(text: &str, error: &ConfigError) -> Option<u64> {
    let ConfigError::Value { key, found, .. } = error else { return None };
    if key != "decoder" {
        return None;
    }
    // The parser names what it does not know. A value of another kind comes
    // from elsewhere.
    let word = || found.split('`').nth(1).and_then(|word| line_of_word(text, "decoder", word));
    if found.starts_with("missing field") { line_of(text, &["decoder"]) } else { word() }
}

/// Descriptions below a folder, as dotted names.
fn collect(folder: &Path, prefix: &str, depth: usize, names: &mut Vec<String>) {
    // Deeper than anybody writes; a loop of links ends here.
    if depth > 6 {
        return;
    }
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = entry.path();
        if path.is_dir() && !name.starts_with('.') {
            let inner = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
            collect(&path, &inner, depth + 1, names);
        } else if name == DESCRIPTION_FILE && prefix.contains('.') {
            names.push(prefix.to_owned());
        }
    }
}

/// Every `from` in a value.
fn references(value: &Value, look: &mut dyn FnMut(&str)) {
    match value {
        Value::Object(map) => {
            if let Some(key) = map.get("from").and_then(Value::as_str) {
                look(key);
            }
            map.values().for_each(|value| references(value, look));
        }
        Value::Array(list) => list.iter().for_each(|value| references(value, look)),
        _ => {}
    }
}

/// A value with everything that is taken from the configuration in its place.
fn filled(value: &Value, config: &Map<String, Value>) -> Result<Value, ConfigError> {
    match value {
        Value::Array(list) => list.iter().map(|value| filled(value, config)).collect(),
        Value::Object(map) => match map.get("from").and_then(Value::as_str) {
            Some(key) => taken(key, map, config),
            None => {
                let inner = map.iter().map(|(key, value)| Ok((key.clone(), filled(value, config)?)));
                inner.collect::<Result<Map<_, _>, _>>().map(Value::Object)
            }
        },
        plain => Ok(plain.clone()),
    }
}

/// What may stand beside `from`.
const HOW: [&str; 5] = ["from", "default", "times", "over", "power"];

fn taken(path: &str, how: &Map<String, Value>, config: &Map<String, Value>) -> Result<Value, ConfigError> {
    if let Some(other) = how.keys().find(|key| !HOW.contains(&key.as_str())) {
        let near = nearest(other, HOW).map(str::to_owned);
        return Err(ConfigError::UnknownKey { key: other.clone(), near });
    }
    let mut parts = path.split('.');
    let first = parts.next().and_then(|key| config.get(key));
    let found = parts.fold(first, |value, key| value.and_then(|value| value.get(key)));
    let mut value = match (found, how.get("default")) {
        (Some(Value::Null) | None, Some(default)) => return filled(default, config),
        (Some(Value::Null) | None, None) => return Err(ConfigError::Missing { key: path.to_owned() }),
        (Some(value), _) => value.clone(),
    };
    type Operation = fn(f64, f64) -> f64;
    let operations: [(&str, Operation); 3] =
        [("times", |a, b| a * b), ("over", |a, b| a / b), ("power", f64::powf)];
    for (operation, apply) in operations {
        let Some(by) = how.get(operation) else { continue };
        let by = filled(by, config)?;
        let result = value.as_f64().zip(by.as_f64()).map(|(value, by)| apply(value, by));
        let expected = || format!("a number that `{operation}: {by}` can be applied to");
        let wrong =
            || ConfigError::Value { key: path.to_owned(), expected: expected(), found: value.to_string() };
        value = result.and_then(number).ok_or_else(wrong)?;
    }
    Ok(value)
}

/// A number, whole if it is.
fn number(value: f64) -> Option<Value> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let whole = value.fract() == 0.0 && (0.0..=EXACT).contains(&value);
    if whole {
        Some(Value::from(value as u64))
    } else {
        serde_json::Number::from_f64(value).map(Value::Number)
    }
}

impl AnyFamily for Described {
    fn name(&self) -> &str {
        &self.name
    }

    fn model_types(&self) -> Vec<String> {
        vec![self.description.model_type.clone().unwrap_or_else(|| self.name.clone())]
    }

    fn architecture(&self) -> String {
        self.description.architecture.clone().unwrap_or_else(|| self.name.clone())
    }

    fn archs(&self) -> Vec<String> {
        self.description.archs.keys().cloned().collect()
    }

    fn maybe_arch_config(&self, arch: &str) -> Option<Map<String, Value>> {
        self.complete(self.description.archs.get(arch)?).ok()
    }

    fn complete(&self, config: &Map<String, Value>) -> Result<Map<String, Value>, ConfigError> {
        let mut full: Map<String, Value> =
            self.full(config)?.into_iter().filter(|(key, _)| self.knows(key)).collect();
        for key in &self.description.optional {
            full.entry(key.clone()).or_insert(Value::Null);
        }
        Ok(full)
    }

    fn overridden(
        &self,
        config: &Map<String, Value>,
        overrides: &Map<String, Value>,
    ) -> Result<Map<String, Value>, ConfigError> {
        overridden(&self.complete(config)?, overrides)
    }

    fn decoder(&self, config: &Map<String, Value>) -> Result<DecoderConfig, ConfigError> {
        let filled = filled(&Value::Object(self.description.decoder.clone()), &self.full(config)?)?;
        let decoder: DecoderConfig = serde_json::from_value(filled).map_err(|error| ConfigError::Value {
            key: "decoder".to_owned(),
            expected: "the options of a decoder".to_owned(),
            found: error.to_string(),
        })?;
        decoder.check()?;
        Ok(decoder)
    }

    fn keys(&self, _config: &Map<String, Value>, _index: &Index) -> Result<KeyMap, ConfigError> {
        Ok(self.description.keys.clone())
    }

    fn parallel(&self) -> Parallel {
        self.description.tensor_parallel.clone().unwrap_or_default()
    }
}
