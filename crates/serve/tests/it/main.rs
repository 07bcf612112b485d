//! The server as its clients see it.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod chat;
mod client;
mod completions;
mod errors;
mod fixture;
mod hostile;
mod limits;
mod load;
mod request_log;
mod shutdown;
