//! Launching ranks, as threads or as processes of an MPI job.

use std::sync::Arc;

use weightloom_errors::Hint;
use weightloom_gang::{Gang, GangError, GangOptions, threads};

/// Environment variables in which MPI launchers pass rank and size: Open MPI,
/// then MPICH and its relatives.
const LAUNCHERS: [(&str, &str); 2] =
    [("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")];

/// The MPI job that this process was launched in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MpiJob {
    /// The rank of this process.
    pub rank: usize,
    /// The number of processes.
    pub size: usize,
}

impl MpiJob {
    /// Reads the environment variables of MPI launchers.
    pub fn detect() -> Option<Self> {
        let number = |name: &str| std::env::var(name).ok()?.parse().ok();
        LAUNCHERS.iter().find_map(|(rank, size)| Some(Self { rank: number(rank)?, size: number(size)? }))
    }
}

/// How ranks are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launch {
    /// As threads of this process.
    Threads {
        /// The number of ranks.
        ranks: usize,
    },
    /// This process is one rank of an MPI job.
    #[cfg(feature = "mpi")]
    Mpi,
}

/// Why ranks cannot be launched, or failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum LaunchError {
    #[error("cannot join an MPI job of {size} as rank {rank}: weightloom was built without MPI")]
    BuiltWithoutMpi { rank: usize, size: usize },
    #[error("`{command}` runs in one process, but this is an MPI job of {size}")]
    OneProcess { command: String, size: usize },
    #[error("cannot run on {requested} ranks: the MPI job has {size}")]
    OtherSize { requested: usize, size: usize },
    #[error("cannot run on 0 ranks")]
    NoRanks,
    #[error(transparent)]
    Threads(#[from] threads::RunError),
    #[cfg(feature = "mpi")]
    #[error(transparent)]
    Mpi(#[from] weightloom_gang_mpi::MpiError),
    #[error(transparent)]
    Gang(#[from] GangError),
}

impl Hint for LaunchError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::BuiltWithoutMpi { .. } => {
                Some("build with `cargo build --release --features mpi`, or run without mpirun".to_owned())
            }
            Self::OneProcess { .. } => Some("run it without mpirun".to_owned()),
            Self::OtherSize { size, .. } => Some(format!("remove `--ranks`, or set it to {size}")),
            Self::NoRanks => Some("remove `--ranks` for the default".to_owned()),
            Self::Threads(threads::RunError::Panics { .. }) => {
                Some("this is a bug in weightloom; please report it".to_owned())
            }
            Self::Threads(error) => error.hint(),
            #[cfg(feature = "mpi")]
            Self::Mpi(error) => error.hint(),
            Self::Gang(error) => error.hint(),
        }
    }
}

impl Launch {
    /// Detects an MPI job. Outside of one, ranks are threads: `requested` or
    /// else `default` of them.
    pub fn detect(requested: Option<usize>, default: usize) -> Result<Self, LaunchError> {
        if requested == Some(0) {
            return Err(LaunchError::NoRanks);
        }
        match MpiJob::detect() {
            None => Ok(Self::Threads { ranks: requested.unwrap_or(default) }),
            Some(job) => Self::in_mpi_job(requested, job),
        }
    }

    #[cfg(feature = "mpi")]
    fn in_mpi_job(requested: Option<usize>, MpiJob { size, .. }: MpiJob) -> Result<Self, LaunchError> {
        match requested {
            Some(requested) if requested != size => Err(LaunchError::OtherSize { requested, size }),
            _ => Ok(Self::Mpi),
        }
    }

    #[cfg(not(feature = "mpi"))]
    fn in_mpi_job(requested: Option<usize>, job: MpiJob) -> Result<Self, LaunchError> {
        match job {
            // A job of one process is as good as none.
            MpiJob { size: 1, .. } => Ok(Self::Threads { ranks: requested.unwrap_or(1) }),
            MpiJob { rank, size } => Err(LaunchError::BuiltWithoutMpi { rank, size }),
        }
    }

    /// Runs `work` on every rank and returns the result of rank 0 on its process.
    ///
    /// If a rank fails, so does the run: with threads, this returns the error of
    /// the first failing rank; in an MPI job, every failing rank calls `report`
    /// and the job exits with the error's code.
    pub fn run<T, E, W>(self, options: GangOptions, work: W, report: impl Fn(&E)) -> Result<Option<T>, E>
    where
        T: Send,
        E: From<LaunchError> + ExitStatus + Send,
        W: Fn(Arc<dyn Gang>) -> Result<T, E> + Sync,
    {
        match self {
            Self::Threads { ranks } => {
                let _ = &report;
                let results = threads::run(ranks, options, work).map_err(LaunchError::from)?;
                let (mut first, mut failure): (Option<T>, Option<E>) = (None, None);
                for result in results {
                    match result {
                        Ok(result) => first = first.or(Some(result)),
                        // A root cause takes precedence over its consequences.
                        Err(error) if failure.as_ref().is_none_or(E::is_consequence) => {
                            let better = failure.is_none() || !error.is_consequence();
                            failure = if better { Some(error) } else { failure };
                        }
                        Err(_) => {}
                    }
                }
                failure.map_or(Ok(first), Err)
            }
            #[cfg(feature = "mpi")]
            Self::Mpi => run_mpi(options, work, report),
        }
    }
}

/// An error with an exit code.
pub trait ExitStatus {
    /// The exit code.
    fn code(&self) -> u8;

    /// Whether another rank failed first.
    fn is_consequence(&self) -> bool {
        false
    }
}

#[cfg(feature = "mpi")]
fn run_mpi<T, E, W>(options: GangOptions, work: W, report: impl Fn(&E)) -> Result<Option<T>, E>
where
    E: From<LaunchError> + ExitStatus,
    W: Fn(Arc<dyn Gang>) -> Result<T, E>,
{
    use weightloom_gang_mpi::{MpiOptions, MpiWorld};

    /// Time for the other ranks to report their errors before the job is aborted.
    const REPORT_TIME: std::time::Duration = std::time::Duration::from_millis(300);

    let world =
        MpiWorld::join(MpiOptions { gang: options, ..MpiOptions::default() }).map_err(LaunchError::from)?;
    let root = world.root();
    let rank = root.rank();
    let result = work(root).and_then(|result| {
        world.leave().map_err(LaunchError::from)?;
        Ok(result)
    });
    match result {
        Ok(result) => Ok((rank == 0).then_some(result)),
        Err(error) => {
            report(&error);
            std::thread::sleep(REPORT_TIME);
            world.abort(error.code().into())
        }
    }
}
