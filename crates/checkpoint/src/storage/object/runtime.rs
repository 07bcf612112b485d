//! The threads that talk to services, shared by the whole process, and how a
//! thread that is not one of them waits for an answer.
//!
//! A caller polls its own request, so that bytes go straight into its memory;
//! sockets and timers live on the shared threads. `Runtime::block_on` would
//! panic if the caller is a task of another runtime; this does not.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use tokio::runtime::{Builder, Handle, Runtime};

/// Two: one may be busy deciphering while the other one reads.
const THREADS: usize = 2;

/// The shared threads, started when they are first needed. They never end.
pub(super) fn shared() -> io::Result<Handle> {
    static SHARED: Mutex<Option<Runtime>> = Mutex::new(None);
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(runtime) = &*shared {
        return Ok(runtime.handle().clone());
    }
    let runtime = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("weightloom-objects")
        .enable_all()
        .build()?;
    Ok(shared.insert(runtime).handle().clone())
}

/// Waits for a future, on any thread.
pub(super) fn wait_for<F: Future>(runtime: &Handle, future: F) -> F::Output {
    let _inside = runtime.enter();
    // If the caller is a task of another runtime, it has a budget of steps
    // until it yields. It cannot yield before we are done, so the budget must
    // not count.
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
            // More steps than a task has before it must yield.
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
