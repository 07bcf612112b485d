//! Integration tests of the training crate.
//!
//! - `config`, `config_properties`, `examples`, `reference`: reading configs, and
//!   the generated reference page.
//! - `specs`, `parallel_dims`: model specs, and which parallel sizes fit a model.
//! - `optimizers`, `optimizer_packages`, `schedules`, `events`: compared with PyTorch,
//!   transformers, other packages and TensorBoard.
//! - `averages`: weights that are evaluated in place of the trained ones, and runs with
//!   each optimizer.
//! - `pipeline`, `pipeline_errors`, `pipeline_timeline`: pipeline schedules.
//! - `engine`, `packing`, `parallelism`, `resume`, `torch_run`: training small models.
//! - `published`: names and shapes in checkpoints of every family.
//! - `devices`, `device_faults`: training on GPUs, and what happens when one fails.
//! - `preferences`: losses of preferences and distillation.
//! - `dry_run`: dry runs of large models.
//! - `bad_steps`, `supervision`: what a run does about NaN, spikes and losses that do
//!   not improve; what it saves and records.
//! - `refusals`: configs that runs and dry runs refuse.
//! - `dry_run`: dry runs of large models. `whole_runs`: runs with each optimizer.
//! - `own_extensions`: optimizers, schedules, sinks and formats of a user.
//!
//! Support: `setup` trains small models on thread ranks, `interpreter` executes
//! pipeline schedules. `tests/memory.rs` is a binary by itself because it
//! measures the allocator of the whole process.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]
#![allow(clippy::print_stdout, reason = "how close runs are is worth knowing")]

mod averages;
mod bad_steps;
mod config;
mod config_properties;
#[allow(dead_code, reason = "shared with the tests of `tensor`")]
#[path = "../../../tensor/tests/it/device.rs"]
mod device;
mod device_faults;
mod devices;
mod dry_run;
mod engine;
mod events;
mod examples;
mod interpreter;
mod optimizer_packages;
mod optimizers;
mod own_extensions;
mod packing;
mod parallel_dims;
mod parallelism;
mod pipeline;
mod pipeline_errors;
mod pipeline_timeline;
mod place;
mod preferences;
mod published;
mod reference;
mod refusals;
mod resume;
mod schedules;
mod setup;
mod specs;
mod supervision;
mod torch_run;
mod whole_runs;
