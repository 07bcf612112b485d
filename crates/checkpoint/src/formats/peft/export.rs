//! Conversion of adapters to PEFT.
//!
//! MLX keeps both factors transposed and multiplies by `scale`, PEFT by
//! `lora_alpha / r`. Factors are turned by strides, not by copying.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use weightloom_layout::{Region, Shape};

use super::{CONFIG, PeftError};
use crate::codec::Codec;
use crate::error::CheckpointError;
use crate::index::{Format, Index, TensorEntry, Tile};

/// What a PEFT folder holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeftAdapter {
    /// The tensors of `adapter_model.safetensors`, where they are now.
    pub index: Index,
    /// The text of `adapter_config.json`.
    pub config: String,
}

/// An adapter of PEFT or MLX in PEFT's form. `model` names the model that it
/// adapts, if the adapter's own config should not.
pub fn to_peft(adapter: &Index, model: Option<&str>) -> Result<PeftAdapter, CheckpointError> {
    let failed = |error: PeftError| CheckpointError::format(CONFIG, error);
    let config = config_of(adapter).map_err(failed)?;
    match adapter.format() {
        Format::Peft => from_peft(adapter, config, model).map_err(failed),
        Format::Mlx => {
            let (tensors, config) = from_mlx(adapter, &config, model).map_err(failed)?;
            let index = Index::new(Format::Peft, adapter.files().to_vec(), tensors)?;
            let config = to_text(&config.into()).map_err(failed)?;
            let metadata = BTreeMap::from([(CONFIG.to_owned(), config.clone())]);
            Ok(PeftAdapter { index: index.with_metadata(metadata), config })
        }
        format => Err(failed(PeftError::NotAdapter { format })),
    }
}

pub(super) fn config_of(adapter: &Index) -> Result<Map<String, Value>, PeftError> {
    let text = adapter.metadata().get(CONFIG);
    let text = text.ok_or_else(|| PeftError::NotAdapter { format: adapter.format() })?;
    serde_json::from_str(text).map_err(|error| PeftError::Config { message: error.to_string() })
}

pub(super) fn to_text(config: &Value) -> Result<String, PeftError> {
    serde_json::to_string_pretty(config).map_err(|error| PeftError::Config { message: error.to_string() })
}

fn from_peft(
    adapter: &Index,
    mut config: Map<String, Value>,
    model: Option<&str>,
) -> Result<PeftAdapter, PeftError> {
    if let Some(model) = model {
        config.insert("base_model_name_or_path".to_owned(), model.into());
    }
    Ok(PeftAdapter { index: adapter.clone(), config: to_text(&config.into())? })
}

type Tensors = BTreeMap<String, TensorEntry>;

fn from_mlx(
    adapter: &Index,
    config: &Map<String, Value>,
    model: Option<&str>,
) -> Result<(Tensors, Map<String, Value>), PeftError> {
    let kind = config.get("fine_tune_type").and_then(Value::as_str).unwrap_or("lora");
    if !matches!(kind, "lora" | "dora") {
        return Err(PeftError::Kind { kind: kind.to_owned() });
    }
    let modules = Modules::of(adapter)?;
    let rank = modules.rank()?;
    let alpha = alpha_of(scale(config, rank)?, rank);
    let parameter = |key: &str| config.get("lora_parameters").and_then(|parameters| parameters.get(key));
    let mut made = Map::new();
    let mut say = |key: &str, value: Value| made.insert(key.to_owned(), value);
    say("peft_type", "LORA".into());
    say("task_type", "CAUSAL_LM".into());
    say("r", rank.into());
    // PEFT expects a whole number where it is one.
    say("lora_alpha", if alpha.fract() == 0.0 { json!(alpha as i64) } else { json!(alpha) });
    say("lora_dropout", parameter("dropout").cloned().unwrap_or(json!(0.0)));
    say("bias", "none".into());
    say("fan_in_fan_out", false.into());
    say("inference_mode", true.into());
    say("use_dora", modules.0.values().any(|module| module.magnitude.is_some()).into());
    // MLX adapts the last layers only. Given layers, PEFT adapts nothing
    // outside of them; then modules are named in full.
    match modules.layers() {
        Some(layers) => {
            say("target_modules", modules.last_words().into_iter().collect());
            say("layers_to_transform", layers.into_iter().collect());
        }
        None => {
            say("target_modules", modules.0.keys().map(String::as_str).collect());
        }
    }
    let model = model.or_else(|| config.get("model").and_then(Value::as_str));
    say("base_model_name_or_path", model.into());
    Ok((modules.tensors(), made))
}

