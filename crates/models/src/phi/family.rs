//! Phi 1 to 2: attention and feed-forward side by side after one norm, biases, and
//! rotation of a part of each head.

use std::sync::Arc;

use weightloom_checkpoint::{Index, KeyMap};
use weightloom_hub::{ConfigError, Family, family_config};
use weightloom_nn::{
    AttentionConfig, Decoder, DecoderConfig, Gating, HeadConfig, MlpConfig, NormConfig, NormKind,
    PositionConfig, ResidualForm, SharedDefinition,
};

use crate::archs::archs;
use crate::rope::RopeKeys;
use crate::transformer::{activation, rename, rename_in_layers};

family_config! {
    /// Configuration of Phi models.
    pub struct PhiConfig {
        /// Size of the vocabulary.
        vocab_size: usize,
        /// Hidden size.
        hidden_size: usize,
        /// Inner size of the feed-forward block.
        intermediate_size: usize,
        /// Number of layers.
        num_hidden_layers: usize,
        /// Number of query heads.
        num_attention_heads: usize,
        /// Number of key-value heads; by default that of query heads.
        num_key_value_heads: Option<usize> = None,
        /// Activation function.
        hidden_act: String = "gelu_new".to_owned(),
        /// Maximum sequence length.
        max_position_embeddings: usize = 2048,
        /// Epsilon of the norms.
        layer_norm_eps: f64 = 1e-5,
        /// Whether the head shares the token embedding.
        tie_word_embeddings: bool = false,
        /// Whether queries and keys have norms.
        qk_layernorm: bool = false,
        /// The rotated part of a head.
        partial_rotary_factor: Option<f64> = None,
        /// Standard deviation of initial weights.
        initializer_range: f64 = 0.02,
        ..
        /// Rotary position embeddings.
        rope: RopeKeys,
    }
}

/// The model family.
#[derive(Clone, Copy, Debug)]
pub struct Phi;

/// The instance to register.
pub const FAMILY: Phi = Phi;

impl Family for Phi {
    type Config = PhiConfig;
    type Model = Decoder;

    fn name(&self) -> &str {
        "phi"
    }

    fn architecture(&self) -> String {
        "PhiForCausalLM".to_owned()
    }

    fn archs(&self) -> Vec<(String, PhiConfig)> {
        archs(include_str!("archs.yaml"))
    }

    fn definition(&self, config: &PhiConfig) -> Result<SharedDefinition, ConfigError> {
        if config.qk_layernorm {
            return Err(ConfigError::NotSupported {
                key: "qk_layernorm".to_owned(),
                found: "true".to_owned(),
                supported: "false".to_owned(),
            });
        }
        let (heads, positions) = (config.num_attention_heads, config.max_position_embeddings);
        let width = config.hidden_size.checked_div(heads).unwrap_or(0);
        let part = config.rope.parameter("partial_rotary_factor")?.or(config.partial_rotary_factor);
        let turned = (width as f64 * part.unwrap_or(0.5)) as usize;
        Ok(Arc::new(DecoderConfig {
            vocabulary: config.vocab_size,
            hidden: config.hidden_size,
            layers: config.num_hidden_layers,
            max_positions: positions,
            attention: AttentionConfig {
                heads,
                kv_heads: config.num_key_value_heads.unwrap_or(heads),
                width,
                scale: None,
                input_bias: true,
                output_bias: true,
                qk_norm: None,
                window: None,
                soft_cap: None,
                latent: None,
                temperature: None,
            },
            positions: PositionConfig::Rope(config.rope.rope(positions, Some(turned))?),
            norm: NormConfig { kind: NormKind::Layer, eps: config.layer_norm_eps, offset: 0.0 },
            residual: ResidualForm::Parallel,
            mlp: MlpConfig {
                inner: config.intermediate_size,
                activation: activation("hidden_act", &config.hidden_act)?,
                gating: Gating::Plain,
                bias: true,
            },
            experts: None,
            embedding_scale: None,
            head: HeadConfig { tied: config.tie_word_embeddings, bias: true, soft_cap: None },
            initializer: config.initializer_range,
        }))
    }

    fn keys(&self, _config: &PhiConfig, _index: &Index) -> KeyMap {
        let mut rules = Vec::new();
        for part in ["weight", "bias"] {
            let modules = [
                ("self_attn.dense", "self_attn.o_proj"),
                ("mlp.fc1", "mlp.up_proj"),
                ("mlp.fc2", "mlp.down_proj"),
            ];
            rules.extend(
                modules
                    .map(|(from, to)| rename_in_layers(&format!("{from}.{part}"), &format!("{to}.{part}"))),
            );
            rules.push(rename(&format!("model.final_layernorm.{part}"), &format!("model.norm.{part}")));
        }
        KeyMap { rules }
    }
}
