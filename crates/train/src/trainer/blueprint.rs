//! From a spec to what ranks share and how: the same for a run and for one that
//! is only thought through.

use serde_json::{Map, Value};
use weightloom_nn::{DecoderConfig, Parallel, Stage};

use crate::config::Config;
use crate::error::TrainError;
use crate::sizes::{Batch, ParallelSizes};
use crate::spec::ModelSpec;

/// What is trained, and how so many ranks share it.
pub(super) struct Blueprint {
    /// The model's configuration with all keys.
    pub(super) model: Map<String, Value>,
    pub(super) decoder: DecoderConfig,
    /// What tensor parallelism shares.
    pub(super) parallel: Parallel,
    pub(super) sizes: ParallelSizes,
    /// The stages of all ranks.
    pub(super) stages: Vec<Stage>,
}

impl Blueprint {
    /// That of a run, whose weights say this of themselves if there are any.
    pub(super) fn new(
        config: &Config,
        spec: &dyn ModelSpec,
        of_weights: Option<&Map<String, Value>>,
        world: usize,
    ) -> Result<Self, TrainError> {
        let model = spec.config(&config.model, of_weights)?;
        let decoder = spec.decoder(&model)?;
        let parallel = spec.sharing(&decoder, &config.model.tp_plan)?;
        let accelerator = &config.train.accelerator;
        let sizes = ParallelSizes::new(accelerator, world, &decoder, &Batch::of(config))?;
        let stages = spec.stages(&decoder, sizes.stages(), accelerator.layer_split.as_deref())?;
        Ok(Self { model, decoder, parallel, sizes, stages })
    }
}
