//! Model families family in YAML instead of Rust.
//!
//! A `model.yaml` on a search path is found by the dotted name of its folder:
//! `my_org.my_moe` is `my_org/my_moe/model.yaml`. It describes the decoder, the
//! keys of a `config.json` that its numbers come from, the mapping of names in
//! checkpoints, and the tensor-parallel sharding.
//!
//! Any value of the decoder can be a map with `from`, which takes it from the
//! configuration: `{from: n_embd}`, `{from: rope_parameters.rope_theta}`. A
//! `default` replaces a missing value and can itself have a `from`. Numbers can
//! be transformed: `{from: n_embd, times: 4}`, `over: 2`, `power: 0.5`, in this
//! order.

mod error;
mod position;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weightloom_checkpoint::{Index, KeyMap};
use weightloom_errors::{FileError, nearest};
use weightloom_nn::{DecoderConfig, Parallel, SharedDefinition};

use crate::config::{ConfigError, apply_overrides};
use crate::family::{AnyFamily, FamilyTypes};

pub use error::YamlFamilyError;
use position::{line_of, line_of_word};

/// Name of the file that describes a family.
pub const FAMILY_FILE: &str = "model.yaml";

/// Contents of a `model.yaml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FamilyDescription {
    /// Text for readers.
    #[serde(default)]
    pub description: Option<String>,
    /// The `model_type` in `config.json`; defaults to the name.
    #[serde(default)]
    pub model_type: Option<String>,
    /// Class name of published models.
    #[serde(default)]
    pub architecture: Option<String>,
    /// Keys of the configuration with their defaults; `null` marks a required
    /// key.
    #[serde(default)]
    pub config: Map<String, Value>,
    /// Optional keys without a default.
    #[serde(default)]
    pub optional: Vec<String>,
    /// Options of the decoder, with values from the configuration.
    pub decoder: Map<String, Value>,
    /// Mapping from names in a checkpoint to the decoder's.
    #[serde(default)]
    pub keys: KeyMap,
    /// Tensor-parallel sharding; the default suits most models.
    #[serde(default)]
    pub tensor_parallel: Option<Parallel>,
    /// Named presets of the configuration.
    #[serde(default)]
    pub archs: std::collections::BTreeMap<String, Map<String, Value>>,
}

/// A model family family in YAML.
#[derive(Clone, Debug, PartialEq)]
pub struct YamlFamily {
    name: String,
    file: PathBuf,
    description: FamilyDescription,
}

impl YamlFamily {
    /// Reads a file.
    pub fn read(name: &str, file: &Path) -> Result<Self, YamlFamilyError> {
        let text = std::fs::read_to_string(file).map_err(FileError::while_trying_to("read", file))?;
        Self::parse(name, file, &text)
    }

    /// Parses the text of a file.
    pub fn parse(name: &str, file: &Path, text: &str) -> Result<Self, YamlFamilyError> {
        let invalid =
            |line, message| YamlFamilyError::Invalid { file: file.display().to_string(), line, message };
        let description: FamilyDescription = serde_saphyr::from_str(text).map_err(|error| {
            let message = error.without_snippet().to_string();
            // The line is reported with the file.
            let message = message.split(" at line ").next().unwrap_or_default().to_owned();
            invalid(error.location().map(|location| location.line()), message)
        })?;
        let family = Self { name: name.to_owned(), file: file.to_owned(), description };
        if let Err(error) = family.check_references() {
            let line = match &error {
                ConfigError::UnknownKey { key, .. } => family.line_of_reference(text, key),
                _ => None,
            };
            return Err(invalid(line.or_else(|| line_of(text, &["decoder"])), error.to_string()));
        }
        // Every arch must give a valid decoder.
        for (arch, config) in &family.description.archs {
            if let Err(error) = family.definition(config) {
                let line = decoder_error_line(text, &error).or_else(|| line_of(text, &["archs", arch]));
                return Err(invalid(line, format!("arch `{arch}`: {error}")));
            }
        }
        // Without archs, complete defaults must.
        let FamilyDescription { archs, config, optional, .. } = &family.description;
        let complete = optional.is_empty() && config.values().all(|default| !default.is_null());
        if archs.is_empty() && complete {
            family.definition(&Map::new()).map_err(|error| {
                let line = decoder_error_line(text, &error).or_else(|| line_of(text, &["decoder"]));
                invalid(line, error.to_string())
            })?;
        }
        Ok(family)
    }

