//! Panics of code that is not ours, as errors.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A panic, with its message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it panicked: {message}")]
#[allow(missing_docs)]
pub struct Panicked {
    pub message: String,
}

/// Calls code of an extension. Its panic becomes an error that can name it.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Result<T, Panicked> {
    // What the code has changed is not used after an error.
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| Panicked { message: message(&*panic) })
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}
