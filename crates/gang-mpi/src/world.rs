//! The MPI job: joining, leaving, aborting.

use std::io::Write;
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use mpi::Threading;
use mpi::environment::Universe;
use weightloom_errors::Hint;
use weightloom_gang::{Gang, GangError, GangOptions, Queued};

use crate::comm::{self, Comm, MAX_COUNT};
use crate::rank::{JobState, MpiRank};

/// Options of MPI gangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct MpiOptions {
    pub gang: GangOptions,
    /// Maximum bytes of one MPI message, up to `i32::MAX`. Longer ones are
    /// split.
    pub max_message: usize,
}

impl Default for MpiOptions {
    fn default() -> Self {
        Self { gang: GangOptions::default(), max_message: 1 << 30 }
    }
}

/// An error of joining an MPI job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum MpiError {
    #[error("MPI is already initialised in this process")]
    AlreadyRunning,
    #[error("this MPI does not support MPI_THREAD_MULTIPLE")]
    NotThreaded,
    #[error("`max_message` must be between 1 and {MAX_COUNT}, found {bytes}")]
    MaxMessage { bytes: usize },
}

impl Hint for MpiError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::AlreadyRunning => Some("start MPI once, and share the root gang".to_owned()),
            Self::NotThreaded => {
                Some("use an MPI built with thread support, such as Debian's openmpi-bin".to_owned())
            }
            Self::MaxMessage { .. } => None,
        }
    }
}

/// The membership of this process in an MPI job.
///
/// Dropping it finalises MPI. If a gang has failed, it ends the whole job,
/// because other ranks could wait forever.
pub struct MpiWorld {
    root: Arc<Queued<MpiRank>>,
    job: Arc<JobState>,
    /// All ranks have left the gang of all.
    left: AtomicBool,
    timeout: Duration,
    // Finalises MPI, so it is dropped after everything that uses MPI.
    _universe: Universe,
}

impl MpiWorld {
    /// Joins the job that `mpirun` started, or a job of one process.
    ///
    /// After this, a panic on any thread ends the whole job, because other ranks
    /// would wait forever.
    pub fn join(options: MpiOptions) -> Result<Self, MpiError> {
        if options.max_message == 0 || options.max_message > MAX_COUNT {
            return Err(MpiError::MaxMessage { bytes: options.max_message });
        }
        let joining = Deadline::start(options.gang.timeout, || {
            report("error: not all ranks have joined the MPI job within its timeout; ending the job\n");
            std::process::exit(3)
        });
        let (universe, threading) =
            mpi::initialize_with_threading(Threading::Multiple).ok_or(MpiError::AlreadyRunning)?;
        if threading != Threading::Multiple {
            return Err(MpiError::NotThreaded);
        }
        let comm = Comm::world();
        end_job_on_panic(comm.rank());
        let members = (0..comm.size()).collect();
        let job = Arc::new(JobState::new(Comm::world()));
        drop(joining);
        let root = MpiRank::new(comm, members, options, Arc::clone(&job));
        let (left, timeout) = (AtomicBool::new(false), options.gang.timeout);
        Ok(Self { root: Arc::new(Queued::new(root)), job, left, timeout, _universe: universe })
    }

    /// The gang of all processes.
    pub fn root(&self) -> Arc<dyn Gang> {
        Arc::clone(&self.root) as Arc<dyn Gang>
    }

    /// Waits until all ranks leave; then the world may be dropped. If a rank
    /// still waits in a collective, both get an error.
    pub fn leave(&self) -> Result<(), GangError> {
        self.root.drain();
        self.root.engine_ref().leave()?;
        self.left.store(true, Ordering::Release);
        Ok(())
    }

    /// Ends every process of the job.
    pub fn abort(&self, code: i32) -> ! {
        comm::abort_job(code)
    }
}

impl Drop for MpiWorld {
    fn drop(&mut self) {
        // MPI_Finalize waits for all ranks, which may never come after a failure.
        if self.job.has_failed() {
            comm::abort_job(3);
        }
        self.root.drain();
        // MPI_Finalize waits for all ranks and cannot be interrupted: make sure that all
        // have come this far.
        if self.left.load(Ordering::Acquire)
            && let Err(error) = self.root.engine_ref().leave()
        {
            report(&format!("error: {error}; ending the job\n"));
            comm::abort_job(3);
        }
        comm::close();
        // Not dropped: the process ends first, or MPI_Finalize hangs.
        std::mem::forget(Deadline::start(self.timeout, || {
            if comm::is_running() {
                report("error: not all ranks have left the MPI job within its timeout; ending the job\n");
                std::process::exit(3);
            }
        }));
    }
}

/// Writes a message in one piece, so that output of other ranks does not interleave.
fn report(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Calls a function after some time, unless dropped before.
struct Deadline(#[expect(dead_code, reason = "dropping it ends the thread")] Sender<()>);

impl Deadline {
    fn start(after: Duration, late: impl FnOnce() + Send + 'static) -> Self {
        let (alive, dropped) = channel::<()>();
        thread::spawn(move || {
            if dropped.recv_timeout(after) == Err(RecvTimeoutError::Timeout) {
                late();
            }
        });
        Self(alive)
    }
}

fn end_job_on_panic(rank: usize) {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        hook(info);
        if comm::is_running() {
            report(&format!("error: rank {rank} panicked; ending the job\n"));
            comm::abort_job(3);
        }
    }));
}
