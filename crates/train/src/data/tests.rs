//! Data from files to rows, as a trainer sees them.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod accounts;
mod chats;
mod failures;
mod file_types;
mod files;
mod formats;
mod formatting;
mod hf_datasets;
mod layouts;
mod loaders;
mod masks;
mod preferences;
mod stage;
mod streams;
