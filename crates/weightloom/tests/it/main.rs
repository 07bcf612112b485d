//! Integration tests of the binary and the facade, and rules of the workspace.
//!
//! - `checkpoints`, `models`, `train`, `sway`, `quickstart`: the other commands.
//! - `registry`: a program of one's own.
//! - `sway_tools`: `watch`, `pack`, `unpack` and `mine`.
//! - `docs`, `examples`: every command and config that users are shown.
//! - `environments`, `strictness`, `dataset_cards`: cards of environments and
//!   datasets, and checkpoints that do not match.
//! - `located`: run folders, adapters and `org/name` in place of models.
//! - `hostile_files`: files without an end, and files that make a parser panic.
//! - `hostile_names`: names with control characters.
//! - `signatures`: signed checkpoints.
//! - `two_writers`: two processes that write the same target.
//! - `soak`: random kills, full disks, damage and limits, for as long as you like.
//! - `mpirun`, `mpirun_hangs`: commands as ranks of an MPI job.
//! - `verdicts`: sway on adapters with known effects.
//! - `architecture`, `tidy`, `vocabulary`: rules of the workspace.
//!
//! Whole outputs are snapshots; after an intended change, run
//! `INSTA_UPDATE=always cargo test -p weightloom` and read the difference.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod architecture;
mod checkpoints;
mod dataset_cards;
#[cfg(unix)]
mod docs;
mod environments;
mod examples;
#[cfg(unix)]
mod gguf_file;
mod hostile_files;
mod hostile_names;
mod located;
mod models;
#[cfg(feature = "mpi")]
mod mpirun;
#[cfg(all(feature = "mpi", unix))]
mod mpirun_hangs;
mod quickstart;
mod registry;
mod signatures;
#[cfg(unix)]
mod soak;
mod strictness;
mod sway;
mod sway_tools;
mod tidy;
mod train;
mod two_writers;
mod verdicts;
mod vocabulary;
