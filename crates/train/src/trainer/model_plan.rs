//! The model of a run and how ranks share it, for training and dry runs alike.

use serde_json::{Map, Value};
use weightloom_nn::{Parallel, SharedDefinition, Stage};

use crate::config::Config;
use crate::error::TrainError;
use crate::parallel_dims::{BatchSizes, ParallelDims};
use crate::spec::ModelSpec;

/// The model, its parallel dims and pipeline stages.
pub(super) struct ModelPlan {
    /// The complete model config.
    pub(super) model: Map<String, Value>,
    pub(super) definition: SharedDefinition,
    /// The tensor-parallel plan.
    pub(super) parallel: Parallel,
    pub(super) dims: ParallelDims,
    /// The pipeline stages of all ranks.
    pub(super) stages: Vec<Stage>,
}

impl ModelPlan {
    /// The plan for `world` ranks. `weights_config` is the model config of the
    /// initial weights.
    pub(super) fn new(
        config: &Config,
        spec: &dyn ModelSpec,
        weights_config: Option<&Map<String, Value>>,
        world: usize,
    ) -> Result<Self, TrainError> {
        let model = spec.config(&config.model, weights_config)?;
        let definition = spec.definition(&model)?;
        let parallel = spec.tp_plan(&*definition, &config.model.tp_plan)?;
        let accelerator = &config.train.accelerator;
        let dims = ParallelDims::new(accelerator, world, &*definition, &BatchSizes::of(config))?;
        let stages = spec.stages(&*definition, dims.stages(), accelerator.layer_split.as_deref())?;
        definition.check_stages(&stages)?;
        Ok(Self { model, definition, parallel, dims, stages })
    }
}
