//! Model definitions: what is known of a model before it has parameters.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;
use weightloom_dtensor::{DTensor, DistContext};
use weightloom_layout::{DType, Layout};

use crate::error::NnError;
use crate::model::Model;
use crate::parameter::{Initial, InitialValues, ParameterSpec};
use crate::shard::ModelShard;
use crate::stage::Stage;

/// The architecture of a language model with all its sizes, from which ranks build
/// their stages.
///
/// [`DecoderConfig`](crate::DecoderConfig) is one. Implement it, and [`Model`],
/// for a model that is not a configuration of our decoder.
pub trait ModelDefinition: Any + fmt::Debug + Send + Sync {
    /// The name in error messages.
    fn name(&self) -> &str {
        std::any::type_name::<Self>()
    }

    /// The number of tokens in the vocabulary.
    fn vocabulary(&self) -> usize;

    /// The number of layers. Pipeline stages are ranges of them.
    fn layers(&self) -> usize;

    /// The width of the activations between layers.
    fn hidden(&self) -> usize;

    /// The longest row that the model can process; `None` if there is no limit.
    fn max_positions(&self) -> Option<usize> {
        None
    }

    /// The number of positions that the model was trained for, if that is known.
    fn context_length(&self) -> Option<usize> {
        self.max_positions()
    }

    /// The number of attention heads, if it has any. Tensor-parallel ranks hold at
    /// least one each.
    fn heads(&self) -> Option<usize> {
        None
    }

    /// The number of heads of keys and values.
    fn kv_heads(&self) -> Option<usize> {
        self.heads()
    }

    /// The parameters of a stage, in the order of use. Those of all stages together
    /// are the parameters of the model.
    fn parameters(&self, stage: &Stage) -> Vec<ParameterSpec>;

    /// The parameter that the first and the last stage both hold and whose gradients
    /// are added, such as a tied embedding.
    fn tied_parameter(&self) -> Option<&str> {
        None
    }

    /// Tensors that published checkpoints may contain although the model does not
    /// need them, such as the head of a tied embedding.
    fn redundant_tensors(&self) -> Vec<String> {
        Vec::new()
    }

    /// Standard deviation of [`Initial::Normal`].
    fn initializer(&self) -> f64 {
        0.02
    }

    /// Initializes a parameter, with the same values in every layout.
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
            Initial::Identity => values.full(1.0),
            Initial::Normal => values.normal(self.initializer(), seed),
        }
    }

    /// Checks that the sizes are valid and compatible.
    fn check(&self) -> Result<(), NnError> {
        Ok(())
    }

    /// The number of parameters.
    fn parameter_count(&self) -> u64 {
        let specs = self.parameters(&Stage::whole(self.layers()));
        specs.iter().map(|spec| spec.shape.volume() as u64).sum()
    }

    /// The number of parameters that each token is multiplied with.
    fn active_parameters(&self) -> u64 {
        self.parameter_count()
    }

    /// Floating-point operations of the forward pass of a token in a row of so many,
    /// beyond the products with parameters.
    fn mixing_flops(&self, seq_len: usize) -> f64 {
        let _ = seq_len;
        0.0
    }

    /// The layer of a parameter; `None` for embeddings and heads. By default, the
    /// number after `layers` in its name.
    fn layer_of(&self, parameter: &str) -> Option<usize> {
        let mut components = parameter.split('.');
        components.find(|component| *component == "layers")?;
        components.next()?.parse().ok()
    }

    /// Layers with the same kind have the same costs. By default, no two do.
    fn layer_kind(&self, layer: usize) -> u64 {
        layer as u64
    }

    /// The bytes that decoding keeps per token and layer, on all ranks together.
    fn cache_bytes_per_layer(&self, dtype: DType) -> usize {
        let _ = dtype;
        0
    }

    /// The bytes that decoding keeps per token and layer on the rank that holds most,
    /// of so many tensor-parallel ranks.
    fn cache_bytes_per_rank(&self, dtype: DType, tp: usize) -> usize {
        let _ = tp;
        self.cache_bytes_per_layer(dtype)
    }

    /// The architecture as JSON, for programs; null if there is none.
    fn to_json(&self) -> Value {
        Value::Null
    }

    /// Builds a stage from exactly the parameters that
    /// [`parameters`](Self::parameters) lists for it.
    fn build(&self, shard: ModelShard) -> Result<Box<dyn Model>, NnError>;

    /// Whether another definition describes the same architecture.
    fn is_same(&self, other: &dyn ModelDefinition) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

/// A shared definition.
pub type SharedDefinition = Arc<dyn ModelDefinition>;

impl dyn ModelDefinition {
    /// Checks that stages together have each parameter once, but for a tied one, and
    /// in the same shape as the whole model.
    pub fn check_stages(&self, stages: &[Stage]) -> Result<(), NnError> {
        let wrong = |parameter: &str, problem: &'static str| NnError::StageParameter {
            model: self.name().to_owned(),
            parameter: parameter.to_owned(),
            problem,
        };
        let mut missing = BTreeMap::new();
        for spec in self.all_parameters() {
            if missing.contains_key(&spec.name) {
                return Err(wrong(&spec.name, "listed twice"));
            }
            missing.insert(spec.name.clone(), spec);
        }
        let whole = missing.clone();
        for stage in stages {
            for spec in self.parameters(stage) {
                match (whole.get(&spec.name), missing.remove(&spec.name)) {
                    (None, _) => return Err(wrong(&spec.name, "in a stage, but not in the whole model")),
                    (Some(known), _) if known.shape != spec.shape => {
                        return Err(wrong(&spec.name, "of another shape in a stage"));
                    }
                    (_, None) if self.tied_parameter() != Some(&spec.name) => {
                        return Err(wrong(&spec.name, "in two stages, and not tied"));
                    }
                    _ => {}
                }
            }
        }
        match missing.keys().next() {
            Some(name) => Err(wrong(name, "in no stage")),
            None => Ok(()),
        }
    }

    /// All parameters.
    pub fn all_parameters(&self) -> Vec<ParameterSpec> {
        self.parameters(&Stage::whole(self.layers()))
    }

    /// The definition as one of a known type.
    pub fn downcast<D: ModelDefinition>(&self) -> Option<&D> {
        (self as &dyn Any).downcast_ref()
    }
}
