//! Loading of PEFT and MLX adapters for a model.
//!
//! An adapter names modules like the published model. The key mapping of the
//! model's weights applies to its matrices too: where a rule splits a weight,
//! it splits `B` the same way, and all parts share `A`.

use std::collections::{BTreeMap, BTreeSet};

use fancy_regex::{Regex, RegexBuilder};
use serde_json::{Map, Value};
use weightloom_checkpoint::formats::peft;
use weightloom_checkpoint::{
    Format, Index, KeyMap, KeyRule, Observer, ReadOptions, ReadRequest, Source, TensorEntry, read,
};
use weightloom_errors::Hint;
use weightloom_layout::{DType, Region};
use weightloom_nn::{Adapter, Model, NnError};
use weightloom_tensor::{HostMemory, Tensor};

use crate::config::{ConfigError, ConfigValue, Fields};
use crate::error::HubError;
use crate::family::AnyFamily;

/// An invalid or unsupported adapter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum AdapterError {
    #[error("invalid `{file}`: {0}", file = peft::CONFIG)]
    Config(ConfigError),
    #[error("expected a JSON object in `{}`: {message}", peft::CONFIG)]
    NotJson { message: String },
    #[error("`{key}` has {found} patterns, more than the limit of {limit}")]
    ManyPatterns { key: &'static str, found: usize, limit: usize },
    #[error("invalid regular expression `{pattern}` in `{key}`: {message}")]
    Pattern { key: &'static str, pattern: String, message: String },
    #[error("`r` is {configured} in `{}`, but the tensors of `{module}` have rank {found}", peft::CONFIG)]
    Rank { module: String, configured: usize, found: usize },
    #[error("the adapter has no `{missing}` for module `{module}`")]
    MissingMatrix { module: String, missing: &'static str },
    #[error("unsupported tensor `{tensor}` in the adapter")]
    Tensor { tensor: String },
    #[error("the adapter changes module `{module}`, which this model fuses with others")]
    FusedModule { module: String },
    #[error("the adapter in {location} has no tensors")]
    Empty { location: String },
}

impl Hint for AdapterError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Config(problem) => problem.hint(),
            // The scale is alpha / r, so a wrong rank changes what the adapter does.
            Self::Rank { found, .. } => Some(format!(
                "copy the `{}` of the run that trained these tensors, or set `r` to {found} if you know \
                 that `lora_alpha` is right",
                peft::CONFIG
            )),
            Self::Tensor { .. } => {
                Some("merge the adapter with the tool that created it, and load the merged model".to_owned())
            }
            _ => None,
        }
    }
}

/// Reads an adapter's configuration without its tensors, for fuzzing.
#[doc(hidden)]
pub fn check_adapter_config(config: &Map<String, Value>) -> Result<(), AdapterError> {
    let scales = LoraScales::new(config)?;
    let module = "model.layers.0.self_attn.q_proj";
    let _ = matching(&scales.alphas, module);
    scales.check_rank(module, 8)
}

/// Limit for patterns of one key.
const MAX_PATTERNS: usize = 10_000;

/// Limit for steps of a pattern that searches again and again; names are short.
const MAX_BACKTRACKS: usize = 10_000;

/// LoRA scales of the modules.
struct LoraScales {
    alpha: f64,
    alphas: Vec<(Regex, f64)>,
    /// `None` if the config does not state a rank.
    rank: Option<usize>,
    ranks: Vec<(Regex, usize)>,
    rank_stabilized: bool,
}

