//! Threads for sockets and timers.

use std::future::Future;
use std::io;

use tokio::runtime::{Builder, Runtime};

/// A small runtime for blocking callers. Dropping it waits for nothing: a DNS
/// lookup that hangs does not keep the process.
#[derive(Debug)]
pub struct IoRuntime(Option<Runtime>);

impl IoRuntime {
    /// Starts a number of threads.
    pub fn start(thread_name: &str, threads: usize) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name(thread_name)
            .enable_all()
            .build()?;
        Ok(Self(Some(runtime)))
    }

    /// Runs a future on the calling thread; its sockets live on the others.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.as_ref().expect("the runtime exists until it is dropped").block_on(future)
    }
}

impl Drop for IoRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
