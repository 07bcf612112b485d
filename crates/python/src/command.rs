//! Commands: as a program, and as functions with a result.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;
use weightloom::cli::Listener;
use weightloom::{Registry, app};

use crate::errors::Raise;
use crate::interruption::interruptible;

/// Runs the command line, of which the first argument is the name of the program, and
/// returns its exit code.
#[pyfunction]
pub(crate) fn run(py: Python<'_>, arguments: Vec<String>) -> u8 {
    py.detach(|| app(Registry::standard()).run_for_code(arguments))
}

/// Collects the results of a command, and passes progress on.
struct Results {
    results: Mutex<Vec<String>>,
    /// An object with `status(line)`, `begin(work, total)` and `advance(bytes)`.
    progress: Option<Py<PyAny>>,
    cancel: Arc<AtomicBool>,
}

impl Results {
    /// Calls a method of the progress. A failure there must not end the work.
    fn tell<A>(&self, method: &str, arguments: A)
    where
        A: for<'py> pyo3::call::PyCallArgs<'py>,
    {
        let Some(progress) = &self.progress else { return };
        Python::attach(|py| {
            if let Err(error) = progress.bind(py).call_method1(method, arguments) {
                error.write_unraisable(py, Some(progress.bind(py)));
            }
        });
    }
}

impl Listener for Results {
    fn result(&self, json: &str) {
        self.results.lock().unwrap_or_else(PoisonError::into_inner).push(json.to_owned());
        self.tell("result", (json,));
    }

    fn status(&self, line: &str) {
        self.tell("status", (line,));
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
        self.tell("begin", (work, total));
    }

    fn advance(&self, bytes: u64) {
        self.tell("advance", (bytes,));
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}

/// Runs a command for its results: its exit code, and the texts of its JSON results.
/// Failures are exceptions.
#[pyfunction]
#[pyo3(signature = (arguments, progress=None))]
pub(crate) fn call(
    py: Python<'_>,
    arguments: Vec<String>,
    progress: Option<Py<PyAny>>,
) -> PyResult<(u8, Vec<String>)> {
    let cancel = Arc::new(AtomicBool::new(false));
    let results = Arc::new(Results { results: Mutex::default(), progress, cancel: Arc::clone(&cancel) });
    let listener = Arc::clone(&results);
    let code = interruptible(py, &cancel, move || {
        let arguments = std::iter::once("weightloom".to_owned()).chain(arguments);
        app(Registry::standard()).call(arguments, listener)
    })?;
    let code = code.map_err(Raise::from)?;
    let texts = std::mem::take(&mut *results.results.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((code, texts))
}
