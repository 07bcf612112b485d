//! Configuration keys shared by the Gemma models.

use weightloom_hub::{ConfigError, family_config};
use weightloom_nn::{
    AttentionConfig, DecoderConfig, Gating, HeadConfig, MlpConfig, NormConfig, NormKind, PositionConfig,
    ResidualForm, RopeConfig,
};

use crate::transformer::activation;

family_config! {
    /// Configuration keys shared by the Gemma models.
    pub struct GemmaTransformerConfig {
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
        /// Number of key-value heads.
        num_key_value_heads: usize,
        /// Size of a head.
        head_dim: usize = 256,
        /// Whether attention has biases.
        attention_bias: bool = false,
        /// Epsilon of the norms.
        rms_norm_eps: f64 = 1e-6,
        /// Whether the head shares the token embedding.
        tie_word_embeddings: bool = true,
        /// Whether tokens attend to later ones.
        use_bidirectional_attention: Option<bool> = None,
        /// Standard deviation of initial weights.
        initializer_range: f64 = 0.02,
    }
}

impl GemmaTransformerConfig {
    /// The decoder before changes of a version. `activation_key` names the key of
    /// the activation function in messages.
    pub(crate) fn decoder(
        &self,
        rope: RopeConfig,
        max_positions: usize,
        [activation_key, activation_name]: [&str; 2],
    ) -> Result<DecoderConfig, ConfigError> {
        if self.use_bidirectional_attention == Some(true) {
            return Err(ConfigError::NotSupported {
                key: "use_bidirectional_attention".to_owned(),
                found: "true".to_owned(),
                supported: "false".to_owned(),
            });
        }
        Ok(DecoderConfig {
            vocabulary: self.vocab_size,
            hidden: self.hidden_size,
            layers: self.num_hidden_layers,
            max_positions,
            attention: AttentionConfig {
                heads: self.num_attention_heads,
                kv_heads: self.num_key_value_heads,
                width: self.head_dim,
                scale: None,
                input_bias: self.attention_bias,
                output_bias: self.attention_bias,
                qk_norm: None,
                window: None,
                soft_cap: None,
                latent: None,
                temperature: None,
            },
            positions: PositionConfig::Rope(rope),
            norm: NormConfig { kind: NormKind::Rms, eps: self.rms_norm_eps, offset: 1.0 },
            residual: ResidualForm::Before,
            mlp: MlpConfig {
                inner: self.intermediate_size,
                activation: activation(activation_key, activation_name)?,
                gating: Gating::Gated,
                bias: false,
            },
            experts: None,
            embedding_scale: Some((self.hidden_size as f64).sqrt()),
            head: HeadConfig { tied: self.tie_word_embeddings, bias: false, soft_cap: None },
            initializer: self.initializer_range,
        })
    }
}
