//! Processes of Python as ranks of a gang.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use weightloom::cli::CallError;
use weightloom::gang::transport::{self, Transport, TransportError};
use weightloom::gang::{self, GangExt, GangOptions, conformance};

use crate::errors::{Raise, wrong};
use crate::forked::is_of_this_process;
use crate::interruption::interruptible;
use crate::memory::PyMemory;

/// Where messages of other processes arrive.
#[pyclass(frozen, module = "weightloom._weightloom")]
#[derive(Default)]
pub(crate) struct Inbox(Arc<transport::Inbox>);

#[pymethods]
impl Inbox {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Puts a message of another rank into the inbox.
    fn deliver(&self, py: Python<'_>, source: usize, message: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = PyMemory::of(message)?.bytes().to_vec();
        py.detach(|| self.0.deliver(source, bytes));
        Ok(())
    }

    /// Ends all waits for messages that have not arrived.
    fn lose(&self, py: Python<'_>, reason: String) {
        py.detach(|| self.0.lose(reason));
    }
}

/// An object with `send(to, message)` and `flush(seconds)`.
struct PyTransport {
    object: Py<PyAny>,
    inbox: Arc<transport::Inbox>,
    rank: usize,
    size: usize,
}

impl PyTransport {
    fn call<A>(
        &self,
        method: &str,
        arguments: impl FnOnce(Python<'_>) -> PyResult<A>,
    ) -> Result<(), TransportError>
    where
        A: for<'py> pyo3::call::PyCallArgs<'py>,
    {
        let called = Python::try_attach(|py| {
            let object = self.object.bind(py);
            object.call_method1(method, arguments(py)?).map(drop)
        });
        let ended = || TransportError { reason: "the Python program is ending".to_owned() };
        called.ok_or_else(ended)?.map_err(|error| TransportError { reason: error.to_string() })
    }
}

impl Transport for PyTransport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn engine(&self) -> &'static str {
        "torch"
    }

    fn inbox(&self) -> &transport::Inbox {
        &self.inbox
    }

    fn send(&self, to: usize, message: &[&[u8]]) -> Result<(), TransportError> {
        self.call("send", |py| {
            let length = message.iter().map(|part| part.len()).sum();
            let joined = PyByteArray::new_with(py, length, |mut bytes| {
                for part in message {
                    let (into, rest) = bytes.split_at_mut(part.len());
                    into.copy_from_slice(part);
                    bytes = rest;
                }
                Ok(())
            })?;
            Ok((to, joined.unbind()))
        })
    }

    fn flush(&self, deadline: Instant) -> Result<(), TransportError> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.call("flush", |_| Ok((left.as_secs_f64(),)))
    }
}

/// A process group.
#[pyclass(frozen, module = "weightloom._weightloom")]
pub(crate) struct Gang {
    pub(crate) engine: Arc<dyn gang::Gang>,
    /// The process that made it.
    process: u32,
}

impl Gang {
    fn new(engine: Arc<dyn gang::Gang>) -> Self {
        Self { engine, process: std::process::id() }
    }
}

impl Drop for Gang {
    fn drop(&mut self) {
        if !is_of_this_process(self.process) {
            std::mem::forget(Arc::clone(&self.engine));
        }
    }
}

fn options(timeout: f64) -> PyResult<GangOptions> {
    let timeout = Duration::try_from_secs_f64(timeout).map_err(|_| {
        wrong(format!("a timeout of {timeout} seconds is impossible"), "pass a positive number")
    })?;
    Ok(GangOptions { timeout })
}

#[pymethods]
impl Gang {
    /// A gang of this process alone.
    #[staticmethod]
    fn solo(timeout: f64) -> PyResult<Self> {
        Ok(Self::new(gang::solo(options(timeout)?)))
    }

    /// A gang of processes that exchange messages through an object with
    /// `send(to, message)` and `flush(seconds)`. Every process calls this.
    #[staticmethod]
    fn connect(
        transport: Py<PyAny>,
        inbox: &Bound<'_, Inbox>,
        rank: usize,
        size: usize,
        timeout: f64,
    ) -> PyResult<Self> {
        if rank >= size {
            return Err(wrong(format!("a gang of {size} has no rank {rank}"), "number ranks from 0"));
        }
        let inbox = Arc::clone(&inbox.get().0);
        let transport = PyTransport { object: transport, inbox, rank, size };
        Ok(Self::new(transport::connect(transport, options(timeout)?)))
    }

    /// The number of this rank.
    #[getter]
    fn rank(&self) -> usize {
        self.engine.rank()
    }

    /// The number of ranks.
    #[getter]
    fn size(&self) -> usize {
        self.engine.size()
    }

    /// Waits until every rank has called it.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        let waited = interruptible(py, &AtomicBool::new(false), || self.engine.barrier())?;
        waited.map_err(|error| Raise::from(error).into())
    }

    /// The texts of all ranks, in their order. Every rank calls this.
    fn gather(&self, py: Python<'_>, text: String) -> PyResult<Vec<String>> {
        let gathered = interruptible(py, &AtomicBool::new(false), || self.engine.all_gather_objects(&text))?;
        gathered.map_err(|error| Raise::from(error).into())
    }

    /// Runs the conformance suite of engines, and returns the number of cases. Every rank
    /// calls this.
    fn check(&self, py: Python<'_>) -> PyResult<usize> {
        let checked = interruptible(py, &AtomicBool::new(false), || conformance::check(&*self.engine))?;
        checked.map(|summary| summary.cases).map_err(|error| Raise::from(CallError::from(error)).into())
    }
}
