//! Adapter folders: those of PEFT, and those of MLX. [`to_peft`] turns all into
//! the former, [`to_mlx`] into the latter.
//!
//! The adapter's config is kept as text under the name of its file, because
//! tensors alone do not say how strongly they count.

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

/// What PEFT puts before the names of modules.
pub const PREFIX: &str = "base_model.model.";

/// Options of PEFT that change what a low-rank update computes, and that nobody
/// here does: they must be off.
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

/// The file that tells an adapter from a model, and the key of its text in the
/// index.
pub const CONFIG: &str = "adapter_config.json";

/// The longest config that is read.
const MAX_CONFIG: u64 = 1 << 24;

/// What is wrong with an adapter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum PeftError {
    /// The config is not text, not JSON or not there.
    #[error("its config is not valid: {message}")]
    Config { message: String },
    /// No adapter at all.
    #[error("a checkpoint of kind {format} is no adapter")]
    NotAdapter { format: Format },
    /// Trained weights that are not low-rank.
    #[error("it holds weights of kind {kind}, which PEFT has no form for")]
    Kind {
        /// The kind, in the words of the config.
        kind: String,
    },
    /// The config does not say how strongly the adapter counts.
    #[error("its config has no `lora_parameters.scale`")]
    NoScale,
    /// The config says it in two ways.
    #[error("its config has scale {scale} and alpha {alpha}, which versions of MLX take differently")]
    Alpha { scale: String, alpha: String },
    /// A tensor that belongs to no low-rank adapter.
    #[error("`{tensor}` is no part of a low-rank adapter")]
    NotLowRank { tensor: String },
    /// A tensor of other dims than PEFT has.
    #[error("`{tensor}` has shape {shape}, which PEFT has no form for")]
    Dims { tensor: String, shape: Shape },
    /// An option of PEFT that MLX does not have.
    #[error("MLX has no form for an adapter with `{key}` {value}")]
    NotInMlx { key: String, value: String },
    /// One half of an adapter.
    #[error("`{module}` has only one of `lora_a` and `lora_b`")]
    Half { module: String },
    /// Modules of different rank.
    #[error("`{module}` has rank {found}, others have {expected}")]
    Rank { module: String, found: usize, expected: usize },
}

impl Hint for PeftError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::NoScale => Some(format!("add what the adapter was trained with to `{CONFIG}`")),
            Self::Alpha { .. } => Some(format!(
                "remove `alpha` from `{CONFIG}`; if the adapter was trained when MLX still had it, multiply \
                 `scale` by alpha / rank"
            )),
            Self::NotInMlx { .. } => {
                Some("merge the adapter into its model, and convert the model".to_owned())
            }
            Self::Kind { .. } => Some("load the weights as a checkpoint of their own".to_owned()),
            _ => None,
        }
    }
}

/// Indexes an adapter folder; `None` if it is none.
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
