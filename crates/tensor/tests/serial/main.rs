//! Tests of process-wide state, in a binary apart because other tests would
//! change it: the thread pool, whose size is set once, and the allocator's
//! figures. They run one after another.
//!
//! - `gpu`: memory of a GPU is returned (with `WEIGHTLOOM_TEST_DEVICE=cuda:0`, of a real one)
//! - `memory`: what a tape keeps
//! - `pool`: the size of the thread pool
//! - `threads`: results do not depend on the number of threads
//! - `training`: a small transformer learns the same every time

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod gpu;
mod memory;
mod pool;
mod threads;
mod training;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Threads of the pool.
pub const THREADS: usize = 5;

/// Sets up the pool, and keeps other tests from running.
pub fn serial() -> MutexGuard<'static, ()> {
    static SERIAL: Mutex<()> = Mutex::new(());
    let guard = SERIAL.lock().unwrap_or_else(PoisonError::into_inner);
    weightloom_tensor::threads::set_count(THREADS).unwrap();
    guard
}
