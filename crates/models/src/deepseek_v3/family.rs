//! DeepSeek V3 and R1: experts are scored by a sigmoid, and chosen with a bias that
//! balances them.

use std::sync::Arc;

use weightloom_checkpoint::{Index, KeyMap, KeyRule};
use weightloom_hub::{ConfigError, Family, family_config};
use weightloom_nn::{Decoder, ExpertScores, ExpertWeights, RopePairs, SharedDefinition};

use crate::archs::archs;
use crate::deepseek::DeepseekConfig;
use crate::transformer::stack_experts;

family_config! {
    /// Configuration of DeepSeek V3 models.
    pub struct DeepseekV3Config {
        /// Whether neighbours are rotated together.
        rope_interleave: bool = true,
        /// Number of layers that predict more than one token, which are not read.
        num_nextn_predict_layers: usize = 0,
        ..
        /// Shared keys.
        deepseek: DeepseekConfig,
    }
}

/// The model family.
#[derive(Clone, Copy, Debug)]
pub struct DeepseekV3;

/// The instance to register.
pub const FAMILY: DeepseekV3 = DeepseekV3;

impl Family for DeepseekV3 {
    type Config = DeepseekV3Config;
    type Model = Decoder;

    fn name(&self) -> &str {
        "deepseek_v3"
    }

    fn architecture(&self) -> String {
        "DeepseekV3ForCausalLM".to_owned()
    }

    fn archs(&self) -> Vec<(String, DeepseekV3Config)> {
        archs(include_str!("archs.yaml"))
    }

    fn definition(&self, config: &DeepseekV3Config) -> Result<SharedDefinition, ConfigError> {
        let pairs = if config.rope_interleave { RopePairs::Interleaved } else { RopePairs::Halves };
        let mut decoder = config.deepseek.decoder(pairs)?;
        decoder.experts = config.deepseek.experts(decoder.layers);
        if let Some(experts) = &mut decoder.experts {
            experts.scores = ExpertScores::Sigmoid;
            experts.correction_bias = true;
            experts.groups = config.deepseek.groups(2);
            experts.weights =
                if config.deepseek.norm_topk_prob { ExpertWeights::Normalised } else { ExpertWeights::OfAll };
        }
        Ok(Arc::new(decoder))
    }

    /// Stacks the experts, which published checkpoints store one by one, and drops
    /// the layers that predict more than one token.
    fn keys(&self, config: &DeepseekV3Config, _index: &Index) -> KeyMap {
        let first = config.deepseek.transformer.num_hidden_layers;
        let extra = first..first.saturating_add(config.num_nextn_predict_layers.min(MAX_EXTRA_LAYERS));
        // Below a layer, names have two to five segments.
        let drop = |layer: usize| {
            (2..=5).map(move |depth| KeyRule::Drop {
                key: format!("model.layers.{layer}{}", ".{}".repeat(depth)),
            })
        };
        let mut rules: Vec<KeyRule> = extra.flat_map(drop).collect();
        rules.extend(stack_experts("mlp.experts", ["gate_proj", "up_proj", "down_proj"]));
        KeyMap { rules }
    }
}

/// Limit for layers that predict more than one token; published models have one.
const MAX_EXTRA_LAYERS: usize = 16;
