//! Tests in a binary apart because other tests would disturb them: they compare
//! the memory of the whole process, or measure time. They run one after another.
//!
//! - `memory`: what a redistribution keeps alive
//! - `overlap`: communication in the background
//! - `release`: gathered parameters that the tape does not keep

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod memory;
mod overlap;
mod release;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Keeps other tests from running.
pub fn serial() -> MutexGuard<'static, ()> {
    static SERIAL: Mutex<()> = Mutex::new(());
    SERIAL.lock().unwrap_or_else(PoisonError::into_inner)
}