/// What PEFT divides by the rank. Most were whole numbers once, and a quotient
/// that was rounded gives them back only nearly.
fn alpha_of(scale: f64, rank: usize) -> f64 {
    let alpha = scale * rank as f64;
    let whole = alpha.round();
    if (alpha - whole).abs() <= 4.0 * f64::EPSILON * whole.abs() { whole } else { alpha }
}

/// What MLX multiplies by.
fn scale(config: &Map<String, Value>, rank: usize) -> Result<f64, PeftError> {
    let parameters = config.get("lora_parameters").unwrap_or(&Value::Null);
    let scale = parameters.get("scale").and_then(Value::as_f64).ok_or(PeftError::NoScale)?;
    // Early versions multiplied by alpha / rank too; later ones ignore alpha.
    match parameters.get("alpha") {
        Some(alpha) if !alpha.is_null() && alpha.as_f64() != Some(rank as f64) => {
            Err(PeftError::Alpha { scale: scale.to_string(), alpha: alpha.to_string() })
        }
        _ => Ok(scale),
    }
}

/// The parts of one adapted module.
#[derive(Default)]
struct Module {
    down: Option<TensorEntry>,
    up: Option<TensorEntry>,
    magnitude: Option<TensorEntry>,
}

/// Adapted modules by name.
struct Modules(BTreeMap<String, Module>);

impl Modules {
    fn of(adapter: &Index) -> Result<Self, PeftError> {
        let mut modules: BTreeMap<String, Module> = BTreeMap::new();
        for (tensor, entry) in adapter.tensors() {
            let (module, part) = tensor.rsplit_once('.').unwrap_or(("", tensor));
            let parts = modules.entry(module.to_owned()).or_default();
            match part {
                "lora_a" => parts.down = Some(transposed(tensor, entry)?),
                "lora_b" => parts.up = Some(transposed(tensor, entry)?),
                "m" => parts.magnitude = Some(entry.clone()),
                _ => return Err(PeftError::NotLowRank { tensor: tensor.clone() }),
            }
        }
        Ok(Self(modules))
    }

    /// The rank that all modules have.
    fn rank(&self) -> Result<usize, PeftError> {
        let mut rank = None;
        for (module, parts) in &self.0 {
            let (Some(down), Some(up)) = (&parts.down, &parts.up) else {
                return Err(PeftError::Half { module: module.clone() });
            };
            for found in [down.shape[0], up.shape[1]] {
                let expected = *rank.get_or_insert(found);
                if found != expected {
                    return Err(PeftError::Rank { module: module.clone(), found, expected });
                }
            }
        }
        rank.ok_or(PeftError::NotAdapter { format: Format::Mlx })
    }

    /// The last words of their names.
    fn last_words(&self) -> BTreeSet<&str> {
        self.0.keys().filter_map(|module| module.rsplit('.').next()).collect()
    }

    /// The numbers of the layers that they are in, if all are in one.
    fn layers(&self) -> Option<BTreeSet<u64>> {
        self.0.keys().map(|module| module.split('.').find_map(|word| word.parse().ok())).collect()
    }

    fn tensors(self) -> Tensors {
        let mut tensors = BTreeMap::new();
        for (module, parts) in self.0 {
            // PEFT stores embeddings as parameters without a `weight` suffix.
            let embeds = matches!(module.rsplit('.').next(), Some("embed_tokens" | "wte"));
            let [down, up] = match embeds {
                true => ["lora_embedding_A", "lora_embedding_B"],
                false => ["lora_A.weight", "lora_B.weight"],
            };
            let named = [(down, parts.down), (up, parts.up), ("lora_magnitude_vector", parts.magnitude)];
            for (part, entry) in named {
                tensors.extend(entry.map(|entry| (format!("base_model.model.{module}.{part}"), entry)));
            }
        }
        tensors
    }
}

/// A matrix with rows and columns exchanged.
pub(super) fn transposed(tensor: &str, entry: &TensorEntry) -> Result<TensorEntry, PeftError> {
    let dims = || PeftError::Dims { tensor: tensor.to_owned(), shape: entry.shape.clone() };
    let &[rows, columns] = &*entry.shape else { return Err(dims()) };
    let turn = |tile: &Tile| {
        let (start, size) = (tile.region.start(), tile.region.size());
        let region = Region::new(&[start[1], start[0]], &[size[1], size[0]]).ok()?;
        let strides = tile.strides.iter().rev().copied().collect();
        (tile.codec == Codec::Raw).then(|| Tile { region, strides, ..tile.clone() })
    };
    let tiles = entry.tiles.iter().map(turn).collect::<Option<_>>().ok_or_else(dims)?;
    let shape = Shape::new(&[columns, rows]).map_err(|_| dims())?;
    Ok(TensorEntry { dtype: entry.dtype, shape, tiles })
}
