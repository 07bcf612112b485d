//! Adapter folders of PEFT and MLX. [`to_peft`] and [`to_mlx`] convert between
//! them.
//!
//! The index's metadata contain the adapter's config, because tensors alone do
//! not determine their scale.

mod export;
mod mlx;

pub use export::{PeftAdapter, to_peft};
pub use mlx::{MlxAdapter, to_mlx};

use weightloom_errors::Hint;
use weightloom_layout::Shape;

use super::{npz, safetensors};
use crate::error::CheckpointError;
use crate::index::{Format, Index, StoredFile};
use crate::storage::Storage;

/// PEFT's prefix of module names.
pub const PREFIX: &str = "base_model.model.";

/// Options of PEFT that change what a low-rank update computes and are not
/// supported: they must be off.
pub const MUST_BE_OFF: [&str; 10] = [
    "use_qalora",
    "use_bdlora",
    "layer_replication",
    "alora_invocation_tokens",
    "trainable_token_indices",
    "target_parameters",
    "kasa_config",
    "arrow_config",
    "monteclora_config",
    "velora_config",
];

/// The config file of an adapter, and the key of its text in the index's
/// metadata.
pub const CONFIG: &str = "adapter_config.json";

/// The longest config that is read.
const MAX_CONFIG: u64 = 1 << 24;

/// Why an adapter cannot be read or converted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum PeftError {
    #[error("malformed config: {message}")]
    Config { message: String },
    #[error("a {format} checkpoint is not an adapter")]
    NotAdapter { format: Format },
    #[error("PEFT does not support weights of kind {kind}")]
    Kind {
        /// The config's `fine_tune_type`.
        kind: String,
    },
    #[error("`lora_parameters.scale` is missing")]
    NoScale,
    #[error("scale {scale} together with alpha {alpha} is ambiguous between versions of MLX")]
    Alpha { scale: String, alpha: String },
    #[error("`{tensor}` does not belong to a low-rank adapter")]
    NotLowRank { tensor: String },
    #[error("`{tensor}` has shape {shape}, and PEFT needs a matrix")]
    Dims { tensor: String, shape: Shape },
    #[error("MLX does not support adapters with `{key}` {value}")]
    NotInMlx { key: String, value: String },
    #[error("`{module}` has only one of `lora_a` and `lora_b`")]
    Half { module: String },
    #[error("`{module}` has rank {found}, others have {expected}")]
    Rank { module: String, found: usize, expected: usize },
}

impl Hint for PeftError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::NoScale => Some(format!("add the scale that the adapter was trained with to `{CONFIG}`")),
            Self::Alpha { .. } => Some(format!(
                "remove `alpha` from `{CONFIG}`; if the adapter was trained when MLX still had it, multiply \
                 `scale` by alpha / rank"
            )),
            Self::NotInMlx { .. } => {
                Some("merge the adapter into its model, and convert the model".to_owned())
            }
            Self::Kind { .. } => Some("load the weights as a checkpoint instead of an adapter".to_owned()),
            _ => None,
        }
    }
}

/// Indexes an adapter folder; `None` if the folder is not one.
pub fn read_folder(storage: &dyn Storage, files: &[StoredFile]) -> Result<Option<Index>, CheckpointError> {
    let has = |name: &str| files.iter().any(|file| file.name == name);
    if !has(CONFIG) {
        return Ok(None);
    }
    let index = if has("adapter_model.safetensors") {
        safetensors::read_file(storage, "adapter_model.safetensors")?.with_format(Format::Peft)
    } else if has("adapters.safetensors") {
        safetensors::read_file(storage, "adapters.safetensors")?.with_format(Format::Mlx)
    } else if has("adapters.npz") {
        npz::read_file(storage, "adapters.npz")?.with_format(Format::Mlx)
    } else if has("adapter_model.bin") {
        super::torch::read_file(storage, "adapter_model.bin")?.with_format(Format::Peft)
    } else {
        return Ok(None);
    };
    let config = String::from_utf8(storage.read_all(CONFIG, MAX_CONFIG)?).map_err(|error| {
        CheckpointError::format(CONFIG, PeftError::Config { message: error.utf8_error().to_string() })
    })?;
    let mut metadata = index.metadata().clone();
    metadata.insert(CONFIG.to_owned(), config);
    Ok(Some(index.with_metadata(metadata)))
}
