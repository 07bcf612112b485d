//! Work without the GIL that Ctrl-C ends.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pyo3::prelude::*;

/// How often signals are looked for.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// Runs work on another thread, without the GIL. Python's signal handlers run meanwhile;
/// if one raises, as that of Ctrl-C does, `cancel` is set, and the exception is raised
/// once the work has ended.
pub(crate) fn interruptible<T: Send>(
    py: Python<'_>,
    cancel: &AtomicBool,
    work: impl FnOnce() -> T + Send,
) -> PyResult<T> {
    py.detach(|| {
        std::thread::scope(|scope| {
            let (done, ended) = channel::<()>();
            let worker = scope.spawn(move || {
                let result = work();
                drop(done);
                result
            });
            let mut raised = None;
            while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                if raised.is_none()
                    && let Err(error) = run_signal_handlers()
                {
                    cancel.store(true, Ordering::Relaxed);
                    raised = Some(error);
                }
            }
            let result = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            raised.map_or(Ok(result), Err)
        })
    })
}

/// Runs the handlers of signals that have come, from a thread without the GIL.
#[expect(clippy::redundant_closure_for_method_calls, reason = "the method is for one lifetime only")]
pub(crate) fn run_signal_handlers() -> PyResult<()> {
    Python::attach(|py| py.check_signals())
}

/// Breaks once the work is cancelled.
pub(crate) fn flow(cancel: &AtomicBool) -> ControlFlow<()> {
    if cancel.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}
