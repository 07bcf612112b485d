//! Integration tests of local tensors.
//!
//! - `devices`: every operation on a GPU against the CPU, and rows against batches
//! - `functions`: users' functions, second passes, gradients of gradients
//! - `gradients`: every backward rule against finite differences
//! - `in_place`: memory from elsewhere, and writing in place
//! - `odd_shapes`: no shape or dtype makes an operation panic
//! - `tape`: the tape, its hooks and its errors
//! - `torch_values`: values and gradients recorded from PyTorch
//!
//! With `WEIGHTLOOM_TEST_DEVICE=cuda:0`, values, gradients and `devices` run on that
//! GPU; without it, `devices` checks launches on a fake driver.
//!
//! Tests of process-wide state are in `serial`.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

#[allow(dead_code, reason = "shared with other crates' tests")]
mod device;
mod devices;
mod functions;
mod gradients;
mod in_place;
mod odd_shapes;
mod tape;
mod torch_values;
