//! Experiment trackers, which are Python packages, as metric sinks of a run.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use pyo3::prelude::*;
use weightloom::Registry;
use weightloom::train::metrics::{Event, MetricsError, Record, Sink, SinkFactory};

/// Names, and where to look at the metrics of a run.
const TRACKERS: [(&str, &str, &str); 3] = [
    ("wandb", "Weights & Biases, through the package `wandb`.", "the project on Weights & Biases"),
    ("mlflow", "MLflow, through the package `mlflow`.", "mlflow ui"),
    ("trackio", "Trackio, through the package `trackio`.", "trackio show"),
];

/// The registry of our programs: what is built in, and trackers. `trackers` is a
/// `weightloom._trackers.Trackers`.
pub(crate) fn registry(trackers: Option<Py<PyAny>>) -> Registry {
    let trackers = trackers.map(Arc::new);
    TRACKERS.into_iter().fold(Registry::standard(), |registry, (name, summary, view)| {
        registry.sink(Tracker { name, summary, view, trackers: trackers.clone() })
    })
}

struct Tracker {
    name: &'static str,
    summary: &'static str,
    view: &'static str,
    trackers: Option<Arc<Py<PyAny>>>,
}

impl fmt::Debug for Tracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tracker").field(&self.name).finish()
    }
}

impl Tracker {
    /// Calls a method of the trackers.
    fn call<'py, A>(&self, py: Python<'py>, method: &str, arguments: A) -> PyResult<Bound<'py, PyAny>>
    where
        A: pyo3::call::PyCallArgs<'py>,
    {
        let trackers = match &self.trackers {
            Some(trackers) => trackers.bind(py).clone(),
            None => py.import("weightloom._trackers")?.getattr("Trackers")?.call0()?,
        };
        trackers.call_method1(method, arguments)
    }

    fn failed(&self, error: &PyErr) -> MetricsError {
        MetricsError::failed(self.name, error.to_string())
    }
}

impl SinkFactory for Tracker {
    fn name(&self) -> &'static str {
        self.name
    }

    fn summary(&self) -> &'static str {
        self.summary
    }

    fn check(&self) -> Result<(), MetricsError> {
        let problem = Python::attach(|py| {
            self.call(py, "problem", (self.name,))?.extract::<Option<(String, String)>>()
        });
        match problem.map_err(|error| self.failed(&error))? {
            Some((reason, hint)) => {
                Err(MetricsError::Unavailable { sink: self.name.to_owned(), reason, hint })
            }
            None => Ok(()),
        }
    }

    fn open(&self, folder: &Path, after: u64) -> Result<Box<dyn Sink>, MetricsError> {
        let opened = Python::attach(|py| Ok(self.call(py, "open", (self.name, folder, after))?.unbind()));
        let object = opened.map_err(|error| self.failed(&error))?;
        Ok(Box::new(TrackedRun { name: self.name, object }))
    }

    fn how_to_view(&self, _: &str) -> String {
        self.view.to_owned()
    }
}

/// An object with `record(step, numbers, texts)`, `event(json)` and `close()`.
struct TrackedRun {
    name: &'static str,
    object: Py<PyAny>,
}

impl TrackedRun {
    fn call<A>(&self, method: &str, arguments: A) -> Result<(), MetricsError>
    where
        A: for<'py> pyo3::call::PyCallArgs<'py>,
    {
        let called = Python::attach(|py| self.object.bind(py).call_method1(method, arguments).map(drop));
        called.map_err(|error| MetricsError::failed(self.name, error.to_string()))
    }
}

impl Sink for TrackedRun {
    fn record(&mut self, record: &Record) -> Result<(), MetricsError> {
        let numbers: BTreeMap<&str, f64> = record.numbers().collect();
        self.call("record", (record.step, numbers, record.texts.clone()))
    }

    fn event(&mut self, event: &Event) -> Result<(), MetricsError> {
        let json = serde_json::to_string(event);
        let json = json.map_err(|error| MetricsError::failed(self.name, error.to_string()))?;
        self.call("event", (json,))
    }
}

impl Drop for TrackedRun {
    fn drop(&mut self) {
        Python::try_attach(|py| {
            let object = self.object.bind(py);
            if let Err(error) = object.call_method0("close") {
                error.write_unraisable(py, Some(object));
            }
        });
    }
}
