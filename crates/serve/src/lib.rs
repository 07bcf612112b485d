//! An OpenAI-compatible server over a loaded model.
//!
//! [`serve`] answers on a listener until it is told to stop; [`run`] does so
//! with a runtime of its own. Requests are read and checked side by side; the
//! model works on one thread, on one request after the other.
//!
//! - `GET /v1/models`, `GET /v1/models/{id}`, `GET /health`
//! - `POST /v1/completions`, in the legacy form, with `echo` and `logprobs`
//! - `POST /v1/chat/completions`
//!
//! Fields that would change the result and are not understood are refused;
//! others are passed over. This crate neither prints nor reads the environment.

mod answer;
mod ask;
mod body;
mod chat;
mod choice;
mod completion;
mod connection;
mod error;
mod events;
mod fields;
mod manner;
mod message;
mod options;
mod refusal;
mod reply;
mod routes;
mod server;
mod spelling;
mod stop;
mod stream;
mod worker;

pub use error::ServeError;
pub use options::ServeOptions;
pub use server::{run, serve};
pub use stop::interrupted;
pub use weightloom_http::Secret;
