//! Work with ranks that goes on behind that of the caller.
//!
//! One thread does what was handed to it, in order, with gangs of its own: so
//! its collectives never mix with those of the thread that computes, and every
//! rank makes them in the same order.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};

use crate::dist_context::{DistContext, locked};
use crate::error::DTensorError;

/// Jobs that may wait at a time. Each may hold the gradient of a parameter.
const MOST: usize = 24;

type Job = Box<dyn FnOnce(&Arc<DistContext>) + Send>;

/// A thread that works through jobs.
pub(crate) struct Background {
    jobs: Option<Sender<Job>>,
    worker: Option<JoinHandle<()>>,
    backlog: Arc<Backlog>,
    /// The ranks as its thread sees them.
    pub(crate) dist: Arc<DistContext>,
}

#[derive(Default)]
struct Backlog {
    count: Mutex<usize>,
    fewer: Condvar,
    failure: Mutex<Option<DTensorError>>,
}

impl Backlog {
    fn wait_for_at_most(&self, most: usize) {
        let mut count = locked(&self.count);
        while *count > most {
            count = self.fewer.wait(count).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// What went wrong, if something did.
    fn told(&self) -> Result<(), DTensorError> {
        locked(&self.failure).clone().map_or(Ok(()), Err)
    }

    /// Does a job, unless one before it failed: other ranks may be waiting in
    /// that one, and would take the next for it.
    fn run<T>(&self, job: impl FnOnce() -> Result<T, DTensorError>) -> Result<T, DTensorError> {
        self.told()?;
        job().inspect_err(|error| {
            locked(&self.failure).get_or_insert_with(|| error.clone());
        })
    }
}

/// Counts a job as done even if it panics.
struct Done(Arc<Backlog>);

impl Drop for Done {
    fn drop(&mut self) {
        // Known before it counts as done: the thread itself ends later.
        if thread::panicking() {
            locked(&self.0.failure).get_or_insert(DTensorError::Background);
        }
        *locked(&self.0.count) -= 1;
        self.0.fewer.notify_all();
    }
}

/// A result that is still under way.
pub(crate) struct Later<T>(Receiver<Result<T, DTensorError>>);

impl<T> Later<T> {
    /// A result that is there.
    pub(crate) fn now(result: Result<T, DTensorError>) -> Self {
        let (deliver, receiver) = mpsc::channel();
        // The other end is here.
        let _ = deliver.send(result);
        Self(receiver)
    }

    pub(crate) fn wait(self) -> Result<T, DTensorError> {
        self.0.recv().unwrap_or(Err(DTensorError::Background))
    }
}

impl Background {
    pub(crate) fn new(dist: Arc<DistContext>) -> Self {
        let (jobs, inbox) = mpsc::channel::<Job>();
        let own = Arc::clone(&dist);
        let worker = thread::spawn(move || inbox.into_iter().for_each(|job| job(&own)));
        Self { jobs: Some(jobs), worker: Some(worker), backlog: Arc::default(), dist }
    }

    fn post(&self, job: Job) {
        self.backlog.wait_for_at_most(MOST - 1);
        *locked(&self.backlog.count) += 1;
        let done = Done(Arc::clone(&self.backlog));
        let job: Job = Box::new(move |dist| {
            let _done = done;
            job(dist);
        });
        // If the thread is gone the job is dropped, which whoever waits for it
        // is told.
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
    }

    /// Starts a job whose result somebody will ask for.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Arc<DistContext>) -> Result<T, DTensorError> + Send + 'static,
    ) -> Later<T> {
        let (deliver, receiver) = mpsc::channel();
        let backlog = Arc::clone(&self.backlog);
        self.post(Box::new(move |dist| {
            // Nobody may be waiting any more, which is no fault.
            let _ = deliver.send(backlog.run(|| job(dist)));
        }));
        Later(receiver)
    }

    /// Starts a job that only may fail, which [`finish`](Self::finish) tells, or
    /// whoever comes with another job before.
    pub(crate) fn leave(
        &self,
        job: impl FnOnce(&Arc<DistContext>) -> Result<(), DTensorError> + Send + 'static,
    ) -> Result<(), DTensorError> {
        self.backlog.told()?;
        let backlog = Arc::clone(&self.backlog);
        self.post(Box::new(move |dist| {
            // What goes wrong is remembered.
            let _ = backlog.run(|| job(dist));
        }));
        Ok(())
    }

    /// Waits until everything is done.
    pub(crate) fn finish(&self) -> Result<(), DTensorError> {
        self.backlog.wait_for_at_most(0);
        self.backlog.told()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.jobs = None;
        // A rank that panics must be seen to leave at once.
        if let Some(worker) = self.worker.take().filter(|_| !thread::panicking()) {
            // A panic in a job was told to whoever waited for it.
            let _ = worker.join();
        }
    }
}
