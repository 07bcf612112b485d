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
///
/// Callers do not use what the code may have left half changed.
///
/// ```
/// use weightloom_errors::caught;
///
/// assert_eq!(caught(|| 3), Ok(3));
/// let panicked = caught(|| panic!("no data")).unwrap_err();
/// assert_eq!(panicked.to_string(), "it panicked: no data");
/// ```
pub fn caught<T>(call: impl FnOnce() -> T) -> Result<T, Panicked> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| Panicked { message: panic_message(&*panic) })
}

/// The message of a panic.
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}