/// The values of a map from patterns of module names.
fn patterns<T: ConfigValue>(fields: &Fields<'_>, key: &'static str) -> Result<Vec<(Regex, T)>, AdapterError> {
    let wrong = AdapterError::Config;
    let mut patterns = Vec::new();
    let map = fields.get_or(key, Map::new()).map_err(wrong)?;
    if map.len() > MAX_PATTERNS {
        return Err(AdapterError::ManyPatterns { key, found: map.len(), limit: MAX_PATTERNS });
    }
    for (pattern, value) in map {
        let inside = Map::from_iter([(pattern.clone(), value)]);
        let value = Fields::inside(&inside, key).get(&pattern).map_err(wrong)?;
        // A pattern matches the end of a name.
        let regex =
            RegexBuilder::new(&format!(r"^(.*\.)?({pattern})$")).backtrack_limit(MAX_BACKTRACKS).build();
        let message =
            |error: fancy_regex::Error| AdapterError::Pattern { key, pattern, message: error.to_string() };
        patterns.push((regex.map_err(message)?, value));
    }
    Ok(patterns)
}

/// The value of the first pattern that matches a module.
fn matching<T: Copy>(patterns: &[(Regex, T)], module: &str) -> Option<T> {
    // A pattern that takes too long counts as no match.
    let own = patterns.iter().find(|(pattern, _)| pattern.is_match(module).unwrap_or(false));
    own.map(|(_, value)| *value)
}

impl LoraScales {
    fn new(config: &Map<String, Value>) -> Result<Self, AdapterError> {
        let fields = Fields::new(config);
        let wrong = AdapterError::Config;
        let kind = fields.get_or("peft_type", "LORA".to_owned()).map_err(wrong)?;
        if kind != "LORA" {
            return Err(wrong(fields.not_supported("peft_type", &["LORA"])));
        }
        for key in peft::MUST_BE_OFF {
            let off = match config.get(key) {
                None | Some(Value::Null | Value::Bool(false)) => true,
                Some(Value::Array(list)) => list.is_empty(),
                Some(Value::Object(map)) => map.is_empty(),
                Some(_) => false,
            };
            if !off {
                return Err(wrong(fields.not_supported(key, &["null"])));
            }
        }
        let alpha = fields.get_or("lora_alpha", 8.0).map_err(wrong)?;
        Ok(Self {
            alpha,
            alphas: patterns(&fields, "alpha_pattern")?,
            rank: fields.get_or("r", None).map_err(wrong)?,
            ranks: patterns(&fields, "rank_pattern")?,
            rank_stabilized: fields.get_or("use_rslora", false).map_err(wrong)?,
        })
    }

    /// Checks that the tensors of a module have the rank that the config states.
    fn check_rank(&self, module: &str, found: usize) -> Result<(), AdapterError> {
        // Which of several patterns counts depends on their order in the file.
        let own = self.ranks.iter().filter(|(pattern, _)| pattern.is_match(module).unwrap_or(false));
        let own: Vec<usize> = own.map(|(_, rank)| *rank).collect();
        match own.first().copied().or(self.rank) {
            Some(configured) if configured != found && !own.contains(&found) => {
                Err(AdapterError::Rank { module: module.to_owned(), configured, found })
            }
            _ => Ok(()),
        }
    }

    /// The factor of `B · A` for a module.
    fn scale(&self, module: &str, rank: usize) -> f64 {
        let alpha = matching(&self.alphas, module).unwrap_or(self.alpha);
        if self.rank_stabilized { alpha / (rank as f64).sqrt() } else { alpha / rank as f64 }
    }
}

/// Tensors of one module.
#[derive(Default)]
struct ModuleTensors<'a> {
    a: Option<&'a TensorEntry>,
    b: Option<&'a TensorEntry>,
    b_bias: Option<&'a TensorEntry>,
    magnitude: Option<&'a TensorEntry>,
}

/// Selects one of the tensors.
type Slot<'a> = for<'b> fn(&'b mut ModuleTensors<'a>) -> &'b mut Option<&'a TensorEntry>;

/// Tensors of an adapter, by module.
#[derive(Default)]
struct AdapterTensors<'a> {
    modules: BTreeMap<String, ModuleTensors<'a>>,
    /// Parameters that replace those of the model.
    replaced: BTreeMap<String, &'a TensorEntry>,
}

