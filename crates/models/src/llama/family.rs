//! Llama 2 and 3, and what is built like them: SmolLM2, TinyLlama.

use weightloom_checkpoint::{Index, KeyMap};
use weightloom_hub::{ConfigError, Family, family_config};
use weightloom_nn::DecoderConfig;

use crate::archs::archs;
use crate::transformer::{TransformerConfig, no_frequencies};

family_config! {
    /// The configuration of a Llama.
    pub struct LlamaConfig {
        /// Whether attention has biases.
        attention_bias: bool = false,
        /// Whether MLPs have biases.
        mlp_bias: bool = false,
        ..
        /// What it has in common with its relatives.
        transformer: TransformerConfig,
    }
}

/// The family.
#[derive(Clone, Copy, Debug)]
pub struct Llama;

/// As it is registered.
pub const FAMILY: Llama = Llama;

impl Family for Llama {
    type Config = LlamaConfig;

    fn name(&self) -> &str {
        "llama"
    }

    fn architecture(&self) -> String {
        "LlamaForCausalLM".to_owned()
    }

    fn archs(&self) -> Vec<(String, LlamaConfig)> {
        archs(include_str!("archs.yaml"))
    }

    fn decoder(&self, config: &LlamaConfig) -> Result<DecoderConfig, ConfigError> {
        let mut decoder = config.transformer.decoder()?;
        decoder.attention.input_bias = config.attention_bias;
        decoder.attention.output_bias = config.attention_bias;
        decoder.mlp.bias = config.mlp_bias;
        Ok(decoder)
    }

    fn keys(&self, _config: &LlamaConfig, _index: &Index) -> KeyMap {
        no_frequencies()
    }
}
