//! OLMo 2: norms after each block, and over all queries and all keys.

use std::sync::Arc;

use weightloom_checkpoint::{Index, KeyMap};
use weightloom_hub::{ConfigError, Family, family_config};
use weightloom_nn::{Decoder, QkNorm, ResidualForm, SharedDefinition};

use crate::archs::archs;
use crate::transformer::{TransformerConfig, rename_in_layers};

family_config! {
    /// Configuration of OLMo 2 models.
    pub struct Olmo2Config {
        /// Whether attention has biases.
        attention_bias: bool = false,
        ..
        /// Shared keys.
        transformer: TransformerConfig,
    }
}

/// The model family.
#[derive(Clone, Copy, Debug)]
pub struct Olmo2;

/// The instance to register.
pub const FAMILY: Olmo2 = Olmo2;

impl Family for Olmo2 {
    type Config = Olmo2Config;
    type Model = Decoder;

    fn name(&self) -> &str {
        "olmo2"
    }

    fn architecture(&self) -> String {
        "Olmo2ForCausalLM".to_owned()
    }

    fn archs(&self) -> Vec<(String, Olmo2Config)> {
        archs(include_str!("archs.yaml"))
    }

    fn definition(&self, config: &Olmo2Config) -> Result<SharedDefinition, ConfigError> {
        let mut decoder = config.transformer.decoder()?;
        decoder.attention.input_bias = config.attention_bias;
        decoder.attention.output_bias = config.attention_bias;
        decoder.attention.qk_norm = Some(QkNorm::Whole);
        decoder.residual = ResidualForm::After;
        Ok(Arc::new(decoder))
    }

    fn keys(&self, _config: &Olmo2Config, _index: &Index) -> KeyMap {
        let norms = [
            ("post_attention_layernorm", "attention_output_layernorm"),
            ("post_feedforward_layernorm", "mlp_output_layernorm"),
        ];
        let rule = |(theirs, own)| rename_in_layers(&format!("{theirs}.weight"), &format!("{own}.weight"));
        KeyMap { rules: norms.map(rule).to_vec() }
    }
}
