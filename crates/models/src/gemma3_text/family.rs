//! Gemma 3 without images: norms of queries and keys, and attention windows with a
//! separate rotation in five of six layers.

use std::sync::Arc;

use serde_json::{Map, Value};
use weightloom_checkpoint::{Index, KeyMap};
use weightloom_hub::{ConfigError, Family, Fields, family_config};
use weightloom_nn::{
    Decoder, LayerChoice, QkNorm, ResidualForm, RopeConfig, SharedDefinition, WindowConfig, WindowKind,
};

use crate::archs::archs;
use crate::gemma_transformer::GemmaTransformerConfig;
use crate::gemma2::norms_around_blocks;
use crate::rope::rope_of_map;
use crate::transformer::layers_of_type;

family_config! {
    /// Configuration of Gemma 3 models.
    pub struct Gemma3TextConfig {
        /// Activation function.
        hidden_activation: String = "gelu_pytorch_tanh".to_owned(),
        /// Maximum sequence length.
        max_position_embeddings: usize = 131_072,
        /// Scores are divided by its square root.
        query_pre_attn_scalar: usize = 256,
        /// Attention window.
        sliding_window: Option<usize> = Some(4096),
        /// The distance between layers without a window.
        sliding_window_pattern: Option<usize> = None,
        /// The kind of each layer, which takes precedence.
        layer_types: Option<Vec<String>> = None,
        /// Soft cap of the scores.
        attn_logit_softcapping: Option<f64> = None,
        /// Soft cap of the logits.
        final_logit_softcapping: Option<f64> = None,
        /// Base of the wavelengths.
        rope_theta: Option<f64> = None,
        /// Base of the wavelengths in layers with a window.
        rope_local_base_freq: Option<f64> = None,
        /// Scaling for longer contexts, in layers without a window.
        rope_scaling: Option<Map<String, Value>> = None,
        /// All of the above by kind of layer, in newer configurations.
        rope_parameters: Option<Map<String, Value>> = None,
        ..
        /// Shared keys.
        transformer: GemmaTransformerConfig,
    }
}

impl Gemma3TextConfig {
    fn rope(&self) -> Result<RopeConfig, ConfigError> {
        let empty = Map::new();
        let both = Fields::inside(self.rope_parameters.as_ref().unwrap_or(&empty), "rope_parameters");
        let full: Option<Map<String, Value>> = both.get("full_attention")?;
        let window: Option<Map<String, Value>> = both.get("sliding_attention")?;
        let positions = self.max_position_embeddings;
        let (key, full) = match &full {
            Some(map) => ("rope_parameters.full_attention", Some(map)),
            None => ("rope_scaling", self.rope_scaling.as_ref()),
        };
        let window = rope_of_map(
            "rope_parameters.sliding_attention",
            window.as_ref(),
            self.rope_local_base_freq.unwrap_or(10_000.0),
            positions,
        )?;
        let rope = rope_of_map(key, full, self.rope_theta.unwrap_or(1_000_000.0), positions)?;
        Ok(RopeConfig { window: Some(Box::new(window)), ..rope })
    }
}

/// The model family.
#[derive(Clone, Copy, Debug)]
pub struct Gemma3Text;

/// The instance to register.
pub const FAMILY: Gemma3Text = Gemma3Text;

impl Family for Gemma3Text {
    type Config = Gemma3TextConfig;
    type Model = Decoder;

    fn name(&self) -> &str {
        "gemma3_text"
    }

    fn architecture(&self) -> String {
        "Gemma3ForCausalLM".to_owned()
    }

    fn archs(&self) -> Vec<(String, Gemma3TextConfig)> {
        archs(include_str!("archs.yaml"))
    }

    fn definition(&self, config: &Gemma3TextConfig) -> Result<SharedDefinition, ConfigError> {
        let activation = ["hidden_activation", &config.hidden_activation];
        let mut decoder =
            config.transformer.decoder(config.rope()?, config.max_position_embeddings, activation)?;
        let layers = match (&config.layer_types, config.sliding_window_pattern.unwrap_or(6)) {
            (Some(types), _) => layers_of_type(types, decoder.layers, "sliding_attention")?,
            (None, 0) => {
                return Err(ConfigError::Value {
                    key: "sliding_window_pattern".to_owned(),
                    expected: "a positive integer".to_owned(),
                    found: "0".to_owned(),
                });
            }
            (None, step) => LayerChoice::matching(decoder.layers, |layer| !(layer + 1).is_multiple_of(step)),
        };
        let window = |size| WindowConfig { size, kind: WindowKind::Sliding, layers };
        decoder.attention.window = config.sliding_window.map(window);
        decoder.attention.scale = Some((config.query_pre_attn_scalar as f64).powf(-0.5));
        decoder.attention.soft_cap = config.attn_logit_softcapping;
        decoder.attention.qk_norm = Some(QkNorm::Head);
        decoder.head.soft_cap = config.final_logit_softcapping;
        decoder.residual = ResidualForm::Around;
        Ok(Arc::new(decoder))
    }

    fn keys(&self, _config: &Gemma3TextConfig, _index: &Index) -> KeyMap {
        norms_around_blocks()
    }
}