    /// The line of a `from` with an unknown key.
    fn line_of_reference(&self, text: &str, key: &str) -> Option<u64> {
        let mut found = None;
        // Search for the full path, including the part after a dot.
        references(&Value::Object(self.description.decoder.clone()), &mut |path| {
            if found.is_none() && path.split('.').next() == Some(key) {
                found = line_of_word(text, "decoder", path);
            }
        });
        found
    }

    /// Finds a family by its dotted name.
    pub fn find(name: &str, search: &[PathBuf]) -> Result<Self, YamlFamilyError> {
        let parts: Vec<&str> = name.split('.').collect();
        let fits = |part: &&str| {
            !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-')
        };
        if parts.len() < 2 || !parts.iter().all(fits) {
            return Err(YamlFamilyError::Name { name: name.to_owned() });
        }
        let candidates: Vec<PathBuf> = search
            .iter()
            .map(|folder| parts.iter().fold(folder.clone(), |path, part| path.join(part)).join(FAMILY_FILE))
            .collect();
        for file in &candidates {
            if is_file(file)? {
                return Self::read(name, file);
            }
        }
        let all = Self::names(search);
        Err(YamlFamilyError::NotFound {
            name: name.to_owned(),
            near: nearest(name, all.iter().map(String::as_str)).map(str::to_owned),
            searched: candidates.iter().map(|file| file.display().to_string()).collect(),
        })
    }

    /// All dotted names on a search path.
    pub fn names(search: &[PathBuf]) -> Vec<String> {
        let mut names = Vec::new();
        for folder in search {
            collect(folder, "", 0, &mut names);
        }
        names.sort();
        names.dedup();
        names
    }

    /// The file of the description.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Text for readers.
    pub fn about(&self) -> Option<&str> {
        self.description.description.as_deref()
    }

    fn with_defaults(&self, config: &Map<String, Value>) -> Result<Map<String, Value>, ConfigError> {
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

    /// All keys of the configuration.
    fn known_keys(&self) -> impl Iterator<Item = &str> {
        let FamilyDescription { config, optional, .. } = &self.description;
        config.keys().chain(optional).map(String::as_str)
    }

    fn knows(&self, key: &str) -> bool {
        self.known_keys().any(|known| known == key)
    }

    /// Checks that every `from` names a key of the configuration.
    fn check_references(&self) -> Result<(), ConfigError> {
        let mut wrong = None;
        let mut look = |key: &str| {
            let key = key.split('.').next().unwrap_or(key);
            if wrong.is_none() && !self.knows(key) {
                let near = nearest(key, self.known_keys()).map(str::to_owned);
                wrong = Some(ConfigError::UnknownKey { key: key.to_owned(), near });
            }
        };
        references(&Value::Object(self.description.decoder.clone()), &mut look);
        wrong.map_or(Ok(()), Err)
    }
}

/// Whether a file exists. Anything else at the path is an error.
fn is_file(path: &Path) -> Result<bool, YamlFamilyError> {
    let file = || path.display().to_string();
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() => Ok(true),
        Ok(found) if found.is_dir() => Err(YamlFamilyError::NotAFile { file: file(), found: "a folder" }),
        Ok(_) => Err(YamlFamilyError::NotAFile { file: file(), found: "a special file" }),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            match std::fs::symlink_metadata(path) {
                Ok(_) => Err(YamlFamilyError::NotAFile { file: file(), found: "a broken link" }),
                Err(_) => Ok(false),
            }
        }
        Err(error) => Err(FileError::new("read", path, &error).into()),
    }
}

/// The line of an error in the decoder's options.
fn decoder_error_line(text: &str, error: &ConfigError) -> Option<u64> {
    let ConfigError::Value { key, found, .. } = error else { return None };
    if key != "decoder" {
        return None;
    }
    // The parser names unknown words. A value of the wrong type comes from the
    // configuration.
    let word = || found.split('`').nth(1).and_then(|word| line_of_word(text, "decoder", word));
    if found.starts_with("missing field") { line_of(text, &["decoder"]) } else { word() }
}

/// Collects the dotted names of files below a folder.
fn collect(folder: &Path, prefix: &str, depth: usize, names: &mut Vec<String>) {
    // Ends a loop of links.
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
        } else if name == FAMILY_FILE && prefix.contains('.') {
            names.push(prefix.to_owned());
        }
    }
}

