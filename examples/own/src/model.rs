//! A language model of gated linear recurrences.
//!
//! Each block writes gated values into a decaying state per channel, and reads the
//! state through another gate. There is no attention and no position.

use weightloom::dtensor::{DTensor, DistContext, recompute};
use weightloom::layout::{DType, Layout, Shape};
use weightloom::nn::{
    ActivationCheckpointing, BatchAdapters, ForwardArgs, Initial, InitialValues, Input, Model,
    ModelDefinition, ModelShard, NnError, Parallel, ParameterSpec, Plan, Stage,
};
use weightloom::tensor::Tensor;

use std::sync::Arc;

use crate::family::{NAME, RecurrenceConfig};
use crate::scan::Scan;

const EMBEDDING: &str = "embedding.weight";
const NORM: &str = "norm.weight";
const HEAD: &str = "head.weight";

/// With this bias a state forgets an eighth of its value per token.
const INITIAL_DECAY_BIAS: f64 = 2.0;

/// The parameters that tensor-parallel ranks share, by the channels of the state.
pub fn parallel() -> Parallel {
    let dims = [
        (EMBEDDING, 0),
        (HEAD, 0),
        ("layers.*.value.weight", 0),
        ("layers.*.decay.weight", 0),
        ("layers.*.decay.bias", 0),
        ("layers.*.gate.weight", 0),
        ("layers.*.output.weight", 1),
    ];
    Parallel { dims: dims.map(|(pattern, dim)| (pattern.to_owned(), dim)).into() }
}

/// The model before it has parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Recurrence {
    /// Its sizes.
    pub config: RecurrenceConfig,
}

impl ModelDefinition for Recurrence {
    fn name(&self) -> &str {
        NAME
    }

    fn vocabulary(&self) -> usize {
        self.config.vocab_size
    }

    fn layers(&self) -> usize {
        self.config.num_hidden_layers
    }

    fn hidden(&self) -> usize {
        self.config.hidden_size
    }

    fn parameters(&self, stage: &Stage) -> Vec<ParameterSpec> {
        let RecurrenceConfig { vocab_size, hidden_size, state_size, .. } = self.config;
        let mut specs = Vec::new();
        let mut add = |name: String, dims: &[usize], initial: Initial| {
            // Sizes that no shape can have are refused by `check`.
            specs.extend(Shape::new(dims).map(|shape| ParameterSpec::new(name, shape, initial)));
        };
        if stage.is_first() {
            add(EMBEDDING.to_owned(), &[vocab_size, hidden_size], Initial::Normal);
        }
        for layer in stage.layers.clone() {
            let named = |name: &str| format!("layers.{layer}.{name}");
            add(named(NORM), &[hidden_size], Initial::Identity);
            for projection in ["value", "decay", "gate"] {
                add(named(&format!("{projection}.weight")), &[state_size, hidden_size], Initial::Normal);
            }
            add(named("decay.bias"), &[state_size], Initial::Zeros);
            add(named("output.weight"), &[hidden_size, state_size], Initial::Normal);
        }
        if stage.is_last() {
            add(NORM.to_owned(), &[hidden_size], Initial::Identity);
            add(HEAD.to_owned(), &[vocab_size, hidden_size], Initial::Normal);
        }
        specs
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
            Initial::Normal => values.normal(self.config.initializer_range, seed),
            Initial::Identity => values.full(1.0),
            Initial::Zeros => values.full(INITIAL_DECAY_BIAS),
        }
    }

    fn check(&self) -> Result<(), NnError> {
        for dims in [[self.config.vocab_size, self.config.hidden_size], [self.config.state_size, 1]] {
            Shape::new(&dims)?;
        }
        Ok(())
    }

    fn mixing_flops(&self, _: usize) -> f64 {
        2.0 * (self.config.num_hidden_layers * self.config.state_size) as f64
    }

    fn layer_kind(&self, _: usize) -> u64 {
        0
    }

    fn build(&self, shard: ModelShard) -> Result<Box<dyn Model>, NnError> {
        Ok(Box::new(RecurrentModel { definition: self.clone(), shard }))
    }
}

/// The model with its parameters, or a pipeline stage of it.
#[derive(Debug)]
pub struct RecurrentModel {
    definition: Recurrence,
    shard: ModelShard,
}

impl RecurrentModel {
    fn block(&self, layer: usize) -> Block {
        let prefix = format!("layers.{layer}.");
        let parameters = self.shard.parameters().iter().filter(|(name, _)| name.starts_with(&prefix));
        Block {
            parameters: parameters.cloned().collect(),
            prefix,
            plan: self.shard.plan().clone(),
            eps: self.definition.config.norm_eps,
        }
    }
}

