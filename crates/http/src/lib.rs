//! HTTP policy shared by downloads, the API backend and object storage.
//!
//! * [`RetryPolicy`] decides whether a failed request is sent again, and when.
//! * [`MinSpeed`] ends a response that trickles in.
//! * [`retry_after`] reads the delay that a server asks for.
//! * [`Secret`] holds a token or key that never appears in output.
//! * [`build_client`] builds the client that all requests go through.
//!
//! A request that fails twice and then succeeds:
//!
//! ```
//! use std::time::Duration;
//! use weightloom_http::{IoRuntime, RequestError, RetryPolicy};
//!
//! # fn main() -> std::io::Result<()> {
//! let policy = RetryPolicy { initial_backoff: Duration::from_millis(1), ..RetryPolicy::default() };
//! let mut attempts = 0;
//! let result = IoRuntime::start("example", 1)?.block_on(policy.run(|| {
//!     attempts += 1;
//!     let busy = attempts < 3;
//!     async move { if busy { Err(RequestError::<_>::transient("503")) } else { Ok("body") } }
//! }));
//! assert_eq!(result, Ok("body"));
//! assert_eq!(attempts, 3);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod client;
mod retry;
mod retry_after;
mod runtime;
mod secret;
mod speed;
mod url;

pub use client::{ClientError, Proxies, build_client, install_crypto_provider, root_cause};
pub use retry::{GaveUp, RequestError, Retries, RetryPolicy, Retryable};
pub use retry_after::retry_after;
pub use runtime::IoRuntime;
pub use secret::{InvalidSecret, Secret};
pub use speed::{MinSpeed, SpeedWatch, TooSlow};
pub use url::{redact_url, redact_url_text};
