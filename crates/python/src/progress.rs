//! Progress of long work, for an object of Python.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use weightloom::checkpoint::Observer;

/// Passes progress on to an object with `begin(work, total)` and `advance(bytes)`.
pub(crate) struct Progress {
    pub(crate) object: Option<Py<PyAny>>,
    /// Set by Ctrl-C.
    pub(crate) cancel: Arc<AtomicBool>,
}

impl Progress {
    pub(crate) fn new(object: Option<Py<PyAny>>) -> Self {
        Self { object, cancel: Arc::default() }
    }

    /// Calls a method of the object. A failure there must not end the work.
    pub(crate) fn tell<A>(&self, method: &str, arguments: A)
    where
        A: for<'py> pyo3::call::PyCallArgs<'py>,
    {
        let Some(object) = &self.object else { return };
        // Background work may outlive the interpreter.
        Python::try_attach(|py| {
            if let Err(error) = object.bind(py).call_method1(method, arguments) {
                error.write_unraisable(py, Some(object.bind(py)));
            }
        });
    }
}

impl Observer for Progress {
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
