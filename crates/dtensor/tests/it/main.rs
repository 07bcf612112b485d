//! Integration tests of distributed tensors.
//!
//! - `bad_functions`: users' functions that do something wrong
//! - `behaviour`: implicit redistribution, comm log, randomness, user operations, errors
//! - `functions`: users' functions, arguments, meta tensors, second passes
//! - `meshes`: redistribution to another mesh
//! - `parameters`: accumulated gradients of trained parameters
//! - `sharding_rules`: every operation in every layout, against whole tensors
//! - `training`: a transformer trained in every arrangement
//!
//! Tests of process-wide memory and of time are in `serial`.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod bad_functions;
mod behaviour;
#[allow(dead_code, reason = "shared with the tests of `tensor`")]
#[path = "../../../tensor/tests/it/device.rs"]
mod device;
mod functions;
mod meshes;
mod parameters;
mod sharding_rules;
mod training;
