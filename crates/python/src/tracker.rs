//! Experiment trackers, which are Python packages, as metric sinks of a run.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use pyo3::prelude::*;
use weightloom::Registry;
use weightloom::train::metrics::{Event, MetricsError, Record, Sink, SinkFactory};

use crate::callbacks::{Caller, Ended};

/// Names, and where to look at the metrics of a run.
const TRACKERS: [(&str, &str, &str); 3] = [
    ("wandb", "Weights & Biases, through the package `wandb`.", "the project on Weights & Biases"),
    ("mlflow", "MLflow, through the package `mlflow`.", "mlflow ui"),
    ("trackio", "Trackio, through the package `trackio`.", "trackio show"),
];

/// The registry of our programs: what is built in, and trackers. `caller` is the thread that
/// uses them; without one, it is that of the first rank.
pub(crate) fn registry(caller: Option<&Caller>) -> Registry {
    TRACKERS.into_iter().fold(Registry::standard(), |registry, (name, summary, view)| {
        registry.sink(Tracker { name, summary, view, caller: caller.cloned() })
    })
}

struct Tracker {
    name: &'static str,
    summary: &'static str,
    view: &'static str,
    caller: Option<Caller>,
}

impl fmt::Debug for Tracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tracker").field(&self.name).finish()
    }
}

/// Runs code on the thread that uses a tracker.
fn on_its_thread<T: Send + 'static>(
    name: &str,
    caller: Option<&Caller>,
    code: impl FnOnce(Python<'_>) -> PyResult<T> + Send + 'static,
) -> Result<T, MetricsError> {
    let result = match caller {
        None => Python::attach(code),
        Some(caller) => caller
            .attempt(code)
            .map_err(|Ended| MetricsError::failed(name, "the Python program is ending"))?,
    };
    result.map_err(|error| MetricsError::failed(name, error.to_string()))
}

fn module(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import("weightloom._trackers")
}

impl SinkFactory for Tracker {
    fn name(&self) -> &'static str {
        self.name
    }

    fn summary(&self) -> &'static str {
        self.summary
    }

    fn check(&self) -> Result<(), MetricsError> {
        let name = self.name;
        let problem = on_its_thread(name, self.caller.as_ref(), move |py| {
            module(py)?.call_method1("problem", (name,))?.extract::<Option<(String, String)>>()
        });
        match problem? {
            Some((reason, hint)) => Err(MetricsError::Unavailable { sink: name.to_owned(), reason, hint }),
            None => Ok(()),
        }
    }

    fn open(&self, folder: &Path, after: u64) -> Result<Box<dyn Sink>, MetricsError> {
        let (name, folder) = (self.name, folder.to_owned());
        let object = on_its_thread(name, self.caller.as_ref(), move |py| {
            Ok(module(py)?.call_method1("open_run", (name, folder, after))?.unbind())
        })?;
        Ok(Box::new(TrackedRun { name, caller: self.caller.clone(), object: Arc::new(object) }))
    }

    fn how_to_view(&self, _: &str) -> String {
        self.view.to_owned()
    }
}

/// An object with `record(step, numbers, texts)`, `event(json)` and `close()`.
struct TrackedRun {
    name: &'static str,
    caller: Option<Caller>,
    object: Arc<Py<PyAny>>,
}

impl TrackedRun {
    fn call<A>(&self, method: &'static str, arguments: A) -> Result<(), MetricsError>
    where
        A: for<'py> pyo3::call::PyCallArgs<'py> + Send + 'static,
    {
        let object = Arc::clone(&self.object);
        on_its_thread(self.name, self.caller.as_ref(), move |py| {
            object.bind(py).call_method1(method, arguments).map(drop)
        })
    }
}

impl Sink for TrackedRun {
    fn record(&mut self, record: &Record) -> Result<(), MetricsError> {
        let numbers: BTreeMap<String, f64> =
            record.numbers().map(|(name, value)| (name.to_owned(), value)).collect();
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
        // It says itself what went wrong: the run has ended, and its warnings are told.
        let _ = self.call("close", ());
    }
}
