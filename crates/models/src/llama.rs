//! Llama 2 and 3, and what is built like them: SmolLM2, TinyLlama.

use shardloom_checkpoint::{Index, KeyMap, KeyRule};
use shardloom_hub::{ConfigError, Family, family_config};
use shardloom_nn::DecoderConfig;

use crate::archs::archs;
use crate::transformer::TransformerConfig;

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

impl Family for Llama {
    type Config = LlamaConfig;

    fn name(&self) -> &str {
        "llama"
    }

    fn architecture(&self) -> String {
        "LlamaForCausalLM".to_owned()
    }

    fn archs(&self) -> Vec<(String, LlamaConfig)> {
        archs(include_str!("llama/archs.yaml"))
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

/// Old checkpoints hold the frequencies of angles, which follow from the
/// configuration.
pub(crate) fn no_frequencies() -> KeyMap {
    let key = |key: &str| KeyRule::Drop { key: key.to_owned() };
    KeyMap { rules: vec![key("model.layers.{}.self_attn.rotary_emb.inv_freq"), key("rope_freqs.weight")] }
}
