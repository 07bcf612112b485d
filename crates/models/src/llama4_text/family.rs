//! Llama 4 without images: layers that rotate and see their chunk only, layers that
//! do neither, and experts beside one that every token uses.

use std::sync::Arc;

use weightloom_checkpoint::{Index, KeyMap, KeyRule};
use weightloom_hub::{ConfigError, Family, family_config};
use weightloom_nn::{
    Decoder, ExpertScores, ExpertWeighting, ExpertWeights, ExpertsConfig, LayerChoice, PositionConfig,
    QkNorm, RopePairs, SharedDefinition, TemperatureConfig, WindowConfig, WindowKind,
};

use crate::archs::archs;
use crate::transformer::{TransformerConfig, layers_of_type};

family_config! {
    /// Configuration of Llama 4 models.
    pub struct Llama4TextConfig {
        /// Whether attention has biases.
        attention_bias: bool = false,
        /// Inner size of the feed-forward block in layers without experts.
        intermediate_size_mlp: usize = 16384,
        /// Number of experts.
        num_local_experts: usize = 16,
        /// Number of experts per token.
        num_experts_per_tok: usize = 1,
        /// Layers with experts.
        moe_layers: Option<Vec<usize>> = None,
        /// Every n-th layer has experts, if they are not listed.
        interleave_moe_layer_step: usize = 1,
        /// Whether queries and keys are normalized after the rotation.
        use_qk_norm: bool = true,
        /// One for each layer that rotates, zero for the others.
        no_rope_layers: Option<Vec<usize>> = None,
        /// Every n-th layer does not rotate, if they are not listed.
        no_rope_layer_interval: usize = 4,
        /// Positions of a chunk.
        attention_chunk_size: Option<usize> = Some(8192),
        /// The kind of each layer; by default those that rotate see their chunk.
        layer_types: Option<Vec<String>> = None,
        /// Whether queries are scaled by position in layers that do not rotate.
        attn_temperature_tuning: bool = true,
        /// Positions with the same scale.
        floor_scale: usize = 8192,
        /// Growth of the scale.
        attn_scale: f64 = 0.1,
        ..
        /// Shared keys.
        transformer: TransformerConfig,
    }
}

impl Llama4TextConfig {
    /// Whether a layer rotates queries and keys.
    fn rotates(&self, layer: usize) -> bool {
        match self.no_rope_layers.as_deref() {
            Some(listed @ [_, ..]) => listed.get(layer).is_some_and(|rotates| *rotates != 0),
            _ => self.no_rope_layer_interval == 0 || !(layer + 1).is_multiple_of(self.no_rope_layer_interval),
        }
    }

    /// Whether a layer has experts.
    fn has_experts(&self, layer: usize) -> bool {
        match &self.moe_layers {
            Some(listed) => listed.contains(&layer),
            None => {
                let step = self.interleave_moe_layer_step;
                step > 0 && (layer + 1).is_multiple_of(step)
            }
        }
    }
}

/// The model family.
#[derive(Clone, Copy, Debug)]
pub struct Llama4Text;

/// The instance to register.
pub const FAMILY: Llama4Text = Llama4Text;

impl Family for Llama4Text {
    type Config = Llama4TextConfig;
    type Model = Decoder;

    fn name(&self) -> &str {
        "llama4_text"
    }

    fn architecture(&self) -> String {
        "Llama4ForCausalLM".to_owned()
    }

    fn archs(&self) -> Vec<(String, Llama4TextConfig)> {
        archs(include_str!("archs.yaml"))
    }

