//! Training: configs, model specs, data, optimizers, schedules and the loop.
//!
//! [`train`] runs a [`Config`], and [`dry_run()`] predicts its memory,
//! communication and time for any number of ranks. The parts can be used alone:
//!
//! - [`config`]: the YAML config, with sections `model`, `data` and `train`.
//! - [`data`]: from files to rows of tokens.
//! - [`spec`]: what the trainer needs to know about a model; [`parallel_dims`]:
//!   which parallel sizes fit it.
//! - [`engine`]: forward, backward and optimizer step on one rank.
//! - [`loss`], [`optimizer`], [`schedule`]: what is minimized, update rules and
//!   learning rates.
//! - [`pipeline`]: pipeline schedules as programs that are checked before use.
//! - [`checkpointing`], [`metrics`]: what a run saves and reports.
//! - [`callback`]: hooks into a run, and evaluators of its checkpoints.
//! - [`extensions`]: what your own crate adds.
//!
//! ```
//! use weightloom_train::optimizer::OptimizerConfig;
//! use weightloom_train::schedule::{LearningRate, ScheduleConfig, ScheduleKind};
//!
//! let optimizer = OptimizerConfig { lr: 1e-3, ..OptimizerConfig::default() };
//! let schedule = ScheduleConfig {
//!     kind: ScheduleKind::Linear,
//!     warmup_steps: 10,
//!     ..ScheduleConfig::default()
//! };
//! let rate = LearningRate::new(optimizer.lr, &schedule, 110)?;
//! assert_eq!([rate.at(1), rate.at(11), rate.at(61)], [0.0, 1e-3, 5e-4]);
//! # Ok::<(), weightloom_train::schedule::ScheduleError>(())
//! ```

#![forbid(unsafe_code)]

pub mod callback;
pub mod checkpointing;
pub mod config;
pub mod data;
pub mod dry_run;
pub mod engine;
mod error;
pub mod extensions;
mod guard;
mod lora_target;
pub mod loss;
pub mod metrics;
#[cfg(test)]
#[path = "../tests/it/setup/models.rs"]
mod models;
pub mod optimizer;
pub mod parallel_dims;
pub mod pipeline;
pub mod schedule;
pub mod spec;
mod trained_names;
mod trainer;
mod warning;

pub use config::Config;
pub use error::{BatchOutcome, TrainError};
pub use extensions::Extensions;
pub use guard::{GuardState, Spike};
pub use lora_target::UnknownTarget;
pub use trainer::{
    ConfigChanges, DataPreview, DryRunRequest, End, Outcome, TrainRequest, dry_run, is_running, preview_data,
    train,
};
pub use warning::Warning;
