//! `weightloom train`, as a user sees it: runs that end, runs that are ended,
//! and runs that never begin.

mod accounts;
#[cfg(unix)]
mod bad_days;
mod changes;
mod chats;
mod files;
mod guards;
#[cfg(unix)]
pub mod interruptions;
mod kinds;
mod lives;
mod meshes;
mod mistakes;
pub mod place;
