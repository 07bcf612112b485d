//! Computation in forked processes, which is refused: the threads that compute do not survive a fork.

use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::prelude::*;

use crate::errors::wrong;

/// The process whose threads compute; 0 before the first computation.
static COMPUTING: AtomicU32 = AtomicU32::new(0);

/// Notes that this process computes. Fails in one that was forked from a process that did: it
/// would wait for threads that do not exist.
pub(crate) fn check_computing(work: &str) -> PyResult<()> {
    let process = std::process::id();
    match COMPUTING.compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed) {
        Err(other) if other != process => Err(wrong(
            format!("cannot {work} in a forked process: the threads that compute do not survive a fork"),
            "start processes with the method `spawn` or `forkserver`",
        )),
        _ => Ok(()),
    }
}

/// Whether an object of this process may be freed here: to free one of the process before the
/// fork could wait for its threads.
pub(crate) fn is_of_this_process(process: u32) -> bool {
    process == std::process::id()
}