/// Visits every `from` in a value.
fn references(value: &Value, visit: &mut dyn FnMut(&str)) {
    match value {
        Value::Object(map) => {
            if let Some(key) = map.get("from").and_then(Value::as_str) {
                visit(key);
            }
            map.values().for_each(|value| references(value, visit));
        }
        Value::Array(list) => list.iter().for_each(|value| references(value, visit)),
        _ => {}
    }
}

/// Replaces every `from` in a value.
fn resolve(value: &Value, config: &Map<String, Value>) -> Result<Value, ConfigError> {
    match value {
        Value::Array(list) => list.iter().map(|value| resolve(value, config)).collect(),
        Value::Object(map) => match map.get("from").and_then(Value::as_str) {
            Some(key) => resolve_from(key, map, config),
            None => {
                let inner = map.iter().map(|(key, value)| Ok((key.clone(), resolve(value, config)?)));
                inner.collect::<Result<Map<_, _>, _>>().map(Value::Object)
            }
        },
        plain => Ok(plain.clone()),
    }
}

/// Keys of a map with `from`.
const FROM_KEYS: [&str; 5] = ["from", "default", "times", "over", "power"];

fn resolve_from(
    path: &str,
    spec: &Map<String, Value>,
    config: &Map<String, Value>,
) -> Result<Value, ConfigError> {
    if let Some(other) = spec.keys().find(|key| !FROM_KEYS.contains(&key.as_str())) {
        let near = nearest(other, FROM_KEYS).map(str::to_owned);
        return Err(ConfigError::UnknownKey { key: other.clone(), near });
    }
    let mut parts = path.split('.');
    let first = parts.next().and_then(|key| config.get(key));
    let found = parts.fold(first, |value, key| value.and_then(|value| value.get(key)));
    let mut value = match (found, spec.get("default")) {
        (Some(Value::Null) | None, Some(default)) => return resolve(default, config),
        (Some(Value::Null) | None, None) => return Err(ConfigError::Missing { key: path.to_owned() }),
        (Some(value), _) => value.clone(),
    };
    type Operation = fn(f64, f64) -> f64;
    let operations: [(&str, Operation); 3] =
        [("times", |a, b| a * b), ("over", |a, b| a / b), ("power", f64::powf)];
    for (operation, apply) in operations {
        let Some(by) = spec.get(operation) else { continue };
        let by = resolve(by, config)?;
        let result = value.as_f64().zip(by.as_f64()).map(|(value, by)| apply(value, by));
        let expected = || format!("a number for `{operation}: {by}`");
        let wrong =
            || ConfigError::Value { key: path.to_owned(), expected: expected(), found: value.to_string() };
        value = result.and_then(number).ok_or_else(wrong)?;
    }
    Ok(value)
}

/// A JSON number; an integer if the value is one.
fn number(value: f64) -> Option<Value> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let whole = value.fract() == 0.0 && (0.0..=EXACT).contains(&value);
    if whole {
        Some(Value::from(value as u64))
    } else {
        serde_json::Number::from_f64(value).map(Value::Number)
    }
}

impl AnyFamily for YamlFamily {
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
            self.with_defaults(config)?.into_iter().filter(|(key, _)| self.knows(key)).collect();
        for key in &self.description.optional {
            full.entry(key.clone()).or_insert(Value::Null);
        }
        Ok(full)
    }

    fn with_overrides(
        &self,
        config: &Map<String, Value>,
        overrides: &Map<String, Value>,
    ) -> Result<Map<String, Value>, ConfigError> {
        apply_overrides(&self.complete(config)?, overrides)
    }

    fn definition(&self, config: &Map<String, Value>) -> Result<SharedDefinition, ConfigError> {
        let resolved =
            resolve(&Value::Object(self.description.decoder.clone()), &self.with_defaults(config)?)?;
        let decoder: DecoderConfig =
            serde_json::from_value(resolved).map_err(|error| ConfigError::Value {
                key: "decoder".to_owned(),
                expected: "the options of a decoder".to_owned(),
                found: error.to_string(),
            })?;
        decoder.check()?;
        Ok(Arc::new(decoder))
    }

    fn types(&self) -> Option<FamilyTypes> {
        None
    }

    fn keys(&self, _config: &Map<String, Value>, _index: &Index) -> Result<KeyMap, ConfigError> {
        Ok(self.description.keys.clone())
    }

    fn parallel(&self) -> Parallel {
        self.description.tensor_parallel.clone().unwrap_or_default()
    }
}
