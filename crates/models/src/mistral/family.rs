//! Mistral.

use std::sync::Arc;

use weightloom_checkpoint::{Index, KeyMap};
use weightloom_hub::{ConfigError, Family, family_config};
use weightloom_nn::{Decoder, LayerChoice, SharedDefinition, WindowConfig, WindowKind};

use crate::archs::archs;
use crate::transformer::{TransformerConfig, drop_rope_frequencies};

family_config! {
    /// Configuration of Mistral models.
    pub struct MistralConfig {
        /// Attention window; by default none.
        sliding_window: Option<usize> = Some(4096),
        ..
        /// Shared keys.
        transformer: TransformerConfig,
    }
}

/// The model family.
#[derive(Clone, Copy, Debug)]
pub struct Mistral;

/// The instance to register.
pub const FAMILY: Mistral = Mistral;

impl Family for Mistral {
    type Config = MistralConfig;
    type Model = Decoder;

    fn name(&self) -> &str {
        "mistral"
    }

    fn architecture(&self) -> String {
        "MistralForCausalLM".to_owned()
    }

    fn archs(&self) -> Vec<(String, MistralConfig)> {
        archs(include_str!("archs.yaml"))
    }

    fn definition(&self, config: &MistralConfig) -> Result<SharedDefinition, ConfigError> {
        let mut decoder = config.transformer.decoder()?;
        decoder.attention.window = config.sliding_window.map(|size| WindowConfig {
            size,
            kind: WindowKind::Sliding,
            layers: LayerChoice::All,
        });
        Ok(Arc::new(decoder))
    }

    fn keys(&self, _config: &MistralConfig, _index: &Index) -> KeyMap {
        drop_rope_frequencies()
    }
}
