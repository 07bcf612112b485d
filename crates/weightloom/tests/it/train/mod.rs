//! `weightloom train`, as a user sees it: runs that end, runs that are ended,
//! and runs that never begin.

mod accounts;
mod changes;
mod chats;
mod files;
#[cfg(unix)]
mod interruptions;
mod kinds;
mod lives;
mod meshes;
mod mistakes;
pub mod place;
