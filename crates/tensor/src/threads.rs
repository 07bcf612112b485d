//! The threads that kernels run on.
//!
//! A kernel runs on the calling thread, with helpers from a process-wide pool
//! that starts on first use. Ranks that are threads share the helpers: whichever
//! is free takes a piece of work. Results do not depend on the number of threads.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Result, TensorError};

/// The environment variable that sets the thread count.
pub(crate) const VARIABLE: &str = "WEIGHTLOOM_THREADS";

/// How long to spin while waiting for helpers. They end at about the same time as
/// the caller, and waking a thread takes longer than that.
const SPIN: Duration = Duration::from_micros(50);

struct Pool {
    count: usize,
    /// One thread fewer than the count: the calling thread works too. One more
    /// would look for work now and then, and take the core of one that has it.
    helpers: OnceLock<Option<rayon::ThreadPool>>,
}

static POOL: OnceLock<Pool> = OnceLock::new();

thread_local! {
    static LIMIT: Cell<usize> = const { Cell::new(usize::MAX) };
}

impl Pool {
    fn new(count: usize) -> Self {
        Self { count: count.max(1), helpers: OnceLock::new() }
    }

    /// The helper threads. None if the system cannot start any: then the calling
    /// thread does all the work.
    fn helpers(&self) -> Option<&rayon::ThreadPool> {
        let start = || {
            let count = self.count - 1;
            let builder = rayon::ThreadPoolBuilder::new().num_threads(count);
            let named = builder.thread_name(|number| format!("tensor-{}", number + 1));
            if count > 0 { named.build().ok() } else { None }
        };
        self.helpers.get_or_init(start).as_ref()
    }

    fn current() -> &'static Self {
        POOL.get_or_init(|| {
            let asked = std::env::var(VARIABLE).ok().and_then(|count| count.parse().ok());
            let cores = || std::thread::available_parallelism().map_or(1, usize::from);
            Self::new(asked.filter(|&count| count > 0).unwrap_or_else(cores))
        })
    }
}

/// The threads that a kernel uses: as many as [`set_count`] or else the environment
/// variable `WEIGHTLOOM_THREADS` says, or else one per core; inside [`at_most`] no
/// more than its limit.
pub fn count() -> usize {
    Pool::current().count.min(LIMIT.get())
}

/// Calls `work`, whose kernels use at most this many threads, the calling thread
/// included. For ranks that share a machine.
pub fn at_most<T>(threads: usize, work: impl FnOnce() -> T) -> T {
    struct Restore(usize);
    impl Drop for Restore {
        fn drop(&mut self) {
            LIMIT.set(self.0);
        }
    }
    let _restore = Restore(LIMIT.replace(threads.max(1).min(LIMIT.get())));
    work()
}

/// Sets the number of threads that a kernel uses. Returns an error after the first
/// computation, unless the number stays the same.
pub fn set_count(threads: usize) -> Result<()> {
    let pool = POOL.get_or_init(|| Pool::new(threads));
    if pool.count == threads {
        return Ok(());
    }
    Err(TensorError::ThreadsStarted { asked: threads, running: pool.count })
}

/// Runs `work` on this thread and, at the same time, on up to `most` helpers.
pub(crate) fn with_helpers(most: usize, work: impl Fn() + Sync) {
    let most = most.min(count() - 1);
    match Pool::current().helpers() {
        Some(helpers) if most > 0 => {
            let ended = AtomicUsize::new(0);
            helpers.in_place_scope(|scope| {
                for _ in 0..most {
                    scope.spawn(|_| {
                        work();
                        ended.fetch_add(1, Ordering::Release);
                    });
                }
                work();
                // A thread of the pool takes other work instead of spinning.
                if helpers.current_thread_index().is_none() {
                    let began = Instant::now();
                    while ended.load(Ordering::Acquire) < most && began.elapsed() < SPIN {
                        std::hint::spin_loop();
                    }
                }
            });
        }
        _ => work(),
    }
}
