//! OpenAI-compatible HTTP server for a loaded model.
//!
//! [`serve`] answers requests on a listener until a shutdown future completes;
//! [`run`] also creates the listener and the runtime. Requests are parsed and
//! validated concurrently; the model runs on one thread, one request at a time.
//!
//! - `GET /v1/models`, `GET /v1/models/{id}`
//! - `GET /health`: the process answers; `GET /ready`: a request would be accepted
//! - `POST /v1/completions`, with `echo` and `logprobs`
//! - `POST /v1/chat/completions`
//!
//! Unknown fields, and unsupported ones that would change the result, are
//! rejected. A [`RequestObserver`] in the options receives a record of each
//! request: this crate neither prints nor reads the environment.
//!
//! ```
//! use std::time::Duration;
//!
//! use weightloom_serve::{Secret, ServeOptions};
//!
//! let mut options = ServeOptions::new("my-model");
//! options.api_key = Some(Secret::new("secret"));
//! options.request_timeout = Duration::from_secs(60);
//! assert!(!format!("{options:?}").contains("secret"));
//! // With a `weightloom_hub::TextGenerator`:
//! // weightloom_serve::run("127.0.0.1:8000", generator, options, shutdown_signal(), |address| …)
//! ```

#![forbid(unsafe_code)]

mod access;
mod activity;
mod admission;
mod api_error;
mod body;
mod chat;
mod choice;
mod completion;
mod connection;
mod connection_table;
mod error;
mod events;
mod generation_params;
mod json_object;
mod memory;
mod message;
mod options;
mod readiness;
mod request;
mod request_keys;
mod request_log;
mod response;
mod response_state;
mod routes;
mod server;
mod shutdown;
mod stream;
mod token_text;
mod validate;
mod worker;

pub use error::ServeError;
pub use options::ServeOptions;
pub use request_log::{RequestObserver, RequestRecord};
pub use server::{run, serve};
pub use shutdown::shutdown_signal;
pub use validate::validate_request;
pub use weightloom_http::Secret;
