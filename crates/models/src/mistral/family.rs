//! Mistral.

use weightloom_checkpoint::{Index, KeyMap};
use weightloom_hub::{ConfigError, Family, family_config};
use weightloom_nn::{DecoderConfig, LayerChoice, WindowConfig};

use crate::archs::archs;
use crate::transformer::{TransformerConfig, no_frequencies};

family_config! {
    /// The configuration of a Mistral.
    pub struct MistralConfig {
        /// How far each position sees, if not everything.
        sliding_window: Option<usize> = Some(4096),
        ..
        /// What it has in common with its relatives.
        transformer: TransformerConfig,
    }
}

/// The family.
#[derive(Clone, Copy, Debug)]
pub struct Mistral;

/// As it is registered.
pub const FAMILY: Mistral = Mistral;

impl Family for Mistral {
    type Config = MistralConfig;

    fn name(&self) -> &str {
        "mistral"
    }

    fn architecture(&self) -> String {
        "MistralForCausalLM".to_owned()
    }

    fn archs(&self) -> Vec<(String, MistralConfig)> {
        archs(include_str!("archs.yaml"))
    }

    fn decoder(&self, config: &MistralConfig) -> Result<DecoderConfig, ConfigError> {
        let mut decoder = config.transformer.decoder()?;
        decoder.attention.window =
            config.sliding_window.map(|size| WindowConfig { size, layers: LayerChoice::All });
        Ok(decoder)
    }

    fn keys(&self, _config: &MistralConfig, _index: &Index) -> KeyMap {
        no_frequencies()
    }
}
