//! How much a template may do.
//!
//! Each time that a loop's body or a macro is entered, the length of its source
//! is paid, and what is written is paid by the byte. So both time and text are
//! limited.

use minijinja::{Error, ErrorKind, State, Value};

/// Enough for thousands of messages, and spent within a second or two.
const WORK: u64 = 1 << 26;

/// Even empty bodies take some time.
const LEAST: u64 = 256;

/// What is left, kept for as long as a template runs.
struct Budget(u64);

/// Why a template was stopped, rather than failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Stop {
    #[error("{0}")]
    Raised(String),
    #[error("the work of {limit} units is done")]
    Work { limit: u64 },
}

/// Pays for work.
pub(super) fn spend(state: &mut State<'_, '_>, work: u64) -> Result<Value, Error> {
    let budget = state.get_or_insert_extension_with(|| Budget(WORK));
    match budget.0.checked_sub(work.max(LEAST)) {
        Some(left) => {
            budget.0 = left;
            Ok(Value::from(()))
        }
        None => {
            let stop = Stop::Work { limit: WORK };
            Err(Error::new(ErrorKind::InvalidOperation, stop.to_string()).with_source(stop))
        }
    }
}
