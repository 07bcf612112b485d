//! Assembles a decoder from named parameters.

use std::collections::BTreeMap;
use std::sync::Arc;

use weightloom_dtensor::{DTensor, DistContext};

use super::layer::{FeedForward, Layer};
use super::{Decoder, Structure};
use crate::attention::{Attention, HeadProjections, Projections};
use crate::config::{DecoderConfig, Gating, NormKind, PositionConfig, QkNorm, ResidualForm};
use crate::error::NnError;
use crate::experts::Experts;
use crate::latent_attention::{LatentProjections, QueryProjection};
use crate::linear::Linear;
use crate::mlp::Mlp;
use crate::norm::Norm;
use crate::parameter::{CORRECTION_BIAS, LAST_NORM, parameters};
use crate::plan::Plan;
use crate::rope::Rope;
use crate::shard::ModelShard;
use crate::stage::Stage;

impl Decoder {
    /// Builds a decoder from exactly the parameters that [`parameters`] lists
    /// for the stage, in the layouts of the plan.
    pub fn new(
        config: DecoderConfig,
        stage: Stage,
        plan: Plan,
        dist: Arc<DistContext>,
        values: Vec<(String, DTensor)>,
    ) -> Result<Self, NnError> {
        let specs = parameters(&config, &stage);
        Self::from_shard(config, ModelShard::new(specs, stage, plan, dist, values)?)
    }

    /// Builds a decoder from the shard of a stage.
    pub(crate) fn from_shard(config: DecoderConfig, shard: ModelShard) -> Result<Self, NnError> {
        config.check()?;
        let held = shard.parameters();
        let (stage, plan, dist) = (shard.stage().clone(), shard.plan().clone(), Arc::clone(shard.dist()));
        let indices = held.iter().enumerate().map(|(index, (name, _))| (name.as_str(), index)).collect();
        let builder = ModuleBuilder { indices };
        let layers =
            stage.layers.clone().map(|layer| builder.layer(&config, layer)).collect::<Result<_, _>>()?;
        let last_norm = stage.is_last().then(|| builder.norm(config.norm.kind, LAST_NORM)).transpose()?;
        let rope = match &config.positions {
            PositionConfig::Rope(rope) => Some(Rope::new(&config, rope)),
            PositionConfig::Learned => None,
        };
        let layouts = held.iter().map(|(name, _)| plan.used_layout_of(name)).collect();
        let structure = Arc::new(Structure { layers, last_norm, rope, config, stage, plan, dist, layouts });
        Ok(Self { structure, shard })
    }
}

/// Resolves module names to parameter indices.
struct ModuleBuilder<'a> {
    indices: BTreeMap<&'a str, usize>,
}

impl ModuleBuilder<'_> {
    fn index(&self, name: &str) -> Result<usize, NnError> {
        let found = self.indices.get(name).copied();
        found.ok_or_else(|| NnError::MissingParameter { name: name.to_owned() })
    }

    fn linear(&self, module: &str) -> Result<Linear, NnError> {
        let weight = self.index(&format!("{module}.weight"))?;
        let bias = self.indices.get(format!("{module}.bias").as_str()).copied();
        Ok(Linear { module: module.to_owned(), weight, bias })
    }

    fn norm(&self, kind: NormKind, module: &str) -> Result<Norm, NnError> {
        let weight = (kind != NormKind::LayerPlain).then(|| self.index(&format!("{module}.weight")));
        let bias = (kind == NormKind::Layer).then(|| self.index(&format!("{module}.bias")));
        Ok(Norm { weight: weight.transpose()?, bias: bias.transpose()? })
    }

    fn layer(&self, config: &DecoderConfig, number: usize) -> Result<Layer, NnError> {
        let layer = format!("model.layers.{number}");
        let prefix = format!("{layer}.");
        let indices = || self.indices.iter().filter(|(name, _)| name.starts_with(&prefix)).map(|(_, at)| *at);
        let (first, end) = (indices().min().unwrap_or(0), indices().max().map_or(0, |last| last + 1));
        let kind = config.norm.kind;
        let norm_if = |wanted: bool, name: &str| {
            wanted.then(|| self.norm(kind, &format!("{layer}.{name}"))).transpose()
        };
        let form = config.residual;
        let (before, after) =
            (form != ResidualForm::After, matches!(form, ResidualForm::After | ResidualForm::Around));
        Ok(Layer {
            parameters: first..end,
            before_attention: norm_if(before, "input_layernorm")?,
            attention: self.attention(config, &layer)?,
            after_attention: norm_if(after, "attention_output_layernorm")?,
            before_feed_forward: norm_if(
                before && form != ResidualForm::Parallel,
                "post_attention_layernorm",
            )?,
            feed_forward: self.feed_forward(config, number, &layer)?,
            after_feed_forward: norm_if(after, "mlp_output_layernorm")?,
        })
    }

    fn attention(&self, config: &DecoderConfig, layer: &str) -> Result<Attention, NnError> {
        let projection = |name: &str| self.linear(&format!("{layer}.self_attn.{name}_proj"));
        let norm = |name: &str| self.norm(config.norm.kind, &format!("{layer}.self_attn.{name}norm"));
        let output = projection("o")?;
        let Some(latent) = &config.attention.latent else {
            let norms = match config.attention.qk_norm {
                Some(QkNorm::Head | QkNorm::Whole) => Some([norm("q_")?, norm("k_")?]),
                Some(QkNorm::Rotated) | None => None,
            };
            let (query, key, value) = (projection("q")?, projection("k")?, projection("v")?);
            let projections = Projections::Heads(HeadProjections { query, key, value, norms });
            return Ok(Attention { projections, output });
        };
        let query = match latent.query_rank {
            None => QueryProjection::Full(projection("q")?),
            Some(_) => QueryProjection::Low {
                down: projection("q_a")?,
                norm: norm("q_a_layer")?,
                up: projection("q_b")?,
            },
        };
        let projections = LatentProjections {
            query,
            down: self.linear(&format!("{layer}.self_attn.kv_a_proj_with_mqa"))?,
            norm: norm("kv_a_layer")?,
            up: projection("kv_b")?,
        };
        Ok(Attention { projections: Projections::Latent(projections), output })
    }

    fn feed_forward(
        &self,
        config: &DecoderConfig,
        number: usize,
        layer: &str,
    ) -> Result<FeedForward, NnError> {
        if let Some(experts) = config.experts(number) {
            let expert = |name: &str| self.index(&format!("{layer}.mlp.experts.{name}_proj.weight"));
            let shared = |name: &str| self.linear(&format!("{layer}.mlp.shared_experts.{name}_proj"));
            let bias = || self.index(&format!("{layer}.{CORRECTION_BIAS}"));
            return Ok(FeedForward::Experts(Experts {
                router: self.index(&format!("{layer}.mlp.gate.weight"))?,
                correction_bias: experts.correction_bias.then(bias).transpose()?,
                gate: expert("gate")?,
                up: expert("up")?,
                down: expert("down")?,
                shared: match experts.shared {
                    Some(_) => {
                        Some(Mlp { gate: Some(shared("gate")?), up: shared("up")?, down: shared("down")? })
                    }
                    None => None,
                },
            }));
        }
        let projection = |name: &str| self.linear(&format!("{layer}.mlp.{name}_proj"));
        let gate = (config.mlp.gating == Gating::Gated).then(|| projection("gate")).transpose()?;
        Ok(FeedForward::Mlp(Mlp { gate, up: projection("up")?, down: projection("down")? }))
    }
}
