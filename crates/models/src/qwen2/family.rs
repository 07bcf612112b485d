//! Qwen 2 and 2.5: queries, keys and values have biases.

use std::sync::Arc;

use weightloom_checkpoint::{Index, KeyMap};
use weightloom_hub::{ConfigError, Family, family_config};
use weightloom_nn::{Decoder, SharedDefinition};

use crate::archs::archs;
use crate::transformer::{TransformerConfig, WindowKeys, drop_rope_frequencies};

family_config! {
    /// Configuration of Qwen 2 models.
    pub struct Qwen2Config {
        ..
        /// Shared keys.
        transformer: TransformerConfig,
        ..
        /// Sliding-window attention.
        window: WindowKeys,
    }
}

/// The model family.
#[derive(Clone, Copy, Debug)]
pub struct Qwen2;

/// The instance to register.
pub const FAMILY: Qwen2 = Qwen2;

impl Family for Qwen2 {
    type Config = Qwen2Config;
    type Model = Decoder;

    fn name(&self) -> &str {
        "qwen2"
    }

    fn architecture(&self) -> String {
        "Qwen2ForCausalLM".to_owned()
    }

    fn archs(&self) -> Vec<(String, Qwen2Config)> {
        archs(include_str!("archs.yaml"))
    }

    fn definition(&self, config: &Qwen2Config) -> Result<SharedDefinition, ConfigError> {
        let mut decoder = config.transformer.decoder()?;
        decoder.attention.input_bias = true;
        decoder.attention.window = config.window.window(decoder.layers)?;
        Ok(Arc::new(decoder))
    }

    fn keys(&self, _config: &Qwen2Config, _index: &Index) -> KeyMap {
        drop_rope_frequencies()
    }
}
