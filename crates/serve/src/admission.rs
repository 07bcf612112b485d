//! How much work is accepted at once.
//!
//! Every request is bounded before it costs anything: bodies in memory, texts
//! that are tokenized at a time, requests and prompt tokens that run or wait.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api_error::ApiError;
use crate::options::ServeOptions;

/// Bodies up to this size are parsed in their own lane: a client with a short
/// request does not wait for those with long ones.
const SMALL_BODY: usize = 64 << 10;

/// Small bodies that are parsed at once.
const SMALL_LANES: usize = 4;

/// A body takes this much memory before it counts.
const FREE_BODY_BYTES: usize = 16 << 10;

/// The unit in which bodies are counted.
const BODY_UNIT: usize = 1 << 10;

/// Permits of everything that requests take.
pub(crate) struct Admission {
    /// One for each request that runs or waits.
    requests: Arc<Semaphore>,
    /// One for each prompt token of these.
    tokens: Arc<Semaphore>,
    /// One for each unit of bodies in memory.
    bodies: Arc<Semaphore>,
    small: Arc<Semaphore>,
    /// Tokenizing takes about a hundred times the size of a text, so long ones
    /// take turns.
    large: Arc<Semaphore>,
    max_waiting: usize,
    max_tokens: usize,
}

/// The place of a request among those that run and wait.
pub(crate) struct Admitted {
    _request: OwnedSemaphorePermit,
    _tokens: OwnedSemaphorePermit,
}

impl Admission {
    pub(crate) fn new(options: &ServeOptions) -> Self {
        let semaphore = |permits: usize| Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)));
        let body_bytes = options.max_body_bytes.max(options.max_request_bytes);
        let max_tokens = options.max_queued_tokens.min(u32::MAX as usize);
        Self {
            // One request runs, the others wait.
            requests: semaphore(options.max_waiting.saturating_add(1)),
            tokens: semaphore(max_tokens),
            bodies: semaphore(body_bytes.div_ceil(BODY_UNIT)),
            small: semaphore(SMALL_LANES),
            large: semaphore(1),
            max_waiting: options.max_waiting,
            max_tokens,
        }
    }

    /// Refuses a request that could not wait, before it is parsed.
    pub(crate) fn check_queue(&self) -> Result<(), ApiError> {
        match self.requests.available_permits() {
            0 => Err(ApiError::queue_full(format!("{} waiting requests", self.max_waiting))),
            _ => Ok(()),
        }
    }

    /// Whether another request could wait.
    pub(crate) fn has_room(&self) -> bool {
        self.requests.available_permits() > 0 && self.tokens.available_permits() > 0
    }

    /// Takes a place for a request with this many prompt tokens.
    pub(crate) fn admit(&self, prompt_tokens: usize, param: &str) -> Result<Admitted, ApiError> {
        let max = self.max_tokens;
        if prompt_tokens > max {
            let message = format!(
                "the prompts have {prompt_tokens} tokens together, but this server accepts {max} at a time; \
                 send fewer prompts in a request"
            );
            return Err(ApiError::invalid_field(param, message));
        }
        let request = Arc::clone(&self.requests).try_acquire_owned();
        let request =
            request.map_err(|_| ApiError::queue_full(format!("{} waiting requests", self.max_waiting)))?;
        let count = u32::try_from(prompt_tokens).unwrap_or(u32::MAX);
        let tokens = Arc::clone(&self.tokens).try_acquire_many_owned(count);
        let tokens = tokens.map_err(|_| ApiError::queue_full(format!("{max} prompt tokens")))?;
        Ok(Admitted { _request: request, _tokens: tokens })
    }

    /// Waits until a body of this size may be parsed.
    pub(crate) async fn parse_lane(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let lane = if bytes <= SMALL_BODY { &self.small } else { &self.large };
        Arc::clone(lane).acquire_owned().await.ok()
    }

    /// The memory of a body that is about to arrive.
    pub(crate) fn body(&self) -> BodyMemory {
        BodyMemory { bodies: Arc::clone(&self.bodies), permit: None, units: 0 }
    }
}

/// The memory that a body takes, freed when dropped.
pub(crate) struct BodyMemory {
    bodies: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
    units: usize,
}

impl BodyMemory {
    /// Grows to this many bytes.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        let units = bytes.saturating_sub(FREE_BODY_BYTES).div_ceil(BODY_UNIT);
        let more = u32::try_from(units.saturating_sub(self.units)).unwrap_or(u32::MAX);
        if more == 0 {
            return Ok(());
        }
        let permit = Arc::clone(&self.bodies).try_acquire_many_owned(more);
        let permit = permit.map_err(|_| ApiError::busy("too many long requests are arriving at once"))?;
        match &mut self.permit {
            Some(held) => held.merge(permit),
            None => self.permit = Some(permit),
        }
        self.units = units;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    fn admission(change: impl FnOnce(&mut ServeOptions)) -> Admission {
        let mut options = ServeOptions::new("m");
        change(&mut options);
        Admission::new(&options)
    }

    #[test]
    fn tokens_of_all_requests_are_bounded_and_come_back() {
        let admission = admission(|options| options.max_queued_tokens = 100);
        let first = admission.admit(60, "prompt").unwrap();
        assert!(admission.admit(41, "prompt").err().unwrap().message().contains("100 prompt tokens"));
        let second = admission.admit(40, "prompt").unwrap();
        assert!(!admission.has_room());
        drop((first, second));
        assert!(admission.has_room());
        // What can never fit is not asked to come again.
        let never = admission.admit(101, "prompt").err().unwrap();
        assert!(never.message().contains("send fewer prompts"), "{}", never.message());
        assert!(admission.admit(100, "prompt").is_ok());
    }

    #[test]
    fn bodies_are_counted_while_they_are_in_memory() {
        let admission = admission(|options| {
            options.max_request_bytes = 64 << 10;
            options.max_body_bytes = 64 << 10;
        });
        let mut one = admission.body();
        one.grow(40 << 10).unwrap();
        one.grow(60 << 10).unwrap();
        let mut other = admission.body();
        assert_eq!(other.grow(16 << 10), Ok(()), "short bodies are free");
        assert!(other.grow(60 << 10).is_err());
        drop(one);
        assert_eq!(other.grow(60 << 10), Ok(()));
    }
}
