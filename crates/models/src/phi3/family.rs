//! Phi 3 and 4: queries, keys and values in one matrix, and gate and up projections
//! in another.

use std::sync::Arc;

use weightloom_checkpoint::{Index, KeyMap, KeyRule};
use weightloom_hub::{ConfigError, Family, family_config};
use weightloom_nn::{
    Decoder, LayerChoice, PositionConfig, RopeConfig, RopeScaling, SharedDefinition, WindowConfig, WindowKind,
};

use crate::archs::archs;
use crate::rope::RopeKeys;
use crate::transformer::TransformerConfig;

family_config! {
    /// Configuration of Phi 3 and Phi 4 models.
    pub struct Phi3Config {
        /// Attention window; by default none.
        sliding_window: Option<usize> = None,
        /// The rotated part of a head.
        partial_rotary_factor: Option<f64> = None,
        /// Maximum sequence length before scaling.
        original_max_position_embeddings: usize = 4096,
        ..
        /// Shared keys.
        transformer: TransformerConfig,
    }
}

/// The model family.
#[derive(Clone, Copy, Debug)]
pub struct Phi3;

/// The instance to register.
pub const FAMILY: Phi3 = Phi3;

impl Family for Phi3 {
    type Config = Phi3Config;
    type Model = Decoder;

    fn name(&self) -> &str {
        "phi3"
    }

    fn architecture(&self) -> String {
        "Phi3ForCausalLM".to_owned()
    }

    fn archs(&self) -> Vec<(String, Phi3Config)> {
        archs(include_str!("archs.yaml"))
    }

    fn definition(&self, config: &Phi3Config) -> Result<SharedDefinition, ConfigError> {
        let mut transformer = config.transformer.clone();
        let part = transformer.rope.parameter("partial_rotary_factor")?.or(config.partial_rotary_factor);
        // It is not inside of the other keys of older configurations.
        let original = config.original_max_position_embeddings;
        let RopeKeys { rope_scaling, rope_parameters, .. } = &mut transformer.rope;
        for map in [rope_scaling, rope_parameters].into_iter().flatten() {
            map.insert("original_max_position_embeddings".to_owned(), original.into());
        }
        let mut decoder = transformer.decoder()?;
        if let PositionConfig::Rope(RopeConfig { turned, scaling, .. }) = &mut decoder.positions {
            *turned = part.map(|part| (decoder.attention.width as f64 * part) as usize);
            match scaling {
                RopeScaling::None => {}
                RopeScaling::LongRope { original_positions, .. } => {
                    decoder.max_positions = *original_positions;
                }
                _ => {
                    return Err(ConfigError::NotSupported {
                        key: "rope_scaling".to_owned(),
                        found: "another type".to_owned(),
                        supported: "longrope, default".to_owned(),
                    });
                }
            }
        }
        let window = |size| WindowConfig { size, kind: WindowKind::Sliding, layers: LayerChoice::All };
        decoder.attention.window = config.sliding_window.map(window);
        Ok(Arc::new(decoder))
    }

    fn keys(&self, config: &Phi3Config, _index: &Index) -> KeyMap {
        let TransformerConfig { num_attention_heads: heads, intermediate_size: inner, .. } =
            config.transformer;
        let width = config.transformer.head_dim;
        let width = width.unwrap_or_else(|| config.transformer.hidden_size.checked_div(heads).unwrap_or(0));
        let kv_heads = config.transformer.num_key_value_heads.unwrap_or(heads);
        let (queries, keys) = (heads.saturating_mul(width), kv_heads.saturating_mul(width));
        let split = |from: &str, into: &[(&str, usize)]| {
            let own = |(name, size): &(&str, usize)| (format!("model.layers.{{}}.{name}.weight"), *size);
            KeyRule::Split {
                from: format!("model.layers.{{}}.{from}.weight"),
                dim: 0,
                into: into.iter().map(own).collect(),
            }
        };
        let attention =
            [("self_attn.q_proj", queries), ("self_attn.k_proj", keys), ("self_attn.v_proj", keys)];
        let mlp = [("mlp.gate_proj", inner), ("mlp.up_proj", inner)];
        KeyMap { rules: vec![split("self_attn.qkv_proj", &attention), split("mlp.gate_up_proj", &mlp)] }
    }
}
