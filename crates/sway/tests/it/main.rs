//! Integration tests of sway.
//!
//! - Agreement with dlm-sway: [`dlm_sway_numbers`] (statistics),
//!   [`dlm_sway_report`] (a whole report), [`local_backend`] (log-probabilities).
//! - Chats: [`chats`] renders prompts with the template of a model.
//! - Tools: [`tool_calls`] of a model that makes some.
//! - Generation: [`sampling`].
//! - Backends: [`backends`] builds each kind that a suite can name; [`live_backend`] asks a
//!   model in memory.
//! - Users' code: [`own_probes`] and [`own_backends`] are what a user writes to add
//!   a probe or a backend.
//!
//! Support: [`tiny_model`] opens the model of the fixtures and asks backends;
//! [`bigram_model`] writes one whose answers are known.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod backends;
mod bigram_model;
mod chats;
#[allow(dead_code, reason = "shared with the tests of `tensor`")]
#[path = "../../../tensor/tests/it/device.rs"]
mod device;
mod dlm_sway_numbers;
mod dlm_sway_report;
mod hostile_files;
mod live_backend;
mod local_backend;
mod own_backends;
mod own_probes;
mod sampling;
mod tiny_model;
mod tool_calls;
