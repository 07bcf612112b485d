//! What a server accepts, and how patient it is.

use std::time::Duration;

use weightloom_http::Secret;

use crate::error::ServeError;

/// What a server accepts, and how patient it is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServeOptions {
    /// What the model is called.
    pub name: String,
    /// What callers must show, if anything.
    pub api_key: Option<Secret>,
    /// Bytes of a request.
    pub max_request_bytes: usize,
    /// Tokens of a prompt; as many as the model has positions, if not given.
    pub max_prompt_tokens: Option<usize>,
    /// Tokens that are written for a prompt; as many as the model has
    /// positions, if not given.
    pub max_new_tokens: Option<usize>,
    /// Rows that are written at once: prompts times answers for each.
    pub max_batch: usize,
    /// Requests that may wait while the model works on another.
    pub max_waiting: usize,
    /// Connections at a time. Others wait until they are accepted.
    pub max_connections: usize,
    /// How long a request may wait and run.
    pub request_timeout: Duration,
    /// How long a client may take to send the head of a request, then its
    /// body, and how long it may leave lying what is sent to it.
    pub client_timeout: Duration,
    /// How long requests may still run when the server is to end.
    pub grace: Duration,
}

impl ServeOptions {
    /// Options for a model of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            api_key: None,
            max_request_bytes: 8 << 20,
            max_prompt_tokens: None,
            max_new_tokens: None,
            max_batch: 128,
            max_waiting: 64,
            max_connections: 1024,
            request_timeout: Duration::from_secs(600),
            client_timeout: Duration::from_secs(30),
            grace: Duration::from_secs(30),
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
    fn options_that_allow_nothing_are_refused() {
        let options = ServeOptions::new("m");
        assert_eq!(options.check(), Ok(()));
        let none = ServeOptions { max_batch: 0, ..options.clone() };
        assert_eq!(none.check(), Err(ServeError::Zero { option: "max_batch" }));
        let keyless = ServeOptions { api_key: Some(Secret::new("")), ..options };
        assert_eq!(keyless.check(), Err(ServeError::EmptyKey));
        assert_eq!(ServeOptions::new("").check(), Err(ServeError::NoName));
    }

    #[test]
    fn a_key_is_never_shown() {
        let options = ServeOptions { api_key: Some(Secret::new("tulip")), ..ServeOptions::new("m") };
        assert!(!format!("{options:?}").contains("tulip"));
    }
}
