//! Starting ranks: as threads, or as processes of an MPI job.

use std::sync::Arc;

use weightloom_errors::Hint;
use weightloom_gang::{Gang, GangError, GangOptions, threads};

/// Environment variables by which MPI launchers tell processes their number
/// and count: Open MPI, then MPICH and its relatives.
const LAUNCHERS: [(&str, &str); 2] =
    [("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")];

/// The rank that an MPI launcher gave this process, and the size of its job.
pub fn mpi_job() -> Option<(String, String)> {
    LAUNCHERS.iter().find_map(|(rank, size)| Some((std::env::var(rank).ok()?, std::env::var(size).ok()?)))
}

/// How ranks come into being.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launch {
    /// So many threads of this process.
    Threads {
        /// How many.
        ranks: usize,
    },
    /// This process is one rank of an MPI job.
    #[cfg(feature = "mpi")]
    Mpi,
}

/// Why ranks could not be started, or what became of them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum LaunchError {
    /// Started by an MPI launcher, but built without MPI. Going on would run
    /// the whole program once per process.
    #[error("this process is rank {rank} of an MPI job of {size}, but weightloom was built without MPI")]
    BuiltWithoutMpi { rank: String, size: String },
    /// A number of ranks that contradicts the MPI job.
    #[error("{asked} ranks were asked for, but the MPI job has {size}")]
    OtherSize { asked: usize, size: usize },
    /// No ranks at all.
    #[error("a run needs at least 1 rank")]
    NoRanks,
    /// Thread ranks panicked, or could not be started.
    #[error(transparent)]
    Threads(#[from] threads::RunError),
    /// MPI could not be started.
    #[cfg(feature = "mpi")]
    #[error(transparent)]
    Mpi(#[from] weightloom_gang_mpi::MpiError),
    /// The ranks did not come to an end together.
    #[error(transparent)]
    Gang(#[from] GangError),
}

impl Hint for LaunchError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::BuiltWithoutMpi { .. } => {
                Some("build with `cargo build --release --features mpi`, or start without mpirun".to_owned())
            }
            Self::OtherSize { size, .. } => {
                Some(format!("leave the number out, or start mpirun with it instead of {size}"))
            }
            Self::NoRanks => Some("leave the number out for the default".to_owned()),
            Self::Threads(threads::RunError::Panics { .. }) => {
                Some("this is a fault in weightloom; please report it".to_owned())
            }
            Self::Threads(error) => error.hint(),
            #[cfg(feature = "mpi")]
            Self::Mpi(error) => error.hint(),
            Self::Gang(error) => error.hint(),
        }
    }
}

impl Launch {
    /// Finds out how this process was started. Outside an MPI job, ranks are
    /// threads: as many as asked for, or else `default`.
    pub fn detect(asked: Option<usize>, default: usize) -> Result<Self, LaunchError> {
        if asked == Some(0) {
            return Err(LaunchError::NoRanks);
        }
        match mpi_job() {
            None => Ok(Self::Threads { ranks: asked.unwrap_or(default) }),
            Some((rank, size)) => Self::in_mpi_job(asked, rank, size),
        }
    }

    #[cfg(feature = "mpi")]
    fn in_mpi_job(asked: Option<usize>, _rank: String, size: String) -> Result<Self, LaunchError> {
        match (asked, size.parse()) {
            (Some(asked), Ok(size)) if asked != size => Err(LaunchError::OtherSize { asked, size }),
            _ => Ok(Self::Mpi),
        }
    }

    #[cfg(not(feature = "mpi"))]
    fn in_mpi_job(_asked: Option<usize>, rank: String, size: String) -> Result<Self, LaunchError> {
        Err(LaunchError::BuiltWithoutMpi { rank, size })
    }

    /// Runs `work` on every rank and returns rank 0's result, on the process
    /// that holds rank 0.
    ///
    /// If the work of a rank fails, so does the run: with thread ranks this
    /// returns the error of the first rank that has one; in an MPI job every
    /// failing rank calls `report`, and the job is ended with `E`'s code.
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
                        // What failed first makes others fail, who know less.
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

/// An error that knows with which code the process ends.
pub trait ExitStatus {
    /// The exit code.
    fn code(&self) -> u8;

    /// Whether it only tells that other ranks failed.
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

    /// Time for the other ranks to say what they saw before the job ends.
    const LAST_WORDS: std::time::Duration = std::time::Duration::from_millis(300);

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
            std::thread::sleep(LAST_WORDS);
            world.abort(error.code().into())
        }
    }
}
