//! What configs may name: built-in optimizers, schedules, metric sinks and data
//! formats, and those of your own crate.

mod options;
mod panics;
mod registry;

pub use options::{NoOptions, OptionProblem};
pub(crate) use options::{one_of, read_options, section_of};
pub use panics::Panicked;
pub(crate) use panics::caught;
pub(crate) use registry::Registry;
pub use registry::{RegisterError, RegisterProblem, UnknownName};

use crate::data::DataFormats;
use crate::metrics::MetricSinks;
use crate::optimizer::Optimizers;
use crate::schedule::Schedules;

/// What configs may name. A value that is passed in, not global state: two runs in
/// one process may have different ones.
///
/// [`ConfigReader`](crate::config::ConfigReader) checks names and options against
/// it, and [`TrainRequest`](crate::TrainRequest) takes it for the run.
///
/// ```
/// use weightloom_train::Extensions;
///
/// let extensions = Extensions::standard();
/// assert_eq!(extensions.optimizers.names(), ["adamw", "sgd"]);
/// assert_eq!(extensions.sinks.names(), ["jsonl", "tensorboard"]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Extensions {
    /// Values of `train.optimizer.kind`.
    pub optimizers: Optimizers,
    /// Values of `train.schedule.kind`.
    pub schedules: Schedules,
    /// Values of `train.logging.report_to`.
    pub sinks: MetricSinks,
    /// Values of `data.format`.
    pub formats: DataFormats,
}

impl Extensions {
    /// The built-in ones.
    pub fn standard() -> Self {
        Self::default()
    }
}
