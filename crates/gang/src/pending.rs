//! Asynchronous communication: pending results, and the queue that runs jobs.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};

use crate::call::Call;
use crate::element::{Elements, ElementsMut};
use crate::error::GangError;
use crate::gang::{Gang, Job, Lane, Ticket};

/// The result of a started operation.
///
/// Dropping it does not cancel the operation, because other ranks take part in
/// it.
#[derive(Debug)]
#[must_use = "communication may fail; `wait` returns the error"]
pub struct Pending<T> {
    receiver: Receiver<Result<T, GangError>>,
    arrived: Option<Result<T, GangError>>,
}

/// The other end of a [`Pending`].
#[derive(Debug)]
pub(crate) struct Deliver<T>(Sender<Result<T, GangError>>);

impl<T> Deliver<T> {
    pub(crate) fn send(self, result: Result<T, GangError>) {
        // The receiver may have been dropped.
        let _ = self.0.send(result);
    }
}

impl<T> Pending<T> {
    pub(crate) fn new() -> (Self, Deliver<T>) {
        let (sender, receiver) = mpsc::channel();
        (Self { receiver, arrived: None }, Deliver(sender))
    }

    /// Waits for the result.
    pub fn wait(mut self) -> Result<T, GangError> {
        match self.arrived.take() {
            Some(result) => result,
            None => self.receiver.recv().unwrap_or_else(|_| Err(lost_worker())),
        }
    }

    /// Whether [`wait`](Self::wait) would return immediately.
    pub fn is_done(&mut self) -> bool {
        if self.arrived.is_none() {
            self.arrived = match self.receiver.try_recv() {
                Ok(result) => Some(result),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => Some(Err(lost_worker())),
            };
        }
        self.arrived.is_some()
    }
}

fn lost_worker() -> GangError {
    GangError::Engine { engine: "gang", reason: "a job on the communication thread panicked".to_owned() }
}

/// A gang that runs deferred jobs in order on a communication thread.
///
/// Engines block; this wrapper overlaps their communication with computation.
/// The first deferred job starts the thread.
pub struct Queued<G: Gang + 'static> {
    engine: Arc<G>,
    queue: Mutex<Option<Queue>>,
    worker: OnceLock<ThreadId>,
    backlog: Arc<Backlog>,
}

struct Queue {
    jobs: Sender<Job>,
    worker: JoinHandle<()>,
}

/// The number of unfinished jobs.
#[derive(Default)]
struct Backlog {
    /// Written under the lock, read without it as a fast path.
    count: AtomicUsize,
    lock: Mutex<()>,
    emptied: Condvar,
    /// A job panicked. Its call is missing, so this rank's next call would meet
    /// an earlier call of the other ranks.
    broken: AtomicBool,
}

impl Backlog {
    fn add(&self) {
        let _held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    fn finish(&self) {
        let _held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        if self.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.emptied.notify_all();
        }
    }

    fn wait_until_empty(&self) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while self.count.load(Ordering::Acquire) != 0 {
            held = self.emptied.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Counts a job as finished even if it panics.
struct Finish(Arc<Backlog>);

impl Drop for Finish {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.broken.store(true, Ordering::Release);
        }
        self.0.finish();
    }
}

impl<G: Gang + 'static> Queued<G> {
    /// Wraps an engine.
    pub fn new(engine: G) -> Self {
        Self {
            engine: Arc::new(engine),
            queue: Mutex::new(None),
            worker: OnceLock::new(),
            backlog: Arc::default(),
        }
    }

    /// The wrapped engine.
    pub fn engine_ref(&self) -> &G {
        &self.engine
    }

    /// Waits until all started jobs have finished.
    pub fn drain(&self) {
        self.backlog.wait_until_empty();
    }

    /// Whether this is the communication thread: a job that uses the gang it
    /// was deferred on must not wait for itself.
    fn on_worker(&self) -> bool {
        self.worker.get().is_some_and(|worker| *worker == thread::current().id())
    }

    fn enqueue(&self, job: Job) {
        self.backlog.add();
        let finish = Finish(Arc::clone(&self.backlog));
        let job: Job = Box::new(move |gang| {
            let _finish = finish;
            job(gang);
        });
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = queue.get_or_insert_with(|| {
            let (jobs, inbox) = mpsc::channel::<Job>();
            let engine = Arc::clone(&self.engine);
            let worker = thread::spawn(move || inbox.into_iter().for_each(|job| job(&*engine)));
            let _ = self.worker.set(worker.thread().id());
            Queue { jobs, worker }
        });
        // If the worker has ended, this drops the job and with it the sender
        // of its `Pending`.
        let _ = queue.jobs.send(job);
    }
}

impl<G: Gang + 'static> Drop for Queued<G> {
    fn drop(&mut self) {
        let queue = self.queue.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Queue { jobs, worker }) = queue {
            drop(jobs);
            // A panicking rank must leave without waiting: its last calls may
            // wait for ranks that wait for it. And the last job may hold the
            // last handle.
            if !thread::panicking() && worker.thread().id() != thread::current().id() {
                // A panic in a job has reached its `Pending` as an error.
                let _ = worker.join();
            }
        }
    }
}

impl<G: Gang + 'static> Gang for Queued<G> {
    fn rank(&self) -> usize {
        self.engine.rank()
    }

    fn size(&self) -> usize {
        self.engine.size()
    }

    fn engine(&self) -> &'static str {
        self.engine.engine()
    }

    fn members(&self) -> &[usize] {
        self.engine.members()
    }

    fn run(&self, call: Call<'_>) -> Result<(), GangError> {
        if !self.on_worker() {
            self.drain();
        }
        if self.backlog.broken.load(Ordering::Acquire) {
            return Err(lost_worker());
        }
        self.engine.run(call)
    }

    fn send(&self, data: Elements<'_>, to: usize, tag: u32) -> Result<(), GangError> {
        self.engine.send(data, to, tag)
    }

    fn ticket(&self, from: usize, tag: u32) -> Result<Ticket, GangError> {
        self.engine.ticket(from, tag)
    }

    fn receive(&self, ticket: Ticket, into: ElementsMut<'_>) -> Result<(), GangError> {
        self.engine.receive(ticket, into)
    }

    fn sub_gang(&self, ranks: &[usize]) -> Result<Arc<dyn Gang>, GangError> {
        self.engine.sub_gang(ranks)
    }

    fn defer(&self, lane: Lane, job: Job) {
        match lane {
            // A job that starts another one would wait for itself.
            Lane::Ordered if self.on_worker() => job(&*self.engine),
            Lane::Ordered => self.enqueue(job),
            Lane::Detached => {
                let engine = Arc::clone(&self.engine);
                thread::spawn(move || job(&*engine));
            }
        }
    }
}
