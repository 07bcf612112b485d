//! Server options.

use std::time::Duration;

use weightloom_http::Secret;

use crate::error::ServeError;
use crate::request_log::RequestObserver;

/// Name, key and limits of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServeOptions {
    /// The name of the model in requests.
    pub name: String,
    /// A key that requests must present.
    pub api_key: Option<Secret>,
    /// Maximum size of a request in bytes.
    pub max_request_bytes: usize,
    /// Maximum length of a prompt; by default that of the model.
    pub max_prompt_tokens: Option<usize>,
    /// Maximum number of new tokens per completion; by default limited by the
    /// model only.
    pub max_new_tokens: Option<usize>,
    /// Maximum number of completions per request: prompts times `n`.
    pub max_batch: usize,
    /// Maximum number of waiting requests.
    pub max_waiting: usize,
    /// Maximum number of prompt tokens in all requests that run or wait.
    pub max_queued_tokens: usize,
    /// Maximum bytes of keys, values and results of a request.
    pub max_cache_bytes: u64,
    /// Maximum bytes of request bodies in memory; at least `max_request_bytes`.
    pub max_body_bytes: usize,
    /// Maximum number of open connections. A new one replaces one that has no
    /// request. If all have one, it is only for health checks.
    pub max_connections: usize,
    /// Connections for health checks beyond `max_connections`.
    pub reserved_connections: usize,
    /// Host names that requests may be for, besides the address that the server
    /// listens on; `*` is any. A server that listens on a loopback address accepts
    /// only loopback names by default, and others accept any.
    pub allowed_hosts: Vec<String>,
    /// Origins whose pages may send requests, such as `https://app.example`; `*` is
    /// any. By default only the server's own, and local ones for a local server.
    pub allowed_origins: Vec<String>,
    /// Time limit of a request, waiting included.
    pub request_timeout: Duration,
    /// Time limit for a client to send the headers of a request, to send its
    /// body, and to accept data.
    pub client_timeout: Duration,
    /// How long a shutdown waits for running requests.
    pub grace: Duration,
    /// Receives a record of each request.
    pub observer: Option<RequestObserver>,
}

impl ServeOptions {
    /// Default options for a model of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            api_key: None,
            max_request_bytes: 8 << 20,
            max_prompt_tokens: None,
            max_new_tokens: None,
            max_batch: 128,
            max_waiting: 64,
            max_queued_tokens: 1 << 20,
            max_cache_bytes: 4 << 30,
            max_body_bytes: 64 << 20,
            // Processes may often have no more than 1024 open files.
            max_connections: 512,
            reserved_connections: 64,
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            request_timeout: Duration::from_secs(600),
            client_timeout: Duration::from_secs(30),
            grace: Duration::from_secs(30),
            observer: None,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ServeError> {
        if self.name.is_empty() {
            return Err(ServeError::NoName);
        }
        if self.api_key.as_ref().is_some_and(Secret::is_empty) {
            return Err(ServeError::EmptyKey);
        }
        let counts = [
            ("max_request_bytes", self.max_request_bytes),
            ("max_prompt_tokens", self.max_prompt_tokens.unwrap_or(1)),
            ("max_new_tokens", self.max_new_tokens.unwrap_or(1)),
            ("max_batch", self.max_batch),
            ("max_connections", self.max_connections),
            ("reserved_connections", self.reserved_connections),
            ("max_queued_tokens", self.max_queued_tokens),
            ("max_cache_bytes", usize::try_from(self.max_cache_bytes).unwrap_or(usize::MAX)),
        ];
        match counts.into_iter().find(|(_, count)| *count == 0) {
            Some((option, _)) => Err(ServeError::Zero { option }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_and_zero_options_are_rejected() {
        let options = ServeOptions::new("m");
        assert_eq!(options.check(), Ok(()));
        let none = ServeOptions { max_batch: 0, ..options.clone() };
        assert_eq!(none.check(), Err(ServeError::Zero { option: "max_batch" }));
        let keyless = ServeOptions { api_key: Some(Secret::new("")), ..options };
        assert_eq!(keyless.check(), Err(ServeError::EmptyKey));
        assert_eq!(ServeOptions::new("").check(), Err(ServeError::NoName));
    }

    #[test]
    fn debug_does_not_print_the_key() {
        let options = ServeOptions { api_key: Some(Secret::new("tulip")), ..ServeOptions::new("m") };
        assert!(!format!("{options:?}").contains("tulip"));
    }
}
