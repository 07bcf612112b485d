//! DeepSeek V2: latent attention, and experts chosen from some groups of them.

use std::sync::Arc;

use weightloom_checkpoint::{Index, KeyMap};
use weightloom_hub::{ConfigError, Family, family_config};
use weightloom_nn::{Decoder, ExpertWeights, RopePairs, SharedDefinition};

use crate::archs::archs;
use crate::deepseek::DeepseekConfig;
use crate::transformer::stack_experts;

family_config! {
    /// Configuration of DeepSeek V2 models.
    pub struct DeepseekV2Config {
        /// How experts are chosen.
        topk_method: String = "greedy".to_owned(),
        /// Whether feed-forward projections have biases.
        mlp_bias: bool = false,
        ..
        /// Shared keys.
        deepseek: DeepseekConfig,
    }
}

/// The model family.
#[derive(Clone, Copy, Debug)]
pub struct DeepseekV2;

/// The instance to register.
pub const FAMILY: DeepseekV2 = DeepseekV2;

impl Family for DeepseekV2 {
    type Config = DeepseekV2Config;
    type Model = Decoder;

    fn name(&self) -> &str {
        "deepseek_v2"
    }

    fn architecture(&self) -> String {
        "DeepseekV2ForCausalLM".to_owned()
    }

    fn archs(&self) -> Vec<(String, DeepseekV2Config)> {
        archs(include_str!("archs.yaml"))
    }

    fn definition(&self, config: &DeepseekV2Config) -> Result<SharedDefinition, ConfigError> {
        let mut decoder = config.deepseek.decoder(RopePairs::Interleaved)?;
        decoder.mlp.bias = config.mlp_bias;
        decoder.experts = config.deepseek.experts(decoder.layers);
        if let Some(experts) = &mut decoder.experts {
            // Transformers has no other weights, whatever `norm_topk_prob` says.
            experts.weights = ExpertWeights::OfAll;
            experts.groups = match config.topk_method.as_str() {
                "greedy" => None,
                "group_limited_greedy" => config.deepseek.groups(1),
                other => {
                    return Err(ConfigError::NotSupported {
                        key: "topk_method".to_owned(),
                        found: format!("`{other}`"),
                        supported: "greedy, group_limited_greedy".to_owned(),
                    });
                }
            };
        }
        Ok(Arc::new(decoder))
    }

    /// Stacks the experts, which published checkpoints store one by one.
    fn keys(&self, _config: &DeepseekV2Config, _index: &Index) -> KeyMap {
        KeyMap { rules: stack_experts("mlp.experts", ["gate_proj", "up_proj", "down_proj"]) }
    }
}
