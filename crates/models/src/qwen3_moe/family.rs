//! Qwen 3 mixture-of-experts models.

use std::sync::Arc;

use std::collections::BTreeSet;

use weightloom_checkpoint::{Index, KeyMap};
use weightloom_hub::{ConfigError, Family, family_config};
use weightloom_nn::{Decoder, ExpertWeights, ExpertsConfig, LayerChoice, SharedDefinition};

use crate::archs::archs;
use crate::qwen3::Qwen3Config;
use crate::transformer::stack_experts;

family_config! {
    /// Configuration of Qwen 3 mixture-of-experts models.
    pub struct Qwen3MoeConfig {
        /// Number of experts.
        num_experts: Option<usize> = None,
        /// The same, in newer configurations.
        num_local_experts: Option<usize> = None,
        /// Number of experts per token.
        num_experts_per_tok: usize = 8,
        /// Inner size of an expert.
        moe_intermediate_size: usize = 768,
        /// Whether the weights of the chosen experts are normalized.
        norm_topk_prob: bool = false,
        /// Every n-th layer has experts.
        decoder_sparse_step: usize = 1,
        /// Layers without experts.
        mlp_only_layers: Vec<usize> = Vec::new(),
        ..
        /// Keys of dense Qwen 3 models.
        qwen3: Qwen3Config,
    }
}

/// The model family.
#[derive(Clone, Copy, Debug)]
pub struct Qwen3Moe;

/// The instance to register.
pub const FAMILY: Qwen3Moe = Qwen3Moe;

impl Family for Qwen3Moe {
    type Config = Qwen3MoeConfig;
    type Model = Decoder;

    fn name(&self) -> &str {
        "qwen3_moe"
    }

    fn architecture(&self) -> String {
        "Qwen3MoeForCausalLM".to_owned()
    }

    fn archs(&self) -> Vec<(String, Qwen3MoeConfig)> {
        archs(include_str!("archs.yaml"))
    }

    fn definition(&self, config: &Qwen3MoeConfig) -> Result<SharedDefinition, ConfigError> {
        let mut decoder = config.qwen3.decoder()?;
        let count = config.num_experts.or(config.num_local_experts).unwrap_or(128);
        let step = config.decoder_sparse_step;
        let dense: BTreeSet<usize> = config.mlp_only_layers.iter().copied().collect();
        let has = |layer: usize| step > 0 && (layer + 1).is_multiple_of(step) && !dense.contains(&layer);
        decoder.experts = (count > 0).then(|| ExpertsConfig {
            count,
            chosen: config.num_experts_per_tok,
            inner: config.moe_intermediate_size,
            weights: if config.norm_topk_prob { ExpertWeights::Normalised } else { ExpertWeights::OfAll },
            layers: LayerChoice::matching(decoder.layers, has),
            ..ExpertsConfig::default()
        });
        Ok(Arc::new(decoder))
    }

    /// Stacks the experts, which published checkpoints store one by one.
    fn keys(&self, _config: &Qwen3MoeConfig, _index: &Index) -> KeyMap {
        KeyMap { rules: stack_experts("mlp.experts", ["gate_proj", "up_proj", "down_proj"]) }
    }
}
