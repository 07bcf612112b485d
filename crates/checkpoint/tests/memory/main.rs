//! Memory that reading takes, counted by a global allocator.
//!
//! A separate binary: the allocator counts all threads, so other tests must not
//! run at the same time. The tests here take turns.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod allocation;
mod bounded;
mod hostile;
#[allow(dead_code, reason = "shared with the other test binary")]
#[path = "../it/model.rs"]
mod model;
mod probe;

use allocation::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;
