//! MLX folders: safetensors with quantised weights in three tensors each.
//!
//! `X.weight` holds packed words, `X.scales` and `X.biases` one value per group
//! of elements. The three become one tensor `X.weight` of the scales' dtype.
//! Bits and group size come from `config.json` and must match the shapes.

mod affine;

pub use affine::AffineRun;

use std::collections::BTreeMap;

use serde_json::Value;
use weightloom_errors::Hint;
use weightloom_layout::{DType, Region, Shape};

use crate::codec::{AffineCodec, Codec, GroupParams};
use crate::error::CheckpointError;
use crate::index::{Format, Index, Strides, TensorEntry, Tile, row_major};
use crate::storage::Storage;

/// The file with the quantisation parameters.
const CONFIG: &str = "config.json";

/// The longest config that is read.
const MAX_CONFIG: u64 = 1 << 24;

/// Why a quantised MLX folder cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum MlxError {
    #[error("malformed JSON: {message}")]
    Config { message: String },
    #[error("`{module}` is quantised in unsupported mode {mode}")]
    Mode { module: String, mode: String },
    #[error("`{module}` has unsupported quantisation: {bits} bits in groups of {group}")]
    Numbers { module: String, bits: u64, group: u64 },
    #[error("`{module}` has scales but no biases")]
    NoBiases { module: String },
    #[error("`{tensor}` has unsupported dtype {dtype}")]
    DType { tensor: String, dtype: DType },
    #[error(
        "`{module}` has words {words}, scales {scales} and biases {biases}, which are not {bits} bits in groups of {group}"
    )]
    Shapes { module: String, words: Shape, scales: Shape, biases: Shape, bits: usize, group: usize },
}

impl Hint for MlxError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Mode { .. } => {
                Some("use a model quantised in mode `affine`, or an unquantised one".to_owned())
            }
            Self::Shapes { .. } | Self::NoBiases { .. } => Some(format!(
                "copy or download the folder again; `{CONFIG}` belongs to another model, or files are missing"
            )),
            _ => None,
        }
    }
}

/// Joins the three tensors of each quantised weight, if the folder's config
/// has quantisation parameters.
pub(crate) fn join_quantised(storage: &dyn Storage, index: Index) -> Result<Index, CheckpointError> {
    let modules: Vec<String> = quantised_modules(&index);
    if modules.is_empty() || !storage.exists(CONFIG)? {
        return Ok(index);
    }
    let failed = |error: MlxError| CheckpointError::format(CONFIG, error);
    let config: Value = serde_json::from_slice(&storage.read_all(CONFIG, MAX_CONFIG)?)
        .map_err(|error| failed(MlxError::Config { message: error.to_string() }))?;
    let Some(section) = section(&config) else {
        return Ok(index);
    };
    let mut tensors = index.tensors().clone();
    for module in modules {
        if let Some(params) = QuantParams::of(section, &module).map_err(failed)? {
            join(&mut tensors, &module, params).map_err(failed)?;
        }
    }
    let joined = Index::new(Format::Mlx, index.files().to_vec(), tensors)?;
    Ok(joined.with_blobs(index.blobs().clone())?.with_metadata(index.metadata().clone()))
}

/// Modules with words and scales.
fn quantised_modules(index: &Index) -> Vec<String> {
    let words = |module: &str| index.tensors().get(&format!("{module}.weight"));
    let modules = index.tensors().keys().filter_map(|name| name.strip_suffix(".scales"));
    modules
        .filter(|module| words(module).is_some_and(|entry| entry.dtype == DType::U32))
        .map(str::to_owned)
        .collect()
}

/// The section of a config with MLX's quantisation parameters. Other tools use
/// the second key too, with a `quant_method`.
fn section(config: &Value) -> Option<&Value> {
    let own = config.get("quantization").filter(|section| section.is_object());
    own.or_else(|| {
        let shared = config.get("quantization_config").filter(|section| section.is_object())?;
        shared.get("quant_method").is_none().then_some(shared)
    })
}

