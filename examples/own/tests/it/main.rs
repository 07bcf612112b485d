//! The example crate: its parts alone, its training on several meshes, its command
//! line, and what happens if an extension is wrong.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod bad_extensions;
mod command_line;
mod hub;
mod resume;
mod runs;
mod scan;
mod training;
