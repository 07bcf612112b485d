//! Integration tests of the model families.
//!
//! - `adapters`: adapters against PEFT.
//! - `archs`: the presets and cards of published models.
//! - `described`: models described in files.
//! - `families`: every family against transformers, on one rank and sharded.
//! - `folders`: the families are the folders of `src`.
//! - `hostile_configs`: numbers that no machine could hold.
//! - `loading`: what loading reads, allocates and refuses.
//! - `prefix_tree`: batched sequences have the same bits as alone.
//! - `strictness`: checkpoints that do not match their model.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod adapters;
mod archs;
mod described;
#[allow(dead_code, reason = "shared with the tests of `tensor`")]
#[path = "../../../tensor/tests/it/device.rs"]
mod device;
mod families;
mod fixture;
mod folders;
mod hostile_configs;
mod loading;
mod prefix_tree;
mod probe;
mod strictness;