/// Quantisation parameters of one module.
#[derive(Clone, Copy, Debug)]
struct QuantParams {
    bits: usize,
    group: usize,
}

impl QuantParams {
    /// The parameters of a module; `None` if the config excludes it.
    fn of(section: &Value, module: &str) -> Result<Option<Self>, MlxError> {
        let own = match section.get(module) {
            Some(Value::Bool(false)) => return Ok(None),
            Some(own) if own.is_object() => own,
            _ => section,
        };
        let mode = own.get("mode").and_then(Value::as_str).unwrap_or("affine");
        if mode != "affine" {
            return Err(MlxError::Mode { module: module.to_owned(), mode: mode.to_owned() });
        }
        // MLX's defaults.
        let number = |key: &str, usual| own.get(key).and_then(Value::as_u64).unwrap_or(usual);
        let (bits, group) = (number("bits", 4), number("group_size", 64));
        let known = matches!(bits, 2..=6 | 8) && matches!(group, 16 | 32 | 64 | 128);
        if !known {
            return Err(MlxError::Numbers { module: module.to_owned(), bits, group });
        }
        Ok(Some(Self { bits: bits as usize, group: group as usize }))
    }
}

/// Replaces the three tensors of a module by one.
fn join(
    tensors: &mut BTreeMap<String, TensorEntry>,
    module: &str,
    QuantParams { bits, group }: QuantParams,
) -> Result<(), MlxError> {
    let weight = format!("{module}.weight");
    let mut take =
        |name: &str| tensors.remove(name).ok_or_else(|| MlxError::NoBiases { module: module.to_owned() });
    let names = [format!("{module}.scales"), format!("{module}.biases")];
    let (words, scales, biases) = (take(&weight)?, take(&names[0])?, take(&names[1])?);
    let dtype = scales.dtype;
    for (entry, name) in [(&scales, &names[0]), (&biases, &names[1])] {
        if entry.dtype != dtype || !matches!(dtype, DType::F16 | DType::Bf16 | DType::F32) {
            return Err(MlxError::DType { tensor: name.clone(), dtype: entry.dtype });
        }
    }
    let joined = shape_of(&words.shape, &scales.shape, QuantParams { bits, group })
        .filter(|_| scales.shape == biases.shape)
        .and_then(|shape| {
            let dim = shape.ndim() - 1;
            let (file, offset, strides) = rows(&words)?;
            let side =
                |entry| rows(entry).map(|(file, offset, strides)| GroupParams { file, offset, strides });
            let (scales, biases) = (side(&scales)?, side(&biases)?);
            let codec = Codec::Affine(Box::new(AffineCodec { bits, group, dim, lead: 0, scales, biases }));
            let tile = Tile { region: Region::whole(&shape), file, offset, strides, codec };
            Some(TensorEntry { dtype, shape, tiles: vec![tile] })
        });
    let entry = joined.ok_or_else(|| MlxError::Shapes {
        module: module.to_owned(),
        words: words.shape,
        scales: scales.shape,
        biases: biases.shape,
        bits,
        group,
    })?;
    tensors.insert(weight, entry);
    Ok(())
}

/// The shape of the elements, if the shapes of words and scales match.
fn shape_of(words: &[usize], scales: &[usize], QuantParams { bits, group }: QuantParams) -> Option<Shape> {
    let ((&row, outer), (&groups, scale_outer)) = (words.split_last()?, scales.split_last()?);
    let elements = groups.checked_mul(group)?;
    if outer != scale_outer || elements.checked_mul(bits)? != row.checked_mul(32)? {
        return None;
    }
    Shape::new(&[outer, &[elements]].concat()).ok()
}

/// File, offset and strides of rows, if their values are contiguous.
fn rows(entry: &TensorEntry) -> Option<(crate::index::FileId, u64, Strides)> {
    let [tile] = entry.tiles.as_slice() else { return None };
    let mut strides = row_major(&entry.shape, entry.dtype.size() as u64);
    if tile.strides != strides || tile.codec != Codec::Raw {
        return None;
    }
    *strides.last_mut()? = 0;
    Some((tile.file, tile.offset, strides))
}
