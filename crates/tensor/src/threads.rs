//! The threads that kernels run on.
//!
//! Whoever computes does so on its own thread, with helpers from a pool for the
//! whole process, which is made when it is first needed. Ranks that are
//! threads share the helpers: whichever is free takes a piece of work. Results
//! do not depend on how many threads there are.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::error::TensorError;
use crate::tape::{is_recording, no_grad};

/// What the environment variable is called.
pub(crate) const VARIABLE: &str = "WEIGHTLOOM_THREADS";

/// How long helpers are waited for awake. They end about when whoever asked
/// does, and to be woken takes longer than that.
const PATIENCE: Duration = Duration::from_micros(50);

struct Pool {
    count: usize,
    /// One less than the count: the thread that asks works too. One more would
    /// look for work now and then, and take the core of one that has it.
    beside: OnceLock<Option<rayon::ThreadPool>>,
    /// As many as the count: whoever asks is one of them; see [`inside`].
    inside: OnceLock<Option<rayon::ThreadPool>>,
}

static POOL: OnceLock<Pool> = OnceLock::new();

thread_local! {
    static LIMIT: Cell<usize> = const { Cell::new(usize::MAX) };
}

impl Pool {
    fn new(count: usize) -> Self {
        Self { count: count.max(1), beside: OnceLock::new(), inside: OnceLock::new() }
    }

    /// Threads. Where the system gives no more of them, there are none, and one
    /// does all the work.
    fn started(count: usize) -> Option<rayon::ThreadPool> {
        let builder = rayon::ThreadPoolBuilder::new().num_threads(count);
        let named = builder.thread_name(|number| format!("tensor-{}", number + 1));
        if count > 0 { named.build().ok() } else { None }
    }

    /// The pool whose threads help this one.
    fn helpers(&self) -> Option<&rayon::ThreadPool> {
        let inside = self.inside.get().and_then(Option::as_ref);
        match inside.filter(|pool| pool.current_thread_index().is_some()) {
            Some(pool) => Some(pool),
            None => self.beside.get_or_init(|| Self::started(self.count - 1)).as_ref(),
        }
    }

    fn current() -> &'static Self {
        POOL.get_or_init(|| {
            let asked = std::env::var(VARIABLE).ok().and_then(|count| count.parse().ok());
            let cores = || std::thread::available_parallelism().map_or(1, usize::from);
            Self::new(asked.filter(|&count| count > 0).unwrap_or_else(cores))
        })
    }
}

/// How many threads work on one thing: what [`set_count`] said, else the
/// environment variable `WEIGHTLOOM_THREADS`, else one for each core; inside
/// [`at_most`] no more than that.
pub fn count() -> usize {
    Pool::current().count.min(LIMIT.get())
}

/// Calls `work`, whose kernels use at most this many threads, this one
/// included: for one of several ranks that share a machine.
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

/// Calls `work` on a thread of the pool: for many short operations in a row,
/// such as those for the next token of a text. There, an operation ends without
/// waiting for helpers that have not begun yet, and without going to sleep.
///
/// A tape belongs to its thread, so that only work inside
/// [`no_grad`] goes there. It must not wait for other threads
/// that are inside too, as ranks of one gang do for each other: it may keep them
/// from beginning.
pub fn inside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let limit = LIMIT.get();
    let pool = Pool::current();
    if count() < 2 || is_recording() {
        return work();
    }
    match pool.inside.get_or_init(|| Pool::started(pool.count)) {
        Some(helpers) => helpers.install(|| at_most(limit, || no_grad(work))),
        None => work(),
    }
}

/// Sets how many threads work on one thing. It can be set once, before anything
/// is computed; later this is an error unless the count is the same.
pub fn set_count(threads: usize) -> Result<(), TensorError> {
    let pool = POOL.get_or_init(|| Pool::new(threads));
    if pool.count == threads {
        return Ok(());
    }
    Err(TensorError::ThreadsStarted { asked: threads, running: pool.count })
}

/// Does work on this thread and, at the same time, on up to this many helpers.
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
                // A thread of the pool has better things to do than to wait.
                if helpers.current_thread_index().is_none() {
                    let began = Instant::now();
                    while ended.load(Ordering::Acquire) < most && began.elapsed() < PATIENCE {
                        std::hint::spin_loop();
                    }
                }
            });
        }
        _ => work(),
    }
}
