//! Commands: as a program, and as functions with a result.

use std::ffi::OsString;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;
use weightloom::cli::Listener;
use weightloom::train::callback::Callback;
use weightloom::{Registry, app};

use crate::errors::Raise;
use crate::forked::check_computing;
use crate::interruption::interruptible;
use crate::progress::Progress;
use crate::tracker;
use crate::train::Training;

/// Runs the command line, of which the first argument is the name of the program, and
/// returns its exit code.
#[pyfunction]
pub(crate) fn run(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| app(tracker::registry(None)).run_for_code(arguments))
}

/// Collects the results of a command, and passes progress on.
pub(crate) struct Results {
    results: Mutex<Vec<String>>,
    /// An object that also has `result(json)` and `status(line)`.
    progress: Progress,
    training: Option<Training>,
}

impl Results {
    pub(crate) fn new(progress: Progress, training: Option<Training>) -> Self {
        Self { results: Mutex::default(), progress, training }
    }

    /// Runs a command of a program with this registry.
    pub(crate) fn of_command(self, registry: Registry, arguments: Vec<OsString>) -> Result<Called, Raise> {
        let results = Arc::new(self);
        let listener = Arc::clone(&results);
        let arguments = std::iter::once(OsString::from("weightloom")).chain(arguments);
        let code = app(registry).call(arguments, listener)?;
        let texts = std::mem::take(&mut *results.results.lock().unwrap_or_else(PoisonError::into_inner));
        Ok((code, texts))
    }
}

impl Listener for Results {
    fn result(&self, json: &str) {
        self.results.lock().unwrap_or_else(PoisonError::into_inner).push(json.to_owned());
        self.progress.tell("result", (json,));
    }

    fn status(&self, line: &str) {
        self.progress.tell("status", (line,));
    }

    fn warning(&self, text: &str) {
        Python::attach(|py| {
            let category = py.get_type::<PyRuntimeWarning>();
            let text = std::ffi::CString::new(text.replace('\0', " ")).unwrap_or_default();
            if let Err(error) = PyErr::warn(py, category.as_any(), &text, 2) {
                error.write_unraisable(py, None);
            }
        });
    }

    fn begin(&self, work: &str, total: u64) {
        self.progress.tell("begin", (work, total));
    }

    fn advance(&self, bytes: u64) {
        self.progress.tell("advance", (bytes,));
    }

    fn is_cancelled(&self) -> bool {
        self.progress.cancel.load(Ordering::Relaxed)
    }

    fn callbacks(&self) -> Vec<Box<dyn Callback>> {
        self.training.iter().map(Training::callback).collect()
    }

    fn gang(&self) -> Option<Arc<dyn weightloom::gang::Gang>> {
        self.training.as_ref()?.gang.clone()
    }
}

/// The exit code of a command, and the texts of its JSON results.
pub(crate) type Called = (u8, Vec<String>);

/// Runs a command for its results. Failures are exceptions.
#[pyfunction]
#[pyo3(signature = (arguments, progress=None))]
pub(crate) fn call(
    py: Python<'_>,
    arguments: Vec<OsString>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Called> {
    // The other commands that are called for their results compute nothing.
    if arguments.first().is_some_and(|command| command == "sway") {
        check_computing("judge a model")?;
    }
    let progress = Progress::new(progress);
    let cancel = Arc::clone(&progress.cancel);
    let results = Results::new(progress, None);
    Ok(interruptible(py, &cancel, move || results.of_command(tracker::registry(None), arguments))??)
}
