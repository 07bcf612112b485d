//! Gemma 2: norms before and after each block, soft caps, and attention windows in
//! every second layer.

use std::sync::Arc;

use weightloom_checkpoint::{Index, KeyMap};
use weightloom_hub::{ConfigError, Family, family_config};
use weightloom_nn::{Decoder, LayerChoice, ResidualForm, SharedDefinition, WindowConfig, WindowKind};

use crate::archs::archs;
use crate::gemma_transformer::GemmaTransformerConfig;
use crate::rope::RopeKeys;
use crate::transformer::{layers_of_type, rename_in_layers};

family_config! {
    /// Configuration of Gemma 2 models.
    pub struct Gemma2Config {
        /// Activation function.
        hidden_activation: String = "gelu_pytorch_tanh".to_owned(),
        /// Maximum sequence length.
        max_position_embeddings: usize = 8192,
        /// Scores are divided by its square root.
        query_pre_attn_scalar: usize = 256,
        /// Attention window.
        sliding_window: Option<usize> = Some(4096),
        /// The kind of each layer; by default every second one has a window, the
        /// first among them.
        layer_types: Option<Vec<String>> = None,
        /// Soft cap of the scores.
        attn_logit_softcapping: Option<f64> = Some(50.0),
        /// Soft cap of the logits.
        final_logit_softcapping: Option<f64> = Some(30.0),
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
pub struct Gemma2;

/// The instance to register.
pub const FAMILY: Gemma2 = Gemma2;

impl Family for Gemma2 {
    type Config = Gemma2Config;
    type Model = Decoder;

    fn name(&self) -> &str {
        "gemma2"
    }

    fn architecture(&self) -> String {
        "Gemma2ForCausalLM".to_owned()
    }

    fn archs(&self) -> Vec<(String, Gemma2Config)> {
        archs(include_str!("archs.yaml"))
    }

    fn definition(&self, config: &Gemma2Config) -> Result<SharedDefinition, ConfigError> {
        let positions = config.max_position_embeddings;
        let rope = config.rope.rope(positions, None)?;
        let activation = ["hidden_activation", &config.hidden_activation];
        let mut decoder = config.transformer.decoder(rope, positions, activation)?;
        let layers = match &config.layer_types {
            Some(types) => layers_of_type(types, decoder.layers, "sliding_attention")?,
            None => LayerChoice::matching(decoder.layers, |layer| layer.is_multiple_of(2)),
        };
        let window = |size| WindowConfig { size, kind: WindowKind::Sliding, layers };
        decoder.attention.window = config.sliding_window.map(window);
        decoder.attention.scale = Some((config.query_pre_attn_scalar as f64).powf(-0.5));
        decoder.attention.soft_cap = config.attn_logit_softcapping;
        decoder.head.soft_cap = config.final_logit_softcapping;
        decoder.residual = ResidualForm::Around;
        Ok(Arc::new(decoder))
    }

    fn keys(&self, _config: &Gemma2Config, _index: &Index) -> KeyMap {
        norms_around_blocks()
    }
}

/// The names of norms before and after each block.
pub(crate) fn norms_around_blocks() -> KeyMap {
    let norms = [
        ("post_attention_layernorm", "attention_output_layernorm"),
        ("pre_feedforward_layernorm", "post_attention_layernorm"),
        ("post_feedforward_layernorm", "mlp_output_layernorm"),
    ];
    let rule = |(theirs, own)| rename_in_layers(&format!("{theirs}.weight"), &format!("{own}.weight"));
    KeyMap { rules: norms.map(rule).to_vec() }
}
