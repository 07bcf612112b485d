//! Configuration keys shared by the DeepSeek models: multi-head latent attention,
//! and experts beside one that every token uses.

use weightloom_hub::{ConfigError, family_config};
use weightloom_nn::{
    DecoderConfig, ExpertGroups, ExpertsConfig, LatentConfig, LayerChoice, PositionConfig, RopePairs,
};

use crate::transformer::TransformerConfig;

family_config! {
    /// Configuration keys shared by the DeepSeek models.
    pub struct DeepseekConfig {
        /// Whether attention has biases.
        attention_bias: bool = false,
        /// Size of the vector that queries are projected up from.
        q_lora_rank: Option<usize> = Some(1536),
        /// Size of the vector that keys and values are projected up from.
        kv_lora_rank: usize = 512,
        /// Size of the part of queries and keys that is not rotated.
        qk_nope_head_dim: usize = 128,
        /// Size of the rotated part.
        qk_rope_head_dim: usize = 64,
        /// Size of a value.
        v_head_dim: usize = 128,
        /// Number of experts; by default there are none.
        n_routed_experts: Option<usize> = None,
        /// Number of experts that every token uses.
        n_shared_experts: Option<usize> = None,
        /// Number of experts per token.
        num_experts_per_tok: Option<usize> = None,
        /// Inner size of an expert.
        moe_intermediate_size: usize = 1407,
        /// Layers without experts, from the first on.
        first_k_dense_replace: usize = 0,
        /// Number of groups of experts.
        n_group: Option<usize> = None,
        /// Number of groups per token.
        topk_group: Option<usize> = None,
        /// Factor of the experts' weights.
        routed_scaling_factor: f64 = 1.0,
        /// Whether the weights of the chosen experts are normalized.
        norm_topk_prob: bool = false,
        ..
        /// Shared keys.
        transformer: TransformerConfig,
    }
}

/// Epsilon of the norms of small vectors, which no key sets.
const LATENT_EPS: f64 = 1e-6;

impl DeepseekConfig {
    /// The decoder with latent attention, and without experts.
    pub(crate) fn decoder(&self, pairs: RopePairs) -> Result<DecoderConfig, ConfigError> {
        // Some configurations have `head_dim` as the size of the rotated part.
        let transformer = TransformerConfig { head_dim: None, ..self.transformer.clone() };
        let mut decoder = transformer.decoder()?;
        let width = self.qk_nope_head_dim.saturating_add(self.qk_rope_head_dim);
        decoder.attention.width = width;
        decoder.attention.input_bias = self.attention_bias;
        decoder.attention.output_bias = self.attention_bias;
        decoder.attention.latent = Some(LatentConfig {
            query_rank: self.q_lora_rank,
            kv_rank: self.kv_lora_rank,
            rope_width: self.qk_rope_head_dim,
            value_width: self.v_head_dim,
            eps: LATENT_EPS,
        });
        decoder.attention.scale = Some(self.score_scale(width)?);
        if let PositionConfig::Rope(rope) = &mut decoder.positions {
            rope.pairs = pairs;
        }
        Ok(decoder)
    }

    /// The factor of scores. YaRN for longer contexts makes it larger.
    fn score_scale(&self, width: usize) -> Result<f64, ConfigError> {
        let scale = (width.max(1) as f64).powf(-0.5);
        let keys = &self.transformer.rope;
        let Some(map) = keys.rope_parameters.as_ref().or(keys.rope_scaling.as_ref()) else {
            return Ok(scale);
        };
        let fields = weightloom_hub::Fields::inside(map, "rope_scaling");
        let factor: f64 = fields.get_or("factor", 1.0)?;
        let all: f64 = fields.get_or("mscale_all_dim", 0.0)?;
        let larger = if factor <= 1.0 || all == 0.0 { 1.0 } else { 0.1 * all * factor.ln() + 1.0 };
        Ok(scale * larger * larger)
    }

    /// The experts, in layers that have them.
    pub(crate) fn experts(&self, layers: usize) -> Option<ExpertsConfig> {
        let count = self.n_routed_experts.filter(|count| *count > 0)?;
        let inner = self.moe_intermediate_size;
        Some(ExpertsConfig {
            count,
            chosen: self.num_experts_per_tok.unwrap_or(0),
            inner,
            scale: Some(self.routed_scaling_factor),
            shared: self
                .n_shared_experts
                .filter(|shared| *shared > 0)
                .map(|shared| inner.saturating_mul(shared)),
            layers: LayerChoice::matching(layers, |layer| layer >= self.first_k_dense_replace),
            ..ExpertsConfig::default()
        })
    }

    /// The groups of experts, with the number of experts that score a group.
    pub(crate) fn groups(&self, best: usize) -> Option<ExpertGroups> {
        let (count, chosen) = (self.n_group?, self.topk_group?);
        // One group changes nothing.
        (count > 1).then_some(ExpertGroups { count, chosen, best })
    }
}