    fn definition(&self, config: &Llama4TextConfig) -> Result<SharedDefinition, ConfigError> {
        let mut decoder = config.transformer.decoder()?;
        let inner = config.transformer.intermediate_size;
        decoder.mlp.inner = config.intermediate_size_mlp;
        decoder.attention.input_bias = config.attention_bias;
        decoder.attention.output_bias = config.attention_bias;
        decoder.attention.qk_norm = config.use_qk_norm.then_some(QkNorm::Rotated);
        let temperature = TemperatureConfig { floor: config.floor_scale as f64, scale: config.attn_scale };
        decoder.attention.temperature = config.attn_temperature_tuning.then_some(temperature);
        let rotating = LayerChoice::matching(decoder.layers, |layer| config.rotates(layer));
        let chunked = match &config.layer_types {
            Some(types) => layers_of_type(types, decoder.layers, "chunked_attention")?,
            None => rotating.clone(),
        };
        let window = |size| WindowConfig { size, kind: WindowKind::Chunked, layers: chunked };
        decoder.attention.window = config.attention_chunk_size.map(window);
        if let PositionConfig::Rope(rope) = &mut decoder.positions {
            rope.pairs = RopePairs::Interleaved;
            rope.layers = rotating;
        }
        decoder.experts = Some(ExpertsConfig {
            count: config.num_local_experts,
            chosen: config.num_experts_per_tok,
            inner,
            scores: ExpertScores::Sigmoid,
            weights: ExpertWeights::OfAll,
            weighting: ExpertWeighting::Input,
            shared: Some(inner),
            layers: LayerChoice::matching(decoder.layers, |layer| config.has_experts(layer)),
            ..ExpertsConfig::default()
        });
        Ok(Arc::new(decoder))
    }

    /// Splits the experts' fused gate and up projections, which are stored inputs
    /// first. Checkpoints of models with images have a prefix.
    fn keys(&self, config: &Llama4TextConfig, index: &Index) -> KeyMap {
        const WITH_IMAGES: &str = "language_model.";
        let prefixed = index.tensors().keys().any(|name| name.starts_with(WITH_IMAGES));
        let prefix = if prefixed { WITH_IMAGES } else { "" };
        let theirs = |name: &str| format!("{prefix}model.layers.{{}}.{name}");
        let own = |name: &str| format!("model.layers.{{}}.{name}");
        let rename = |from: String, to: String| KeyRule::Rename { from, to };
        let inner = config.transformer.intermediate_size;
        let mut rules = vec![
            KeyRule::Transpose { key: theirs("feed_forward.experts.gate_up_proj") },
            KeyRule::Split {
                from: theirs("feed_forward.experts.gate_up_proj"),
                dim: 1,
                into: ["gate", "up"]
                    .map(|name| (own(&format!("mlp.experts.{name}_proj.weight")), inner))
                    .to_vec(),
            },
            KeyRule::Transpose { key: theirs("feed_forward.experts.down_proj") },
            rename(theirs("feed_forward.experts.down_proj"), own("mlp.experts.down_proj.weight")),
            rename(theirs("feed_forward.router.weight"), own("mlp.gate.weight")),
        ];
        for name in ["gate", "up", "down"] {
            let shared = [("feed_forward.shared_expert", "mlp.shared_experts"), ("feed_forward", "mlp")];
            rules.extend(shared.map(|(from, to)| {
                rename(
                    theirs(&format!("{from}.{name}_proj.weight")),
                    own(&format!("{to}.{name}_proj.weight")),
                )
            }));
        }
        if prefixed {
            let same = [
                "self_attn.q_proj",
                "self_attn.k_proj",
                "self_attn.v_proj",
                "self_attn.o_proj",
                "input_layernorm",
                "post_attention_layernorm",
            ];
            for part in ["weight", "bias"] {
                let moved = same.map(|name| format!("{name}.{part}"));
                rules.extend(moved.iter().map(|name| rename(theirs(name), own(name))));
            }
            for name in ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"] {
                rules.push(rename(format!("{prefix}{name}"), name.to_owned()));
            }
            // Names of the other parts have two to eight segments.
            for part in ["vision_model", "multi_modal_projector"] {
                rules.extend(
                    (1..=7).map(|depth| KeyRule::Drop { key: format!("{part}{}", ".{}".repeat(depth)) }),
                );
            }
        }
        KeyMap { rules }
    }
}
