//! Models by name: cards and the stores they come from, downloads, families
//! and archs, tokenizers, and the way from a card to a model that is sharded
//! as the machines need it.
//!
//! This crate reads no environment: whoever starts it says what is where.

pub mod cards;
pub mod fetch;
pub mod text;
