//! The file that says what is trained, on what, and how.
//!
//! Three sections: `model`, `data`, `train`. These types are the only place
//! where keys, defaults and meanings are written down; the JSON schema and the
//! reference page are made from them.
//!
//! [`read`] makes one from a text, or says everything that is wrong with it.

mod check;
mod data;
mod dump;
mod fault;
mod model;
mod outline;
mod read;
mod reference;
mod train;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use dump::dump;
pub(crate) use fault::divisors;
pub use fault::{ConfigErrors, ConfigFault, Problem, Remedy, Rule};
pub use outline::schema;
pub use read::{read, read_file};
pub use reference::reference;
pub use weightloom_document::Place;
pub use weightloom_document::variable::Lookup;

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
    /// What it is trained on.
    pub data: DataConfig,
    /// How it is trained.
    #[serde(default)]
    pub train: TrainConfig,
}
