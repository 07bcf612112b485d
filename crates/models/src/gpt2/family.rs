//! GPT-2: layer norms, learned positions, fused query-key-value projections, and
//! transposed weights.

use std::sync::Arc;

use weightloom_checkpoint::{Index, KeyMap, KeyRule};
use weightloom_hub::{ConfigError, Family, family_config};
use weightloom_nn::{
    AttentionConfig, Decoder, DecoderConfig, Gating, HeadConfig, MlpConfig, NormConfig, NormKind,
    PositionConfig, ResidualForm, SharedDefinition,
};

use crate::archs::archs;
use crate::transformer::activation;

family_config! {
    /// Configuration of GPT-2 models.
    pub struct Gpt2Config {
        /// Size of the vocabulary.
        vocab_size: usize = 50257,
        /// Maximum sequence length.
        n_positions: usize = 1024,
        /// Hidden size.
        n_embd: usize = 768,
        /// Number of layers.
        n_layer: usize = 12,
        /// Number of heads.
        n_head: usize = 12,
        /// Inner size of the feed-forward block; by default `4 · n_embd`.
        n_inner: Option<usize> = None,
        /// Activation function.
        activation_function: String = "gelu_new".to_owned(),
        /// Epsilon of the norms.
        layer_norm_epsilon: f64 = 1e-5,
        /// Whether the head shares the token embedding.
        tie_word_embeddings: bool = true,
        /// Whether scores are divided by the square root of the head size.
        scale_attn_weights: bool = true,
        /// Whether scores are divided by the layer number.
        scale_attn_by_inverse_layer_idx: bool = false,
        /// Standard deviation of initial weights.
        initializer_range: f64 = 0.02,
    }
}

/// The model family.
#[derive(Clone, Copy, Debug)]
pub struct Gpt2;

/// The instance to register.
pub const FAMILY: Gpt2 = Gpt2;

impl Family for Gpt2 {
    type Config = Gpt2Config;
    type Model = Decoder;

    fn name(&self) -> &str {
        "gpt2"
    }

    fn architecture(&self) -> String {
        "GPT2LMHeadModel".to_owned()
    }

    fn archs(&self) -> Vec<(String, Gpt2Config)> {
        archs(include_str!("archs.yaml"))
    }

    fn definition(&self, config: &Gpt2Config) -> Result<SharedDefinition, ConfigError> {
        if config.scale_attn_by_inverse_layer_idx {
            return Err(ConfigError::NotSupported {
                key: "scale_attn_by_inverse_layer_idx".to_owned(),
                found: "true".to_owned(),
                supported: "false".to_owned(),
            });
        }
        let heads = config.n_head;
        Ok(Arc::new(DecoderConfig {
            vocabulary: config.vocab_size,
            hidden: config.n_embd,
            layers: config.n_layer,
            max_positions: config.n_positions,
            attention: AttentionConfig {
                heads,
                kv_heads: heads,
                width: config.n_embd.checked_div(heads).unwrap_or(0),
                scale: (!config.scale_attn_weights).then_some(1.0),
                input_bias: true,
                output_bias: true,
                qk_norm: None,
                window: None,
                soft_cap: None,
                latent: None,
                temperature: None,
            },
            positions: PositionConfig::Learned,
            norm: NormConfig { kind: NormKind::Layer, eps: config.layer_norm_epsilon, offset: 0.0 },
            residual: ResidualForm::Before,
            mlp: MlpConfig {
                inner: config.n_inner.unwrap_or(config.n_embd.saturating_mul(4)),
                activation: activation("activation_function", &config.activation_function)?,
                gating: Gating::Plain,
                bias: true,
            },
            experts: None,
            embedding_scale: None,
            head: HeadConfig { tied: config.tie_word_embeddings, bias: false, soft_cap: None },
            initializer: config.initializer_range,
        }))
    }

    fn keys(&self, config: &Gpt2Config, index: &Index) -> KeyMap {
        // Transformers writes the prefix, and the first checkpoints do not have it.
        let mut names = index.tensors().keys();
        let prefixed = names.len() == 0 || names.any(|name| name.starts_with("transformer."));
        let prefix = if prefixed { "transformer." } else { "" };
        let of_layer = |name: &str| format!("{prefix}h.{{}}.{name}");
        let ours = |name: &str| format!("model.layers.{{}}.{name}");
        let mut rules = vec![
            // Masks, which follow from positions.
            KeyRule::Drop { key: of_layer("attn.bias") },
            KeyRule::Drop { key: of_layer("attn.masked_bias") },
            KeyRule::Rename {
                from: format!("{prefix}wte.weight"),
                to: "model.embed_tokens.weight".to_owned(),
            },
            KeyRule::Rename {
                from: format!("{prefix}wpe.weight"),
                to: "model.embed_positions.weight".to_owned(),
            },
        ];
        for module in ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"] {
            rules.push(KeyRule::Transpose { key: of_layer(&format!("{module}.weight")) });
        }
        for part in ["weight", "bias"] {
            let into =
                ["q", "k", "v"].map(|name| (ours(&format!("self_attn.{name}_proj.{part}")), config.n_embd));
            let from = of_layer(&format!("attn.c_attn.{part}"));
            rules.push(KeyRule::Split { from, dim: 0, into: into.to_vec() });
            let renames = [
                ("ln_1", "input_layernorm"),
                ("ln_2", "post_attention_layernorm"),
                ("attn.c_proj", "self_attn.o_proj"),
                ("mlp.c_fc", "mlp.up_proj"),
                ("mlp.c_proj", "mlp.down_proj"),
            ];
            for (theirs, own) in renames {
                let (from, to) = (of_layer(&format!("{theirs}.{part}")), ours(&format!("{own}.{part}")));
                rules.push(KeyRule::Rename { from, to });
            }
            let (from, to) = (format!("{prefix}ln_f.{part}"), format!("model.norm.{part}"));
            rules.push(KeyRule::Rename { from, to });
        }
        KeyMap { rules }
    }
}
