//! Llama 2 and 3, and models of the same architecture: SmolLM2, TinyLlama.

use std::sync::Arc;

use weightloom_checkpoint::{Index, KeyMap};
use weightloom_hub::{ConfigError, Family, family_config};
use weightloom_nn::{Decoder, SharedDefinition};

use crate::archs::archs;
use crate::transformer::{TransformerConfig, drop_rope_frequencies};

family_config! {
    /// Configuration of Llama models.
    pub struct LlamaConfig {
        /// Whether attention has biases.
        attention_bias: bool = false,
        /// Whether feed-forward projections have biases.
        mlp_bias: bool = false,
        ..
        /// Shared keys.
        transformer: TransformerConfig,
    }
}

/// The model family.
#[derive(Clone, Copy, Debug)]
pub struct Llama;

/// The instance to register.
pub const FAMILY: Llama = Llama;

impl Family for Llama {
    type Config = LlamaConfig;
    type Model = Decoder;

    fn name(&self) -> &str {
        "llama"
    }

    fn architecture(&self) -> String {
        "LlamaForCausalLM".to_owned()
    }

    fn archs(&self) -> Vec<(String, LlamaConfig)> {
        archs(include_str!("archs.yaml"))
    }

    fn definition(&self, config: &LlamaConfig) -> Result<SharedDefinition, ConfigError> {
        let mut decoder = config.transformer.decoder()?;
        decoder.attention.input_bias = config.attention_bias;
        decoder.attention.output_bias = config.attention_bias;
        decoder.mlp.bias = config.mlp_bias;
        Ok(Arc::new(decoder))
    }

    fn keys(&self, _config: &LlamaConfig, _index: &Index) -> KeyMap {
        drop_rope_frequencies()
    }
}
