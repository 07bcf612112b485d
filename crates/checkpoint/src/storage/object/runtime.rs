//! Threads for sockets, shared by the whole process, and a `block_on` that works
//! on any thread.
//!
//! A caller polls its own request, so that bytes go straight into its memory;
//! sockets and timers live on the shared threads. `Runtime::block_on` panics if
//! the caller is a task of another runtime; [`wait_for`] does not.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use tokio::runtime::{Builder, Handle, Runtime};

/// One can decrypt while the other one reads.
const THREADS: usize = 2;

/// The shared threads, started on first use; they never end. A forked process, into
/// which no thread is copied, starts its own.
pub(super) fn shared() -> io::Result<Handle> {
    static SHARED: Mutex<Option<(u32, Runtime)>> = Mutex::new(None);
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    match shared.take() {
        Some((owner, runtime)) if owner == process => {
            return Ok(shared.insert((owner, runtime)).1.handle().clone());
        }
        // Dropping the parent's runtime would wait for threads that are not here.
        Some((_, parents)) => std::mem::forget(parents),
        None => {}
    }
    let runtime = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("weightloom-objects")
        .enable_all()
        .build()?;
    Ok(shared.insert((process, runtime)).1.handle().clone())
}

/// Waits for a future, on any thread.
pub(super) fn wait_for<F: Future>(runtime: &Handle, future: F) -> F::Output {
    let _inside = runtime.enter();
    // A task of another runtime has a budget of steps until it must yield. It
    // cannot yield before this returns, so the budget must not apply.
    let mut future = pin!(tokio::task::unconstrained(future));
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_task_of_another_runtime_may_wait() {
        let other = Builder::new_current_thread().build().unwrap();
        other.block_on(async {
            let shared = shared().unwrap();
            // More steps than the budget of a task.
            let slept = wait_for(&shared, async {
                let mut slept = 0;
                for _ in 0..500 {
                    tokio::time::sleep(Duration::from_micros(1)).await;
                    slept += 1;
                }
                slept
            });
            assert_eq!(slept, 500);
        });
    }
}
