//! Qwen 3: queries and keys have norms.

use std::sync::Arc;

use weightloom_hub::{ConfigError, Family, family_config};
use weightloom_nn::{Decoder, DecoderConfig, QkNorm, SharedDefinition};

use crate::archs::archs;
use crate::transformer::{TransformerConfig, WindowKeys};

family_config! {
    /// Configuration of Qwen 3 models.
    pub struct Qwen3Config {
        /// Whether attention has biases.
        attention_bias: bool = false,
        ..
        /// Shared keys.
        transformer: TransformerConfig,
        ..
        /// Sliding-window attention.
        window: WindowKeys,
    }
}

impl Qwen3Config {
    pub(crate) fn decoder(&self) -> Result<DecoderConfig, ConfigError> {
        let mut decoder = self.transformer.decoder()?;
        // Its heads have this width unless something else is said.
        decoder.attention.width = self.transformer.head_dim.unwrap_or(128);
        decoder.attention.input_bias = self.attention_bias;
        decoder.attention.output_bias = self.attention_bias;
        decoder.attention.qk_norm = Some(QkNorm::Head);
        decoder.attention.window = self.window.window(decoder.layers)?;
        Ok(decoder)
    }
}

/// The model family.
#[derive(Clone, Copy, Debug)]
pub struct Qwen3;

/// The instance to register.
pub const FAMILY: Qwen3 = Qwen3;

impl Family for Qwen3 {
    type Config = Qwen3Config;
    type Model = Decoder;

    fn name(&self) -> &str {
        "qwen3"
    }

    fn architecture(&self) -> String {
        "Qwen3ForCausalLM".to_owned()
    }

    fn archs(&self) -> Vec<(String, Qwen3Config)> {
        archs(include_str!("archs.yaml"))
    }

    fn definition(&self, config: &Qwen3Config) -> Result<SharedDefinition, ConfigError> {
        Ok(Arc::new(config.decoder()?))
    }
}
