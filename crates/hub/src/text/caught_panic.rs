//! Panics of other people's parsers, which become errors.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread becomes an error.
///
/// A panic hook need not report such a panic: the error does. The tokenizer
/// library and the template engine panic on some hostile files.
pub fn panics_are_caught() -> bool {
    CAUGHT.get()
}

/// Runs a function; `None` if it panics.
pub(super) fn catch<T>(run: impl FnOnce() -> T) -> Option<T> {
    let before = CAUGHT.replace(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    CAUGHT.set(before);
    result.ok()
}
