//! Experiment trackers, which are Python packages.
//!
//! Configs may name them in every program, so that a run of the Python module can be
//! inspected, planned and judged with the other commands. Only the Python module can
//! write to them: it registers sinks of the same names.

use std::path::Path;

use super::{MetricsError, Sink, SinkFactory};

/// A tracker that this program cannot write to.
#[derive(Debug)]
pub(super) struct Tracker {
    name: &'static str,
    summary: &'static str,
}

/// All trackers.
pub(super) static TRACKERS: [Tracker; 3] = [
    Tracker {
        name: "wandb",
        summary: "Weights & Biases, through the Python module and the package `wandb`.",
    },
    Tracker { name: "mlflow", summary: "MLflow, through the Python module and the package `mlflow`." },
    Tracker { name: "trackio", summary: "Trackio, through the Python module and the package `trackio`." },
];

impl SinkFactory for Tracker {
    fn name(&self) -> &'static str {
        self.name
    }

    fn summary(&self) -> &'static str {
        self.summary
    }

    fn check(&self) -> Result<(), MetricsError> {
        Err(MetricsError::Unavailable {
            sink: self.name.to_owned(),
            reason: "this program has no Python".to_owned(),
            hint: "run `pip install weightloom`, and train with the command or the module that it installs"
                .to_owned(),
        })
    }

    fn open(&self, _: &Path, _: u64) -> Result<Box<dyn Sink>, MetricsError> {
        Err(MetricsError::failed(self.name, "this program has no Python"))
    }

    fn how_to_view(&self, _: &str) -> String {
        self.name.to_owned()
    }
}
