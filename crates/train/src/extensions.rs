//! What a program adds to training, and what its configs may name: built-in things
//! and those of your own crate.

mod options;
mod registry;

pub use options::{NoOptions, OptionProblem};
pub(crate) use options::{one_of, problems_of, read_options, section_of};
pub(crate) use registry::Registry;
pub use registry::{RegisterError, RegisterProblem, UnknownName};
pub(crate) use weightloom_errors::caught;

use crate::callback::Callbacks;
use crate::checkpointing::{LoadPlanners, SavePlanners};
use crate::data::DataFormats;
use crate::loss::Losses;
use crate::metrics::MetricSinks;
use crate::optimizer::Optimizers;
use crate::schedule::Schedules;
use crate::spec::SpecRegistry;

/// What configs may name. A value that is passed in, not global state: two runs in
/// one process may have different ones.
///
/// [`ConfigReader`](crate::config::ConfigReader) checks names and options against
/// it; [`TrainRequest`](crate::TrainRequest), [`dry_run`](fn@crate::dry_run) and
/// [`preview_data`](crate::preview_data) take it.
///
/// ```
/// use weightloom_train::Extensions;
///
/// let extensions = Extensions::standard();
/// assert_eq!(extensions.optimizers.names(), ["adamw", "sgd", "lion", "adafactor", "schedule_free_adamw", "muon", "adamw_8bit"]);
/// assert_eq!(extensions.sinks.names(), ["jsonl", "tensorboard", "wandb", "mlflow", "trackio"]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Extensions {
    /// Values of `model.name`, in addition to the families of the hub.
    pub specs: SpecRegistry,
    /// Sharding rules of the operations that models use, with those of users'
    /// functions.
    pub operations: weightloom_dtensor::Registry,
    /// Values of `train.loss.kind`.
    pub losses: Losses,
    /// Values of `train.optimizer.kind`.
    pub optimizers: Optimizers,
    /// Values of `train.schedule.kind`.
    pub schedules: Schedules,
    /// Values of `train.logging.report_to`.
    pub sinks: MetricSinks,
    /// Values of `data.format`.
    pub formats: DataFormats,
    /// Keys of `train.callbacks`.
    pub callbacks: Callbacks,
    /// Values of `train.checkpoint.save_planner`.
    pub save_planners: SavePlanners,
    /// Values of `train.checkpoint.load_planner`.
    pub load_planners: LoadPlanners,
}

impl Extensions {
    /// The built-in ones.
    pub fn standard() -> Self {
        Self::default()
    }
}
