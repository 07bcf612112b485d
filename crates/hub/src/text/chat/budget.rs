//! Work limit of templates.
//!
//! Each entry into a loop body or macro costs the length of its source, and each
//! byte of output costs one unit. So both time and text are limited.

use minijinja::{Error, ErrorKind, State, Value};

/// Enough for thousands of messages; takes a second or two.
const WORK_LIMIT: u64 = 1 << 26;

/// Minimum cost: empty bodies take time too.
const MIN_COST: u64 = 256;

/// Work left in a run of a template.
struct Budget(u64);

/// Why a template was stopped.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stop {
    #[error("{0}")]
    Raised(String),
    #[error("the limit of {limit} units of work is reached")]
    Work { limit: u64 },
}

/// Spends work.
pub(super) fn spend(state: &mut State<'_, '_>, work: u64) -> Result<Value, Error> {
    let budget = state.get_or_insert_extension_with(|| Budget(WORK_LIMIT));
    match budget.0.checked_sub(work.max(MIN_COST)) {
        Some(left) => {
            budget.0 = left;
            Ok(Value::from(()))
        }
        None => {
            let stop = Stop::Work { limit: WORK_LIMIT };
            Err(Error::new(ErrorKind::InvalidOperation, stop.to_string()).with_source(stop))
        }
    }
}
