//! Configuration keys shared by Llama and its relatives.

use weightloom_checkpoint::{KeyMap, KeyRule};
use weightloom_hub::{ConfigError, family_config};
use weightloom_nn::{
    Activation, AttentionConfig, DecoderConfig, Gating, HeadConfig, LayerChoice, MlpConfig, NormConfig,
    NormKind, PositionConfig, ResidualForm, WindowConfig, WindowKind,
};

use crate::rope::RopeKeys;

family_config! {
    /// Configuration keys shared by Llama and its relatives.
    pub struct TransformerConfig {
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
        /// Size of a head; by default `hidden_size / num_attention_heads`.
        head_dim: Option<usize> = None,
        /// Activation function.
        hidden_act: String = "silu".to_owned(),
        /// Maximum sequence length.
        max_position_embeddings: usize = 2048,
        /// Epsilon of the norms.
        rms_norm_eps: f64 = 1e-6,
        /// Whether the head shares the token embedding.
        tie_word_embeddings: bool = false,
        /// Standard deviation of initial weights.
        initializer_range: f64 = 0.02,
        ..
        /// Rotary position embeddings.
        rope: RopeKeys,
    }
}

/// Parses the name of an activation function.
pub(crate) fn activation(key: &str, name: &str) -> Result<Activation, ConfigError> {
    match name {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" => Ok(Activation::Gelu),
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(Activation::GeluTanh),
        "relu" => Ok(Activation::Relu),
        _ => Err(ConfigError::NotSupported {
            key: key.to_owned(),
            found: format!("`{name}`"),
            supported: "silu, gelu, gelu_new, gelu_pytorch_tanh, relu".to_owned(),
        }),
    }
}

impl TransformerConfig {
    /// The decoder before family-specific changes.
    pub(crate) fn decoder(&self) -> Result<DecoderConfig, ConfigError> {
        let heads = self.num_attention_heads;
        let width = self.head_dim.unwrap_or_else(|| self.hidden_size.checked_div(heads).unwrap_or(0));
        Ok(DecoderConfig {
            vocabulary: self.vocab_size,
            hidden: self.hidden_size,
            layers: self.num_hidden_layers,
            max_positions: self.max_position_embeddings,
            attention: AttentionConfig {
                heads,
                kv_heads: self.num_key_value_heads.unwrap_or(heads),
                width,
                scale: None,
                input_bias: false,
                output_bias: false,
                qk_norm: None,
                window: None,
                soft_cap: None,
                latent: None,
                temperature: None,
            },
            positions: PositionConfig::Rope(self.rope.rope(self.max_position_embeddings, None)?),
            norm: NormConfig { kind: NormKind::Rms, eps: self.rms_norm_eps, offset: 0.0 },
            residual: ResidualForm::Before,
            mlp: MlpConfig {
                inner: self.intermediate_size,
                activation: activation("hidden_act", &self.hidden_act)?,
                gating: Gating::Gated,
                bias: false,
            },
            experts: None,
            embedding_scale: None,
            head: HeadConfig { tied: self.tie_word_embeddings, bias: false, soft_cap: None },
            initializer: self.initializer_range,
        })
    }
}

/// Drops the rotary frequencies of old checkpoints, which follow from the
/// configuration.
pub(crate) fn drop_rope_frequencies() -> KeyMap {
    let key = |key: &str| KeyRule::Drop { key: key.to_owned() };
    KeyMap { rules: vec![key("model.layers.{}.self_attn.rotary_emb.inv_freq"), key("rope_freqs.weight")] }
}

family_config! {
    /// Sliding-window attention of Qwen models.
    pub struct WindowKeys {
        /// Whether it is used.
        use_sliding_window: bool = false,
        /// Window size.
        sliding_window: Option<usize> = Some(4096),
        /// First layer that uses it.
        max_window_layers: usize = 28,
        /// The kind of each layer, which takes precedence.
        layer_types: Option<Vec<String>> = None,
    }
}

impl WindowKeys {
    pub(crate) fn window(&self, layers: usize) -> Result<Option<WindowConfig>, ConfigError> {
        let Some(size) = self.sliding_window.filter(|_| self.use_sliding_window) else { return Ok(None) };
        let Some(types) = &self.layer_types else {
            let layers = LayerChoice::matching(layers, |layer| layer >= self.max_window_layers);
            return Ok(Some(WindowConfig { size, kind: WindowKind::Sliding, layers }));
        };
        let layers = layers_of_type(types, layers, "sliding_attention")?;
        Ok(Some(WindowConfig { size, kind: WindowKind::Sliding, layers }))
    }
}

/// The layers that `layer_types` gives the type of a window; all others must have
/// full attention.
pub(crate) fn layers_of_type(
    types: &[String],
    layers: usize,
    windowed: &str,
) -> Result<LayerChoice, ConfigError> {
    let known = ["full_attention", windowed];
    if let Some(other) = types.iter().find(|kind| !known.contains(&kind.as_str())) {
        return Err(ConfigError::NotSupported {
            key: "layer_types".to_owned(),
            found: format!("`{other}` for a layer"),
            supported: known.join(", "),
        });
    }
    Ok(LayerChoice::matching(layers, |layer| types.get(layer).is_some_and(|kind| kind == windowed)))
}

/// A rule that renames a tensor.
pub(crate) fn rename(from: &str, to: &str) -> KeyRule {
    KeyRule::Rename { from: from.to_owned(), to: to.to_owned() }
}

/// A rule that renames a tensor of each layer.
pub(crate) fn rename_in_layers(from: &str, to: &str) -> KeyRule {
    rename(&format!("model.layers.{{}}.{from}"), &format!("model.layers.{{}}.{to}"))
}

/// Rules that stack the experts of each layer, which published checkpoints store
/// one by one below `module`. `names` are theirs of the gate, up and down
/// projections.
pub(crate) fn stack_experts(module: &str, names: [&str; 3]) -> Vec<KeyRule> {
    let stacked = |(theirs, own): (&str, &str)| KeyRule::Stack {
        from: format!("model.layers.{{}}.{module}.{{}}.{theirs}.weight"),
        to: format!("model.layers.{{}}.mlp.experts.{own}_proj.weight"),
    };
    names.into_iter().zip(["gate", "up", "down"]).map(stacked).collect()
}
