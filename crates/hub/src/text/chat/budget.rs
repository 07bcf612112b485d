//! Limits of one run of a template: work, memory and time.
//!
//! Everything that a template does is charged before it is done: entering a
//! loop body or macro, operators, filters, tests, methods, functions and output.

use std::time::{Duration, Instant};

use minijinja::{Error, ErrorKind, State};

/// Units of work; a unit is some nanoseconds. Enough for thousands of messages.
const WORK_LIMIT: u64 = 1 << 26;

/// Bytes that a template may create in total.
const MEMORY_LIMIT: u64 = 1 << 26;

/// The limit of work is reached within a second or two; this limit is for what
/// it does not foresee.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Minimum cost of a step: empty bodies take time too.
const MIN_COST: u64 = 256;

/// Deepest nesting of values.
pub(super) const MAX_DEPTH: usize = 128;

/// What is left in a run.
struct Budget {
    work: u64,
    memory: u64,
    start: Instant,
}

/// Why a template was stopped.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stop {
    #[error("{0}")]
    Raised(String),
    #[error("the limit of {limit} units of work is reached")]
    Work { limit: u64 },
    #[error("the limit of {limit} bytes is reached")]
    Memory { limit: u64 },
    #[error("the limit of {seconds} seconds is reached")]
    Time { seconds: u64 },
    #[error("values are nested deeper than {limit}")]
    Nested { limit: usize },
}

impl From<Stop> for Error {
    fn from(stop: Stop) -> Self {
        Error::new(ErrorKind::InvalidOperation, stop.to_string()).with_source(stop)
    }
}

/// Spends work.
pub(super) fn spend(state: &mut State<'_, '_>, work: u64) -> Result<(), Error> {
    let budget = budget(state);
    if budget.start.elapsed() > TIME_LIMIT {
        return Err(Stop::Time { seconds: TIME_LIMIT.as_secs() }.into());
    }
    budget.work = budget.work.checked_sub(work.max(MIN_COST)).ok_or(Stop::Work { limit: WORK_LIMIT })?;
    Ok(())
}

/// Spends memory.
pub(super) fn allocate(state: &mut State<'_, '_>, bytes: u64) -> Result<(), Error> {
    require(state, bytes)?;
    budget(state).memory -= bytes;
    Ok(())
}

/// Makes sure that so much memory is left.
pub(super) fn require(state: &mut State<'_, '_>, bytes: u64) -> Result<(), Error> {
    if bytes > budget(state).memory {
        return Err(Stop::Memory { limit: MEMORY_LIMIT }.into());
    }
    Ok(())
}

/// Work that is left.
pub(super) fn work_left(state: &mut State<'_, '_>) -> u64 {
    budget(state).work
}

pub(super) fn out_of_work() -> Error {
    Stop::Work { limit: WORK_LIMIT }.into()
}

fn budget<'a>(state: &'a mut State<'_, '_>) -> &'a mut Budget {
    state.get_or_insert_extension_with(|| Budget {
        work: WORK_LIMIT,
        memory: MEMORY_LIMIT,
        start: Instant::now(),
    })
}
