//! Mixtral: each token uses two of eight experts.

use std::sync::Arc;

use weightloom_checkpoint::{Index, KeyMap};
use weightloom_hub::{ConfigError, Family, family_config};
use weightloom_nn::{Decoder, ExpertsConfig, LayerChoice, SharedDefinition, WindowConfig, WindowKind};

use crate::archs::archs;
use crate::transformer::{TransformerConfig, rename_in_layers, stack_experts};

family_config! {
    /// Configuration of Mixtral models.
    pub struct MixtralConfig {
        /// Attention window; by default none.
        sliding_window: Option<usize> = None,
        /// Number of experts.
        num_local_experts: usize = 8,
        /// Number of experts per token.
        num_experts_per_tok: usize = 2,
        ..
        /// Shared keys.
        transformer: TransformerConfig,
    }
}

/// The model family.
#[derive(Clone, Copy, Debug)]
pub struct Mixtral;

/// The instance to register.
pub const FAMILY: Mixtral = Mixtral;

impl Family for Mixtral {
    type Config = MixtralConfig;
    type Model = Decoder;

    fn name(&self) -> &str {
        "mixtral"
    }

    fn architecture(&self) -> String {
        "MixtralForCausalLM".to_owned()
    }

    fn archs(&self) -> Vec<(String, MixtralConfig)> {
        archs(include_str!("archs.yaml"))
    }

    fn definition(&self, config: &MixtralConfig) -> Result<SharedDefinition, ConfigError> {
        let mut decoder = config.transformer.decoder()?;
        let window = |size| WindowConfig { size, kind: WindowKind::Sliding, layers: LayerChoice::All };
        decoder.attention.window = config.sliding_window.map(window);
        decoder.experts = Some(ExpertsConfig {
            count: config.num_local_experts,
            chosen: config.num_experts_per_tok,
            inner: config.transformer.intermediate_size,
            ..ExpertsConfig::default()
        });
        Ok(Arc::new(decoder))
    }

    /// Stacks the experts, which published checkpoints store one by one.
    fn keys(&self, _config: &MixtralConfig, _index: &Index) -> KeyMap {
        let mut rules = vec![rename_in_layers("block_sparse_moe.gate.weight", "mlp.gate.weight")];
        rules.extend(stack_experts("block_sparse_moe.experts", ["w1", "w3", "w2"]));
        KeyMap { rules }
    }
}
