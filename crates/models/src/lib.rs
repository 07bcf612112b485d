//! Families of models, as data over one decoder.
//!
//! A family says how a published `config.json` is read, how the names in its
//! checkpoints translate, and which sizes were published. Each has a file here
//! and a folder with its archs and cards.

mod archs;
mod gpt2;
mod llama;
mod mistral;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod rope;
mod transformer;

pub use gpt2::{Gpt2, Gpt2Config};
pub use llama::{Llama, LlamaConfig};
pub use mistral::{Mistral, MistralConfig};
pub use qwen2::{Qwen2, Qwen2Config};
pub use qwen3::{Qwen3, Qwen3Config};
pub use qwen3_moe::{Qwen3Moe, Qwen3MoeConfig};
pub use transformer::TransformerConfig;

use shardloom_hub::{Families, FamilyError};

/// Registers every family of this crate.
pub fn register(families: &mut Families) -> Result<(), FamilyError> {
    families.register(Llama)?;
    families.register(Mistral)?;
    families.register(Qwen2)?;
    families.register(Qwen3)?;
    families.register(Qwen3Moe)?;
    families.register(Gpt2)
}

/// The cards of every family of this crate: file names and texts.
pub const CARDS: &[(&str, &str)] = &[
    ("llama/cards.yaml", include_str!("llama/cards.yaml")),
    ("mistral/cards.yaml", include_str!("mistral/cards.yaml")),
    ("qwen2/cards.yaml", include_str!("qwen2/cards.yaml")),
    ("qwen3/cards.yaml", include_str!("qwen3/cards.yaml")),
    ("qwen3_moe/cards.yaml", include_str!("qwen3_moe/cards.yaml")),
    ("gpt2/cards.yaml", include_str!("gpt2/cards.yaml")),
];