impl<'a> AdapterTensors<'a> {
    fn new(index: &'a Index) -> Result<Self, AdapterError> {
        let mut tensors = Self::default();
        for (tensor, entry) in index.tensors() {
            let name = tensor.strip_prefix(peft::PREFIX).unwrap_or(tensor);
            let unknown = || AdapterError::Tensor { tensor: tensor.clone() };
            let mut part = |module: &str, set: Slot<'a>| {
                *set(tensors.modules.entry(module.to_owned()).or_default()) = Some(entry);
            };
            if let Some((module, what)) = name.split_once(".lora_") {
                match what {
                    "A.weight" | "embedding_A" => part(module, |parts| &mut parts.a),
                    "B.weight" | "embedding_B" => part(module, |parts| &mut parts.b),
                    "B.bias" => part(module, |parts| &mut parts.b_bias),
                    "magnitude_vector" | "magnitude_vector.weight" => {
                        part(module, |parts| &mut parts.magnitude);
                    }
                    _ => return Err(unknown()),
                }
                continue;
            }
            let plain = name.replace(".base_layer.", ".").replace(".modules_to_save.default.", ".");
            if !(plain.ends_with(".weight") || plain.ends_with(".bias")) || plain.contains("token_adapter") {
                return Err(unknown());
            }
            tensors.replaced.insert(plain, entry);
        }
        Ok(tensors)
    }

    /// An index of the changed weights, from which the family derives its key
    /// mapping.
    fn changed_weights(&self, index: &Index) -> Result<Index, HubError> {
        let modules =
            self.modules.iter().filter_map(|(module, parts)| Some((format!("{module}.weight"), parts.b?)));
        let whole = self.replaced.iter().map(|(name, entry)| (name.clone(), *entry));
        let tensors = modules.chain(whole).map(|(name, entry)| (name, entry.clone())).collect();
        let index = Index::new(Format::Peft, index.files().to_vec(), tensors);
        Ok(index.map_err(weightloom_checkpoint::CheckpointError::from)?)
    }
}

/// Whether the key mapping transposes a weight.
pub(crate) fn is_transposed(keys: &KeyMap, weight: &str) -> bool {
    keys.rules.iter().any(|rule| matches!(rule, KeyRule::Transpose { key } if pattern_fits(key, weight)))
}

/// Applies the key mapping of the model's weights to one tensor.
pub(crate) fn apply_keys(
    keys: &KeyMap,
    files: &Index,
    name: &str,
    entry: &TensorEntry,
) -> Result<Vec<(String, TensorEntry)>, HubError> {
    let checkpoint = weightloom_checkpoint::CheckpointError::from;
    let tensors = BTreeMap::from([(name.to_owned(), entry.clone())]);
    let index = Index::new(Format::Peft, files.files().to_vec(), tensors).map_err(checkpoint)?;
    let renamed = keys.apply(&index).map_err(weightloom_checkpoint::CheckpointError::from)?;
    // Parts in the order of the split, which may differ from that of their names.
    let order: Vec<String> = keys
        .rules
        .iter()
        .filter_map(|rule| match rule {
            KeyRule::Split { into, .. } => Some(into.iter().map(|(to, _)| to.clone())),
            _ => None,
        })
        .flatten()
        .collect();
    let mut parts: Vec<(String, TensorEntry)> =
        renamed.tensors().iter().map(|(name, entry)| (name.clone(), entry.clone())).collect();
    parts.sort_by_key(|(name, _)| order.iter().position(|pattern| pattern_fits(pattern, name)));
    Ok(parts)
}

/// Whether a name matches a pattern with `{}` placeholders.
fn pattern_fits(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<&str>, Vec<&str>) = (pattern.split('.').collect(), name.split('.').collect());
    pattern.len() == name.len() && pattern.iter().zip(&name).all(|(a, b)| *a == "{}" || a == b)
}

