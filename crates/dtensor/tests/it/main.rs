//! Integration tests of distributed tensors.
//!
//! - `behaviour`: implicit redistribution, comm log, randomness, user operations, errors
//! - `parameters`: accumulated gradients of trained parameters
//! - `sharding_rules`: every operation in every layout, against whole tensors
//! - `training`: a transformer trained in every arrangement
//!
//! Tests of process-wide memory and of time are in `serial`.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod behaviour;
mod parameters;
mod sharding_rules;
mod training;
