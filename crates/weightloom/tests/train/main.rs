//! `weightloom train`, as a user sees it: runs that end, runs that are ended,
//! and runs that never begin.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod files;
#[cfg(unix)]
mod interruptions;
mod kinds;
mod lives;
mod meshes;
mod mistakes;
mod place;
