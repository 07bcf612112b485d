//! Integration tests of gangs.
//!
//! - `redistribution`: redistribution plans on thread ranks.
//! - `transport`: the engine of messages.
//! - `threads`: the thread and solo engines: conformance and failing ranks.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod redistribution;
mod threads;
mod transport;
