//! Integration tests of the decoder, on a tiny model with random weights.
//!
//! - `adapters`: LoRA on and off, per row, and merged.
//! - `errors`: messages and hints.
//! - `forward`: the forward pass with and without a cache.
//! - `generation`: greedy and sampled generation.
//! - `own_model`: what follows from the methods that a model must have.
//! - `loss`: the loss and its gradients against finite differences.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod adapters;
#[allow(dead_code, reason = "shared with the tests of `tensor`")]
#[path = "../../../tensor/tests/it/device.rs"]
mod device;
mod errors;
mod forward;
mod generation;
mod loss;
mod own_model;
mod tiny;