impl Model for RecurrentModel {
    fn definition(&self) -> &dyn ModelDefinition {
        &self.definition
    }

    fn shard(&self) -> &ModelShard {
        &self.shard
    }

    fn shard_mut(&mut self) -> &mut ModelShard {
        &mut self.shard
    }

    fn forward(&self, input: Input, args: ForwardArgs<'_>) -> Result<DTensor, NnError> {
        args.adapters.check_none(NAME)?;
        let mut x = match input {
            Input::Tokens(tokens) => {
                self.shard.plan().leave_block(self.shard.gather(EMBEDDING)?.embedding(&tokens)?)?
            }
            Input::Hidden(hidden) => hidden,
        };
        if let Some(check) = &args.context.nan_check {
            x = x.with_nan_check(check);
        }
        let keep = args.documents.map(|starts| keep_states(&starts, x.dtype())).transpose()?;
        for layer in self.shard.stage().layers.clone() {
            let block = self.block(layer);
            x = match args.checkpointing {
                ActivationCheckpointing::Off => block.forward(&x, keep.as_ref())?,
                ActivationCheckpointing::Full => block.recomputed(x, keep.clone())?,
            };
        }
        match self.shard.stage().is_last() {
            true => Ok(x.rms_norm(&self.shard.gather(NORM)?, self.definition.config.norm_eps)?),
            false => Ok(x),
        }
    }

    fn logits(&self, hidden: &DTensor, adapters: BatchAdapters<'_>) -> Result<DTensor, NnError> {
        adapters.check_none(NAME)?;
        Ok(hidden.linear(&self.shard.gather(HEAD)?, None, None)?)
    }
}

/// 0 where a document starts, so that it does not see the one before it, and else 1,
/// as `[batch, time, 1]`.
fn keep_states(starts: &DTensor, dtype: DType) -> Result<DTensor, NnError> {
    let [batch, time] = [starts.shape()[0], starts.shape()[1]];
    let positions = Tensor::arange(time, starts.device())?;
    let replicated = Layout::replicated(starts.layout().mesh());
    let positions = DTensor::distribute(starts.dist(), &positions, replicated)?;
    Ok(starts.ne(&positions)?.cast(dtype)?.reshape(&Shape::new(&[batch, time, 1])?)?)
}

/// One layer.
#[derive(Clone, Debug)]
struct Block {
    prefix: String,
    parameters: Vec<(String, DTensor)>,
    plan: Plan,
    eps: f64,
}

impl Block {
    /// A parameter, gathered for use.
    fn parameter(&self, name: &str) -> Result<DTensor, NnError> {
        let name = format!("{}{name}", self.prefix);
        match self.parameters.iter().find(|(found, _)| *found == name) {
            Some((_, value)) => self.plan.gather(&name, value),
            None => Err(NnError::MissingParameter { name }),
        }
    }

    fn project(&self, x: &DTensor, name: &str) -> Result<DTensor, NnError> {
        Ok(x.linear(&self.parameter(&format!("{name}.weight"))?, None, None)?)
    }

    fn forward(&self, x: &DTensor, keep: Option<&DTensor>) -> Result<DTensor, NnError> {
        let input = self.plan.enter_block(x.rms_norm(&self.parameter(NORM)?, self.eps)?)?;
        let logit = self.project(&input, "decay")?.add(&self.parameter("decay.bias")?)?;
        // What a state forgets makes room for what it takes in.
        let (decay, intake) = (logit.sigmoid()?, logit.neg()?.sigmoid()?);
        let decay = keep.map_or(Ok(decay.clone()), |keep| decay.mul(keep))?;
        let value = self.project(&input, "value")?.mul(&intake)?;
        let states = DTensor::apply(&Scan, &[&decay, &value])?.remove(0);
        let read = self.project(&input, "gate")?.swiglu(&states)?;
        Ok(x.add(&self.plan.leave_block(self.project(&read, "output")?)?)?)
    }

    /// The same, computed again in the backward pass.
    fn recomputed(self, x: DTensor, keep: Option<DTensor>) -> Result<DTensor, NnError> {
        let parameters = self.parameters.iter().map(|(_, value)| value);
        let trained: Vec<DTensor> = parameters.filter(|value| value.tracks_gradient()).cloned().collect();
        let mut results = recompute(&[x], &trained, move |x| Ok(vec![self.forward(&x[0], keep.as_ref())?]))?;
        Ok(results.remove(0))
    }
}
