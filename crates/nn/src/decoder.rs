//! Decoder-only transformer: its structure and its parameters.

mod build;
mod embedding;
mod forward;
mod head;
mod hooks;
mod layer;

use std::fmt;
use std::sync::Arc;

use serde_json::Value;
use weightloom_dtensor::{DTensor, DistContext, GradientReduction};
use weightloom_layout::{DType, Layout};

use crate::adapter::{Adapter, merge_into_decoder};
use crate::batch_adapters::{AdapterSpec, BatchAdapters};
use crate::cached_decoding::CachedDecoding;
use crate::config::DecoderConfig;
use crate::context::ForwardContext;
use crate::decoding::Decoding;
use crate::definition::ModelDefinition;
use crate::error::NnError;
use crate::model::{Check, Model};
use crate::norm::Norm;
use crate::parameter::{EMBEDDING, HEAD, Initial, InitialValues, ParameterSpec, parameters};
use crate::plan::Plan;
use crate::rope::Rope;
use crate::score::TokenLogprobs;
use crate::sequence::{Sequence, SequenceOutput};
use crate::shard::ModelShard;
use crate::stage::Stage;

pub use forward::{ActivationCheckpointing, Dropout, ForwardArgs, Input};
use layer::Layer;

/// A decoder, or a pipeline stage of one, as one rank holds it.
///
/// ```
/// use weightloom_dtensor::DistContext;
/// use weightloom_gang::{GangOptions, solo};
/// use weightloom_layout::{DType, Mesh};
/// use weightloom_nn::{
///     Decoder, DecoderConfig, ForwardArgs, Input, ModelDefinition, NnError, Parallel, Plan, Stage, parameters,
/// };
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config: DecoderConfig = serde_json::from_value(serde_json::json!({
///     "vocabulary": 32, "hidden": 16, "layers": 2, "max_positions": 64,
///     "attention": {"heads": 4, "kv_heads": 2, "width": 4},
///     "positions": {"rope": {"theta": 10000.0}},
///     "norm": {"kind": "rms", "eps": 1e-5},
///     "mlp": {"inner": 32, "activation": "silu"},
/// }))?;
/// let dist = DistContext::new(solo(GangOptions::default()));
/// let stage = Stage::whole(config.layers);
/// let specs = parameters(&config, &stage);
/// let plan = Plan::new(&Parallel::default(), &specs, Mesh::new(&[("tp", 1)])?)?;
/// let values = specs
///     .iter()
///     .map(|spec| {
///         let layout = plan.layout_of(&spec.name);
///         Ok((spec.name.clone(), config.initial_values(spec, DType::F32, 0, &dist, layout)?))
///     })
///     .collect::<Result<_, NnError>>()?;
/// let decoder = Decoder::new(config, stage, plan, dist, values)?;
///
/// let tokens = decoder.tokens(&[&[1, 2, 3]])?;
/// let hidden = decoder.forward(Input::Tokens(tokens), ForwardArgs::default())?;
/// let logits = decoder.logits(&hidden, None)?;
/// assert_eq!(logits.shape()[..], [1, 3, 32]);
/// # Ok(())
/// # }
/// ```
pub struct Decoder {
    structure: Arc<Structure>,
    shard: ModelShard,
}

/// A decoder without the values of its parameters.
pub(crate) struct Structure {
    pub(crate) config: DecoderConfig,
    pub(crate) stage: Stage,
    pub(crate) plan: Plan,
    pub(crate) dist: Arc<DistContext>,
    layers: Vec<Layer>,
    last_norm: Option<Norm>,
    rope: Option<Rope>,
    /// The layout in which each parameter is used.
    pub(crate) layouts: Vec<Layout>,
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Decoder({:?})", self.shard)
    }
}

impl Decoder {
    /// The architecture.
    pub fn config(&self) -> &DecoderConfig {
        &self.structure.config
    }

    /// The pipeline stage that this rank holds.
    pub fn stage(&self) -> &Stage {
        &self.structure.stage
    }

    /// The sharding plan.
    pub fn plan(&self) -> &Plan {
        &self.structure.plan
    }

    /// The distributed context of the ranks that share the stage.
    pub fn dist(&self) -> &Arc<DistContext> {
        &self.structure.dist
    }

    /// Parameters with their names, in the order of [`parameters`](crate::parameters).
    pub fn parameters(&self) -> &[(String, DTensor)] {
        self.shard.parameters()
    }

    /// Parameters for in-place updates. Shapes and layouts must not change.
    pub fn parameters_mut(&mut self) -> &mut [(String, DTensor)] {
        self.shard.parameters_mut()
    }

    /// Looks a parameter up by name.
    pub fn parameter(&self, name: &str) -> Option<&DTensor> {
        self.shard.parameter(name)
    }

    fn index_of(&self, name: &str) -> Option<usize> {
        self.shard.index_of(name)
    }

    pub(crate) fn context<'a>(&'a self, adapters: BatchAdapters<'a>) -> ForwardContext<'a> {
        ForwardContext {
            structure: &self.structure,
            parameters: self.shard.parameters(),
            first_parameter: 0,
            adapters,
            dropout: None,
            gradient_reduction: GradientReduction::Deferred,
        }
    }

    /// Builds a replicated `[batch, time]` tensor of tokens, right-padding
    /// shorter rows with zeros.
    pub fn tokens(&self, rows: &[&[u32]]) -> Result<DTensor, NnError> {
        self.shard.tokens(rows, self.structure.config.vocabulary)
    }

    /// Builds the global batch from this rank's `count` rows, concatenated in
    /// `rows`. Every data-parallel rank contributes as many.
    pub fn batch(&self, rows: &[i64], count: usize) -> Result<DTensor, NnError> {
        self.shard.batch(rows, count)
    }

    /// Selects hidden states by `(row, position)`, as `[positions, hidden]`.
    pub fn select_positions(
        &self,
        hidden: &DTensor,
        positions: &[(usize, usize)],
    ) -> Result<DTensor, NnError> {
        self.shard.select_positions(hidden, positions)
    }
}

impl Model for Decoder {
    fn definition(&self) -> &dyn ModelDefinition {
        &self.structure.config
    }

    fn shard(&self) -> &ModelShard {
        &self.shard
    }

    fn shard_mut(&mut self) -> &mut ModelShard {
        &mut self.shard
    }

    fn forward(&self, input: Input, args: ForwardArgs<'_>) -> Result<DTensor, NnError> {
        Self::forward(self, input, args)
    }

    fn logits(&self, hidden: &DTensor, adapters: BatchAdapters<'_>) -> Result<DTensor, NnError> {
        Self::logits(self, hidden, adapters)
    }

    fn loss(
        &self,
        hidden: &DTensor,
        targets: &DTensor,
        divisor: f64,
        adapter: Option<AdapterSpec<'_>>,
    ) -> Result<DTensor, NnError> {
        Self::loss(self, hidden, targets, divisor, adapter)
    }

    fn decoding<'a>(
        &'a self,
        prompts: &[Sequence<'_>],
        adapters: Vec<Option<AdapterSpec<'a>>>,
        capacity: usize,
    ) -> Result<Box<dyn Decoding + 'a>, NnError> {
        Ok(Box::new(CachedDecoding::new(self, prompts, adapters, capacity)?))
    }

    fn forward_sequences<'a>(
        &'a self,
        sequences: &[Sequence<'_>],
        adapters: &[Option<AdapterSpec<'a>>],
    ) -> Result<Box<dyn SequenceOutput + 'a>, NnError> {
        Ok(Box::new(self.forward_prefix_tree(sequences, adapters)?))
    }

    fn score_checked(
        &self,
        rows: &[&[u32]],
        top: usize,
        adapter: Option<AdapterSpec<'_>>,
        check: Check<'_>,
    ) -> Result<Option<Vec<Vec<TokenLogprobs>>>, NnError> {
        self.score_tree(rows, top, adapter, check)
    }

    fn merged(&self, adapter: &Adapter, strength: f64) -> Result<Box<dyn Model>, NnError> {
        merge_into_decoder(self, adapter, strength)
    }
}

impl ModelDefinition for DecoderConfig {
    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    fn layers(&self) -> usize {
        self.layers
    }

    fn hidden(&self) -> usize {
        self.hidden
    }

    fn max_positions(&self) -> Option<usize> {
        self.position_limit()
    }

    fn context_length(&self) -> Option<usize> {
        Some(self.max_positions)
    }

    fn heads(&self) -> Option<usize> {
        Some(self.attention.heads)
    }

    fn kv_heads(&self) -> Option<usize> {
        Some(self.attention.kv_heads)
    }

    fn parameters(&self, stage: &Stage) -> Vec<ParameterSpec> {
        parameters(self, stage)
    }

    fn tied_parameter(&self) -> Option<&str> {
        self.head.tied.then_some(EMBEDDING)
    }

    /// Some files contain a tied embedding twice.
    fn redundant_tensors(&self) -> Vec<String> {
        self.head.tied.then(|| format!("{HEAD}.weight")).into_iter().collect()
    }

    fn initializer(&self) -> f64 {
        self.initializer
    }

    fn initial_values(
        &self,
        spec: &ParameterSpec,
        dtype: DType,
        seed: u64,
        dist: &Arc<DistContext>,
        layout: Layout,
    ) -> Result<DTensor, NnError> {
        let values = InitialValues { spec, dtype, dist, layout };
        match spec.initial {
            Initial::Zeros => values.full(0.0),
            Initial::Identity => values.full(1.0 - self.norm.offset),
            Initial::Normal => values.normal(self.initializer, seed),
        }
    }

    fn check(&self) -> Result<(), NnError> {
        Ok(Self::check(self)?)
    }

    fn active_parameters(&self) -> u64 {
        Self::active_parameters(self)
    }

    /// Half of the keys and values are seen on average: two products of so many
    /// numbers each.
    fn mixing_flops(&self, seq_len: usize) -> f64 {
        2.0 * seq_len as f64 * self.layers as f64 * (self.attention.heads * self.attention.width) as f64
    }

    fn layer_kind(&self, layer: usize) -> u64 {
        let experts = self.experts(layer).is_some();
        let window = self.attention.window.as_ref().is_some_and(|window| window.layers.has(layer));
        u64::from(experts) | u64::from(window) << 1
    }

    fn cache_bytes_per_layer(&self, dtype: DType) -> usize {
        2 * self.attention.kv_heads * self.attention.width * dtype.size()
    }

    /// Heads of keys and values go where the weights that make them go.
    fn cache_bytes_per_rank(&self, dtype: DType, tp: usize) -> usize {
        2 * self.attention.kv_heads.div_ceil(tp.max(1)) * self.attention.width * dtype.size()
    }

    fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    fn build(&self, shard: ModelShard) -> Result<Box<dyn Model>, NnError> {
        Ok(Box::new(Decoder::from_shard(self.clone(), shard)?))
    }

    fn is_same(&self, other: &dyn ModelDefinition) -> bool {
        other.downcast::<Self>() == Some(self)
    }
}

impl Structure {
    fn wrong_stage(&self, action: &'static str) -> NnError {
        let Stage { layers, of } = &self.stage;
        NnError::WrongStage { start: layers.start, end: layers.end, of: *of, action }
    }
}
