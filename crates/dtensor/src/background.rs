//! A thread that communicates while its rank computes.
//!
//! It runs the jobs it is given in order, with its own gangs. So its collectives
//! never mix with those of the computing thread, and every rank runs them in the
//! same order.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};

use crate::dist_context::{DistContext, locked};
use crate::error::{DTensorError, Result};

/// The most jobs in the queue. Each may hold the gradient of a parameter.
const MAX_QUEUED: usize = 24;

type Job = Box<dyn FnOnce(&Arc<DistContext>) + Send>;

/// A thread with a bounded queue of jobs.
pub(crate) struct Background {
    jobs: Option<Sender<Job>>,
    worker: Option<JoinHandle<()>>,
    queue: Arc<Queue>,
    /// The context of its thread.
    pub(crate) dist: Arc<DistContext>,
}

#[derive(Default)]
struct Queue {
    length: Mutex<usize>,
    shorter: Condvar,
    failure: Mutex<Option<DTensorError>>,
}

impl Queue {
    fn wait_for_at_most(&self, length: usize) {
        let mut queued = locked(&self.length);
        while *queued > length {
            queued = self.shorter.wait(queued).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// The first failure of a job, if there was one.
    fn check(&self) -> Result<()> {
        locked(&self.failure).clone().map_or(Ok(()), Err)
    }

    /// Runs a job unless an earlier one failed: other ranks may still wait in
    /// that one, and would take the next collective for it.
    fn run<T>(&self, job: impl FnOnce() -> Result<T>) -> Result<T> {
        self.check()?;
        job().inspect_err(|error| {
            locked(&self.failure).get_or_insert_with(|| error.clone());
        })
    }
}

/// Removes a job from the queue when dropped, even by a panic.
struct Queued(Arc<Queue>);

impl Drop for Queued {
    fn drop(&mut self) {
        // Record the panic before the job counts as done: the thread ends later.
        if thread::panicking() {
            locked(&self.0.failure).get_or_insert(DTensorError::BackgroundPanic);
        }
        *locked(&self.0.length) -= 1;
        self.0.shorter.notify_all();
    }
}

/// The result of a job, once it is done.
pub(crate) struct Pending<T>(Receiver<Result<T>>);

impl<T> Pending<T> {
    pub(crate) fn ready(result: Result<T>) -> Self {
        let (deliver, receiver) = mpsc::channel();
        // Cannot fail: the receiver is in scope.
        let _ = deliver.send(result);
        Self(receiver)
    }

    pub(crate) fn wait(self) -> Result<T> {
        self.0.recv().unwrap_or(Err(DTensorError::BackgroundPanic))
    }
}

impl Background {
    pub(crate) fn new(dist: Arc<DistContext>) -> Self {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let own = Arc::clone(&dist);
        let worker = thread::spawn(move || inbox.into_iter().for_each(|job| job(&own)));
        Self { jobs: Some(jobs), worker: Some(worker), queue: Arc::default(), dist }
    }

    fn post(&self, job: Job) {
        self.queue.wait_for_at_most(MAX_QUEUED - 1);
        *locked(&self.queue.length) += 1;
        let queued = Queued(Arc::clone(&self.queue));
        let job: Job = Box::new(move |dist| {
            let _queued = queued;
            job(dist);
        });
        // If the thread has ended, the job is dropped, and waiting for its result
        // returns an error.
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
    }

    /// Starts a job with a result.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Arc<DistContext>) -> Result<T> + Send + 'static,
    ) -> Pending<T> {
        let (deliver, receiver) = mpsc::channel();
        let queue = Arc::clone(&self.queue);
        self.post(Box::new(move |dist| {
            // The receiver may be dropped before the result arrives.
            let _ = deliver.send(queue.run(|| job(dist)));
        }));
        Pending(receiver)
    }

    /// Starts a job without a result. Its error is returned by
    /// [`finish`](Self::finish), or by the next `spawn`.
    pub(crate) fn spawn(
        &self,
        job: impl FnOnce(&Arc<DistContext>) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        self.queue.check()?;
        let queue = Arc::clone(&self.queue);
        self.post(Box::new(move |dist| {
            // `run` keeps the error.
            let _ = queue.run(|| job(dist));
        }));
        Ok(())
    }

    /// Waits for all jobs.
    pub(crate) fn finish(&self) -> Result<()> {
        self.queue.wait_for_at_most(0);
        self.queue.check()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.jobs = None;
        // A rank that panics must be seen to leave at once.
        if let Some(worker) = self.worker.take().filter(|_| !thread::panicking()) {
            // A panic in a job was reported to its waiter.
            let _ = worker.join();
        }
    }
}
