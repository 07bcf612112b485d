//! The YAML config of a training run.
//!
//! It has three sections: `model`, `data` and `train`. The types define keys,
//! defaults and descriptions; the JSON schema and the reference page are
//! generated from them. [`read`] parses a config and reports every error at
//! once.
//!
//! ```
//! use weightloom_train::config::read;
//!
//! let yaml = "model: {name: llama}\ndata: {paths: [chats.jsonl], packing: false}";
//! let config = read(yaml, "run.yaml", &["train.optimizer.lr=1e-4".to_owned()], &|_| None)?;
//! assert_eq!(config.train.optimizer.lr, 1e-4);
//! assert!(!config.data.packing.is_packed());
//!
//! let errors = read("model: {name: llama}\ndata: {pths: [x]}", "run.yaml", &[], &|_| None);
//! assert!(errors.unwrap_err().to_string().contains("data.pths"));
//! # Ok::<(), weightloom_train::config::ConfigErrors>(())
//! ```

mod change;
mod check;
mod data;
mod dump;
mod guard;
mod model;
mod outline;
mod read;
mod reference;
mod rule;
mod train;
mod warning;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weightloom_layout::DType;

pub(crate) use change::to_value;
pub use change::{ChangeEffect, ConfigChange, changes};
pub use dump::dump;
pub use outline::{schema, schema_with};
pub use read::{ConfigReader, read, read_file};
pub use reference::{reference, reference_with};
pub(crate) use rule::divisors;
pub use rule::{ConfigErrors, ConfigFault, Problem, Remedy, Rule};
pub use weightloom_document::Origin;
pub use weightloom_document::variables::Lookup;

pub use data::{
    BadLines, DataConfig, DataFormat, DataType, EvalSet, MixtureConfig, Packing, RowLayout, TrainOn,
};
pub use guard::{BadStepAction, EarlyStopping, SpikeConfig};
pub use model::{LoadStrictness, LoraConfig, ModelConfig};
pub(crate) use model::{is_named, is_target};
pub use train::{
    Accelerator, CheckpointConfig, EvalConfig, GradientCheckpointing, LoggingConfig, PipelineSchedule,
    Precision, Resume, SampleConfig, TrainConfig,
};
pub use warning::ConfigWarning;
pub(crate) use warning::RunFacts;

pub use crate::checkpointing::PlannerKind;
pub use crate::loss::{LossConfig, LossKind};
pub use crate::metrics::SinkKind;
pub use crate::optimizer::{EmaConfig, OptimizerConfig, OptimizerKind};
pub use crate::schedule::{DecayType, ScheduleConfig, ScheduleKind};

/// Config of a training run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The model to train.
    pub model: ModelConfig,
    /// Training data.
    pub data: DataConfig,
    /// Training settings.
    #[serde(default)]
    pub train: TrainConfig,
}

impl Config {
    /// The dtype in which a run holds the weights of the model. Trained weights are
    /// in `f32`; the base of an adapter need not be.
    pub fn weights_dtype(&self) -> DType {
        match (self.train.precision, &self.model.lora) {
            (Precision::Bf16, Some(_)) => DType::Bf16,
            (Precision::Bf16, None) | (Precision::F32, _) => DType::F32,
        }
    }
}