/// Loads an adapter for a model. Called by every rank that holds a part of it.
pub fn load_adapter(
    source: &Source,
    model: &dyn Model,
    family: &dyn AnyFamily,
    config: &Map<String, Value>,
    observer: &dyn Observer,
) -> Result<Adapter, HubError> {
    // Checkpoints of a training run hold more than the adapter.
    let adapter_only = source.as_adapter()?;
    let source = adapter_only.as_ref().unwrap_or(source);
    let peft = peft::to_peft(&source.index, None)?;
    let parsed: Result<Map<String, Value>, _> = serde_json::from_str(&peft.config);
    let adapter_config = parsed.map_err(|error| AdapterError::NotJson { message: error.to_string() })?;
    let scales = LoraScales::new(&adapter_config)?;
    let index = &peft.index;
    let tensors = AdapterTensors::new(index)?;
    if tensors.modules.is_empty() && tensors.replaced.is_empty() {
        return Err(AdapterError::Empty { location: source.storage.location() }.into());
    }
    let about = |problem| HubError::Config { about: "base model".to_owned(), problem };
    let keys = family.keys(config, &tensors.changed_weights(index)?).map_err(about)?;
    let dtype = match model.parameters().first() {
        Some((_, value)) if value.dtype() == DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let values = |entry: &TensorEntry| -> Result<Tensor, HubError> {
        let mut memory = HostMemory::new(dtype, &entry.shape).map_err(NnError::from)?;
        let region = Region::whole(&entry.shape);
        let want =
            ReadRequest { name: "an adapter's tensor", entry, region, dtype, into: memory.bytes_mut() };
        read(source, vec![want], &ReadOptions::default(), observer)?;
        Ok(memory.into_tensor())
    };
    let mut adapter = Adapter::new();
    let stage: BTreeSet<&str> = model.parameters().iter().map(|(name, _)| name.as_str()).collect();
    let whole_model = model.stage().is_first() && model.stage().is_last();
    // Modules of other pipeline stages.
    let elsewhere = |name: &str| !whole_model && !stage.contains(name);
    for (module, parts) in &tensors.modules {
        let missing_matrix = |missing| AdapterError::MissingMatrix { module: module.clone(), missing };
        let (a, b) =
            (parts.a.ok_or_else(|| missing_matrix("A"))?, parts.b.ok_or_else(|| missing_matrix("B"))?);
        let rank = a.shape.first().copied().unwrap_or(1);
        scales.check_rank(module, rank)?;
        let scale = scales.scale(module, rank);
        let weight = format!("{module}.weight");
        let b = if is_transposed(&keys, &weight) { transposed(b)? } else { b.clone() };
        let b_parts = apply_keys(&keys, index, &weight, &b)?;
        if b_parts.is_empty() {
            return Err(AdapterError::FusedModule { module: module.clone() }.into());
        }
        let rows = |entry: Option<&TensorEntry>| -> Result<Vec<Option<TensorEntry>>, HubError> {
            let Some(entry) = entry else { return Ok(vec![None; b_parts.len()]) };
            let parts = apply_keys(&keys, index, &format!("{module}.bias"), entry)?;
            Ok(parts.into_iter().map(|(_, entry)| Some(entry)).collect())
        };
        let (biases, magnitudes) = (rows(parts.b_bias)?, rows(parts.magnitude)?);
        let a = values(a)?;
        for (((name, b), bias), magnitude) in b_parts.into_iter().zip(biases).zip(magnitudes) {
            if elsewhere(&name) {
                continue;
            }
            let own = name.strip_suffix(".weight").unwrap_or(&name);
            let b = values(&b)?;
            let bias = bias.map(|entry| values(&entry)).transpose()?;
            let magnitude = magnitude.map(|entry| values(&entry)).transpose()?;
            adapter.add(model, own, [&a, &b], bias.as_ref(), magnitude.as_ref(), scale)?;
        }
    }
    for (name, entry) in &tensors.replaced {
        for (name, entry) in apply_keys(&keys, index, name, entry)? {
            if !elsewhere(&name) {
                adapter.replace(model, &name, &values(&entry)?)?;
            }
        }
    }
    Ok(adapter)
}

fn transposed(entry: &TensorEntry) -> Result<TensorEntry, HubError> {
    let turned = entry.transpose(0, 1);
    turned.map_err(|_| AdapterError::Tensor { tensor: "B".to_owned() }.into())
}
