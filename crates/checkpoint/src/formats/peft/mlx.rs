//! Adapters in the form that MLX loads.
//!
//! MLX has one rank and one scale for all modules, and names modules by where
//! they stand in a layer. What PEFT says beyond that is refused.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::export::{config_of, to_text, transposed};
use super::{CONFIG, MUST_BE_OFF, PREFIX, PeftError};
use crate::error::CheckpointError;
use crate::index::{Format, Index, TensorEntry};

/// Options of PEFT that change what an adapter computes, and that MLX does not
/// have.
const NOT_IN_MLX: [&str; 3] = ["lora_bias", "modules_to_save", "alpha_pattern"];

/// What an MLX adapter folder holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MlxAdapter {
    /// The tensors of `adapters.safetensors`, where they are now.
    pub index: Index,
    /// The text of `adapter_config.json`.
    pub config: String,
}

/// An adapter of PEFT or MLX in MLX's form.
pub fn to_mlx(adapter: &Index) -> Result<MlxAdapter, CheckpointError> {
    let failed = |error: PeftError| CheckpointError::format(CONFIG, error);
    let config = config_of(adapter).map_err(failed)?;
    match adapter.format() {
        Format::Mlx => {
            Ok(MlxAdapter { index: adapter.clone(), config: to_text(&config.into()).map_err(failed)? })
        }
        Format::Peft => {
            let (tensors, config) = from_peft(adapter, &config).map_err(failed)?;
            let index = Index::new(Format::Mlx, adapter.files().to_vec(), tensors)?;
            let config = to_text(&config).map_err(failed)?;
            let metadata = BTreeMap::from([(CONFIG.to_owned(), config.clone())]);
            Ok(MlxAdapter { index: index.with_metadata(metadata), config })
        }
        format => Err(failed(PeftError::NotAdapter { format })),
    }
}

type Tensors = BTreeMap<String, TensorEntry>;

fn from_peft(adapter: &Index, config: &Map<String, Value>) -> Result<(Tensors, Value), PeftError> {
    check(config)?;
    let mut tensors = Tensors::new();
    let mut ranks: BTreeMap<&str, [Option<usize>; 2]> = BTreeMap::new();
    let mut magnitudes: BTreeSet<&str> = BTreeSet::new();
    for (tensor, entry) in adapter.tensors() {
        let stray = || PeftError::NotLowRank { tensor: tensor.clone() };
        let name = tensor.strip_prefix(PREFIX).unwrap_or(tensor);
        let (module, part) = name.split_once(".lora_").ok_or_else(stray)?;
        let (half, place) = match part {
            "A.weight" | "embedding_A" => ("lora_a", 0),
            "B.weight" | "embedding_B" => ("lora_b", 1),
            // One number per output, without anything to transpose.
            "magnitude_vector" | "magnitude_vector.weight" => {
                tensors.insert(format!("{module}.m"), entry.clone());
                magnitudes.insert(module);
                continue;
            }
            _ => return Err(stray()),
        };
        let turned = transposed(tensor, entry)?;
        // Of A as PEFT has it the rows, of B the columns.
        ranks.entry(module).or_default()[place] = Some(entry.shape[place]);
        tensors.insert(format!("{module}.{half}"), turned);
    }
    let rank = one_rank(&ranks)?;
    // MLX uses DoRA for all modules or for none.
    let use_dora = config.get("use_dora").and_then(Value::as_bool).unwrap_or(false);
    let kind = match magnitudes.len() {
        0 if !use_dora => "lora",
        count if count == ranks.len() && magnitudes.iter().all(|module| ranks.contains_key(module)) => "dora",
        _ => {
            let value = match magnitudes.len() {
                0 => use_dora.to_string(),
                count => format!("{use_dora}, with {count} magnitudes for {} modules", ranks.len()),
            };
            return Err(PeftError::NotInMlx { key: "use_dora".to_owned(), value });
        }
    };
    let modules: Vec<&str> = ranks.into_keys().collect();
    let number = |key: &str, usual: f64| config.get(key).and_then(Value::as_f64).unwrap_or(usual);
    let by_root = config.get("use_rslora").and_then(Value::as_bool).unwrap_or(false);
    let divisor = if by_root { (rank as f64).sqrt() } else { rank as f64 };
    let keys: BTreeSet<&str> = modules.iter().map(|module| in_layer(module).1).collect();
    let made = json!({
        "fine_tune_type": kind,
        "model": config.get("base_model_name_or_path").cloned().unwrap_or(Value::Null),
        "num_layers": layers(&modules, config),
        "lora_parameters": {
            "rank": rank,
            "scale": number("lora_alpha", 8.0) / divisor,
            "dropout": number("lora_dropout", 0.0),
            "keys": keys,
        },
    });
    Ok((tensors, made))
}

/// Refuses options that MLX does not support.
fn check(config: &Map<String, Value>) -> Result<(), PeftError> {
    let refuse =
        |key: &str, value: &Value| PeftError::NotInMlx { key: key.to_owned(), value: value.to_string() };
    if let Some(kind) = config.get("peft_type").filter(|kind| *kind != "LORA") {
        return Err(refuse("peft_type", kind));
    }
    for key in NOT_IN_MLX.into_iter().chain(MUST_BE_OFF) {
        let off = match config.get(key) {
            None | Some(Value::Null | Value::Bool(false)) => true,
            Some(Value::Array(list)) => list.is_empty(),
            Some(Value::Object(map)) => map.is_empty(),
            Some(_) => false,
        };
        if !off {
            return Err(refuse(key, &config[key]));
        }
    }
    Ok(())
}

/// The rank that all modules have.
fn one_rank(ranks: &BTreeMap<&str, [Option<usize>; 2]>) -> Result<usize, PeftError> {
    let mut rank = None;
    for (module, halves) in ranks {
        let [Some(down), Some(up)] = *halves else {
            return Err(PeftError::Half { module: (*module).to_owned() });
        };
        for found in [down, up] {
            let expected = *rank.get_or_insert(found);
            if found != expected {
                return Err(PeftError::Rank { module: (*module).to_owned(), found, expected });
            }
        }
    }
    rank.filter(|rank| *rank > 0).ok_or(PeftError::NotAdapter { format: Format::Peft })
}

/// The number of a module's layer, if it is in one, and its name there.
fn in_layer(module: &str) -> (Option<u64>, &str) {
    let mut rest = module;
    while let Some((word, after)) = rest.split_once('.') {
        if let Ok(layer) = word.parse() {
            return (Some(layer), after);
        }
        rest = after;
    }
    (None, module)
}

/// The number of adapted layers if all layers certainly are, and otherwise -1,
/// which means all: MLX adds zeros where nothing was trained.
fn layers(modules: &[&str], config: &Map<String, Value>) -> i64 {
    let found: Option<BTreeSet<u64>> = modules.iter().map(|module| in_layer(module).0).collect();
    let chosen = config.get("layers_to_transform").is_some_and(|layers| !layers.is_null());
    match found {
        Some(found) if !chosen && found.iter().copied().eq(0..found.len() as u64) => {
            i64::try_from(found.len()).unwrap_or(-1)
        }
        _ => -1,
    }
}
