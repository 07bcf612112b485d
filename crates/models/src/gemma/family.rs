//! Gemma: norms scaled by one plus their weights, and scaled embeddings.

use std::sync::Arc;

use weightloom_hub::{ConfigError, Family, family_config};
use weightloom_nn::{Decoder, SharedDefinition};

use crate::archs::archs;
use crate::gemma_transformer::GemmaTransformerConfig;
use crate::rope::RopeKeys;

family_config! {
    /// Configuration of Gemma models.
    pub struct GemmaConfig {
        /// Activation function.
        hidden_act: String = "gelu_pytorch_tanh".to_owned(),
        /// Activation function, which takes precedence.
        hidden_activation: Option<String> = None,
        /// Maximum sequence length.
        max_position_embeddings: usize = 8192,
        ..
        /// Shared keys.
        transformer: GemmaTransformerConfig,
        ..
        /// Rotary position embeddings.
        rope: RopeKeys,
    }
}

/// The model family.
#[derive(Clone, Copy, Debug)]
pub struct Gemma;

/// The instance to register.
pub const FAMILY: Gemma = Gemma;

impl Family for Gemma {
    type Config = GemmaConfig;
    type Model = Decoder;

    fn name(&self) -> &str {
        "gemma"
    }

    fn architecture(&self) -> String {
        "GemmaForCausalLM".to_owned()
    }

    fn archs(&self) -> Vec<(String, GemmaConfig)> {
        archs(include_str!("archs.yaml"))
    }

    fn definition(&self, config: &GemmaConfig) -> Result<SharedDefinition, ConfigError> {
        let activation = match (&config.hidden_activation, config.hidden_act.as_str()) {
            (Some(name), _) => name,
            // The first releases say so, and mean the approximation.
            (None, "gelu") => "gelu_pytorch_tanh",
            (None, name) => name,
        };
        let positions = config.max_position_embeddings;
        let rope = config.rope.rope(positions, None)?;
        Ok(Arc::new(config.transformer.decoder(rope, positions, ["hidden_act", activation])?))
    }
}
