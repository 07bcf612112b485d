//! The file that says what is trained, on what, and how.
//!
//! Three sections: `model`, `data`, `train`. These types are the only place
//! where keys, defaults and meanings are written down; the JSON schema and the
//! reference page are made from them.

mod data;
mod model;
mod train;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use data::{DataConfig, DataType, Form, Masking, Rows};
pub use model::{LoraConfig, ModelConfig};
pub use train::{
    Accelerator, Checkpointing, Decay, EvalConfig, LoggingConfig, OptimizerConfig, OptimizerKind,
    PipelineSchedule, Precision, Recomputation, Resume, SampleConfig, ScheduleConfig, ScheduleKind,
    TrainConfig,
};

/// A training run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// What is trained.
    pub model: ModelConfig,
    /// On what.
    pub data: DataConfig,
    /// How.
    #[serde(default)]
    pub train: TrainConfig,
}
