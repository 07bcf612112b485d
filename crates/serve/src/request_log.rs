//! Records of answered requests, for a log.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::response_state::Usage;

/// A request whose response has been sent, or whose client has gone away.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RequestRecord {
    /// The HTTP method.
    pub method: String,
    /// The path, without the query, which may hold secrets.
    pub path: String,
    /// The HTTP status; `None` if the client went away before there was one.
    pub status: Option<u16>,
    /// Tokens of the prompts, for completions.
    pub prompt_tokens: Option<usize>,
    /// Tokens that were generated, for completions.
    pub completion_tokens: Option<usize>,
    /// From the request to the end of the response.
    pub duration: Duration,
}

/// Receives a record of each request. The server prints nothing itself.
#[derive(Clone)]
pub struct RequestObserver(Arc<dyn Fn(&RequestRecord) + Send + Sync>);

impl RequestObserver {
    /// Calls a function with each record, on the thread of the request.
    pub fn new(observe: impl Fn(&RequestRecord) + Send + Sync + 'static) -> Self {
        Self(Arc::new(observe))
    }
}

impl fmt::Debug for RequestObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestObserver")
    }
}

/// A request in progress. The last holder to drop it reports the record, so that a
/// streamed response is reported at its end.
#[derive(Clone)]
pub(crate) struct RequestLog(Arc<Entry>);

struct Entry {
    observer: RequestObserver,
    method: String,
    path: String,
    arrived: Instant,
    outcome: Mutex<Outcome>,
}

#[derive(Clone, Copy, Default)]
struct Outcome {
    status: Option<u16>,
    usage: Option<Usage>,
}

impl RequestLog {
    pub(crate) fn new(observer: RequestObserver, method: &str, path: &str) -> Self {
        let outcome = Mutex::default();
        let (method, path) = (method.to_owned(), path.chars().take(200).collect());
        Self(Arc::new(Entry { observer, method, path, arrived: Instant::now(), outcome }))
    }

    pub(crate) fn set_status(&self, status: u16) {
        self.0.outcome.lock().unwrap_or_else(PoisonError::into_inner).status = Some(status);
    }

    pub(crate) fn set_usage(&self, usage: Usage) {
        self.0.outcome.lock().unwrap_or_else(PoisonError::into_inner).usage = Some(usage);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let Outcome { status, usage } = *self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        let record = RequestRecord {
            method: std::mem::take(&mut self.method),
            path: std::mem::take(&mut self.path),
            status,
            prompt_tokens: usage.map(|usage| usage.prompt),
            completion_tokens: usage.map(|usage| usage.completion),
            duration: self.arrived.elapsed(),
        };
        (self.observer.0)(&record);
    }
}
