//! Integration tests of documents.
//!
//! - `coercion`: strict and lenient validation of types.
//! - `files`: reading from disk, syntax errors, limits.
//! - `overrides`: overrides from the command line.
//! - `validation`: errors with positions and suggestions, all at once.
//! - `variables`: substitution of environment variables.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod coercion;
mod files;
mod overrides;
mod recipe;
mod validation;
mod variables;
