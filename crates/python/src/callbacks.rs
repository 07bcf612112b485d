//! Work that calls back into Python on the thread that began it.
//!
//! Much of torch's state belongs to a thread: autocast, gradient modes, contexts of
//! devices. What the caller has set holds for its callbacks too, and Ctrl-C raises inside
//! of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};

use pyo3::exceptions::PyException;
use pyo3::prelude::*;

use crate::interruption::{TICK, run_signal_handlers};

type Callback = Box<dyn FnOnce(Python<'_>) -> PyResult<()> + Send>;

/// The thread that began the work.
#[derive(Clone)]
pub(crate) struct Caller(Sender<Callback>);

/// The work ends, since a callback has raised an exception.
pub(crate) struct Ended;

impl Caller {
    /// Calls on the thread that began the work, and waits for the result.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        callback: impl FnOnce(Python<'_>) -> PyResult<T> + Send + 'static,
    ) -> Result<T, Ended> {
        let (answer, answered) = channel();
        let callback: Callback = Box::new(move |py| {
            // Nobody waits for the answer if the work has ended.
            let _ = answer.send(callback(py)?);
            Ok(())
        });
        self.0.send(callback).map_err(|_| Ended)?;
        answered.recv().map_err(|_| Ended)
    }

    /// As [`call`](Self::call), with the exception that the callback raises, which does not
    /// end the work unless it ends programs, as that of Ctrl-C does.
    pub(crate) fn attempt<T: Send + 'static>(
        &self,
        callback: impl FnOnce(Python<'_>) -> PyResult<T> + Send + 'static,
    ) -> Result<PyResult<T>, Ended> {
        let (answer, answered) = channel();
        let callback: Callback = Box::new(move |py| {
            let outcome = callback(py);
            let end = outcome.as_ref().err().filter(|error| ends_programs(py, error));
            let end = end.map(|error| error.clone_ref(py));
            let _ = answer.send(outcome);
            end.map_or(Ok(()), Err)
        });
        self.0.send(callback).map_err(|_| Ended)?;
        answered.recv().map_err(|_| Ended)
    }
}

/// Whether an exception is one that programs do not catch, as those of signals are. It may
/// come in the middle of any Python code.
pub(crate) fn ends_programs(py: Python<'_>, error: &PyErr) -> bool {
    !error.is_instance_of::<PyException>(py)
}

/// What becomes of callbacks once one, or a signal handler, has raised an exception.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterException {
    /// They fail, which ends the work.
    Fail,
    /// They are called as before: the work ends by itself.
    Call,
}

/// Runs work on another thread, without the GIL, and its callbacks on this one. The first
/// exception of a callback or of a signal handler sets `cancel`, and is raised once the
/// work has ended.
pub(crate) fn with_callbacks<T: Send>(
    py: Python<'_>,
    cancel: &AtomicBool,
    after_exception: AfterException,
    work: impl FnOnce(Caller) -> T + Send,
) -> PyResult<T> {
    py.detach(|| {
        std::thread::scope(|scope| {
            let (callbacks, pending) = channel::<Callback>();
            let worker = scope.spawn(move || work(Caller(callbacks)));
            let mut raised: Option<PyErr> = None;
            loop {
                let result = match pending.recv_timeout(TICK) {
                    // Dropped, a callback fails without an answer.
                    Ok(_) if raised.is_some() && after_exception == AfterException::Fail => continue,
                    Err(RecvTimeoutError::Timeout) if raised.is_some() => continue,
                    Ok(callback) => Python::attach(callback),
                    Err(RecvTimeoutError::Timeout) => run_signal_handlers(),
                    Err(RecvTimeoutError::Disconnected) => break,
                };
                if let Err(error) = result {
                    cancel.store(true, Ordering::Relaxed);
                    raised.get_or_insert(error);
                }
            }
            let result = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            raised.map_or(Ok(result), Err)
        })
    })
}
