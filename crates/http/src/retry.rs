//! Whether and when to send a failed request again.
//!
//! Every retry in the workspace is decided by [`Retries::after`]. Callers
//! differ only in how they wait: downloads sleep on a thread that checks for
//! cancellation, the others on a timer.

use std::future::Future;
use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

use crate::speed::MinSpeed;

/// Limits and delays of retries.
///
/// Delays double from [`initial_backoff`](Self::initial_backoff) to
/// [`max_backoff`](Self::max_backoff). Each is shortened at random by up to
/// half, so that clients that failed together do not retry together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Retries after the first attempt.
    pub max_retries: u32,
    /// Delay before the first retry.
    pub initial_backoff: Duration,
    /// Longest delay that we choose ourselves.
    pub max_backoff: Duration,
    /// Longest `Retry-After` to wait for; a longer one ends the request.
    pub max_retry_after: Duration,
    /// Time after the first failure in which retries may start.
    pub max_elapsed: Duration,
    /// Least speed of a response; a slower one has failed.
    pub min_speed: MinSpeed,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_retries: 6,
            initial_backoff: Duration::from_millis(500),
            max_backoff: Duration::from_secs(30),
            max_retry_after: Duration::from_secs(300),
            max_elapsed: Duration::MAX,
            min_speed: MinSpeed::default(),
        }
    }
}

impl RetryPolicy {
    /// Sends a request until it succeeds or the policy ends it.
    pub async fn run<T, E, P, F>(&self, mut send: impl FnMut() -> F) -> Result<T, GaveUp<E, P>>
    where
        F: Future<Output = Result<T, RequestError<E, P>>>,
    {
        let mut retries = Retries::new(self);
        loop {
            match send().await {
                Ok(value) => return Ok(value),
                Err(error) => retries.sleep_after(error).await?,
            }
        }
    }

    /// Delays between half the doubled backoff and all of it.
    fn backoff(&self) -> ExponentialBackoff {
        // `backon` adds up to the delay itself, hence half of each.
        ExponentialBuilder::new()
            .with_min_delay(self.initial_backoff.min(self.max_backoff) / 2)
            .with_max_delay(self.max_backoff / 2)
            .without_max_times()
            .with_jitter()
            .build()
    }
}

/// Failure of one attempt to send a request.
///
/// `E` describes failures that a retry may fix, `P` those that it cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestError<E, P = E> {
    /// The same request may succeed later.
    Transient {
        /// The failure.
        cause: E,
        /// Delay that the server asked for.
        retry_after: Option<Duration>,
    },
    /// The same request will fail again.
    Permanent(P),
}

impl<E, P> RequestError<E, P> {
    /// A failure that may pass, without a delay from the server.
    pub fn transient(cause: E) -> Self {
        Self::Transient { cause, retry_after: None }
    }
}

/// Whether a response status may differ on the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retryable {
    /// The server is busy, restarting or broken for the moment.
    Yes,
    /// The request itself is wrong or refused.
    No,
}

impl Retryable {
    /// Classifies a status outside 200–299.
    pub fn from_status(status: u16) -> Self {
        match status {
            408 | 425 | 429 => Self::Yes,
            // Not implemented, and HTTP version not supported.
            501 | 505 => Self::No,
            500.. => Self::Yes,
            _ => Self::No,
        }
    }
}

/// Why a request is not sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GaveUp<E, P = E> {
    /// A retry cannot help.
    Permanent(P),
    /// Attempts or time ran out.
    Exhausted {
        /// The last failure.
        cause: E,
        /// Attempts since the last progress.
        attempts: u32,
    },
    /// The server asked for a longer delay than the policy allows.
    RetryAfter {
        /// The last failure.
        cause: E,
        /// Attempts since the last progress.
        attempts: u32,
        /// The delay it asked for.
        delay: Duration,
    },
}

/// Attempts of one request under a policy.
#[derive(Debug)]
pub struct Retries<'a> {
    policy: &'a RetryPolicy,
    backoff: ExponentialBackoff,
    attempts: u32,
    first_failure: Option<Instant>,
}

impl<'a> Retries<'a> {
    /// Starts counting; the first attempt is still to come.
    pub fn new(policy: &'a RetryPolicy) -> Self {
        Self { policy, backoff: policy.backoff(), attempts: 0, first_failure: None }
    }

    /// Failed attempts since the last progress.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Starts over, because an attempt brought something new.
    pub fn record_progress(&mut self) {
        *self = Self::new(self.policy);
    }

    /// Counts a failed attempt and returns the delay before the next one with
    /// the failure's cause.
    pub fn after<E, P>(&mut self, error: RequestError<E, P>) -> Result<(Duration, E), GaveUp<E, P>> {
        let (cause, retry_after) = match error {
            RequestError::Permanent(error) => return Err(GaveUp::Permanent(error)),
            RequestError::Transient { cause, retry_after } => (cause, retry_after),
        };
        self.attempts += 1;
        let attempts = self.attempts;
        let elapsed = self.first_failure.get_or_insert_with(Instant::now).elapsed();
        if attempts > self.policy.max_retries {
            return Err(GaveUp::Exhausted { cause, attempts });
        }
        if let Some(delay) = retry_after.filter(|delay| *delay > self.policy.max_retry_after) {
            return Err(GaveUp::RetryAfter { cause, attempts, delay });
        }
        let backoff = self.backoff.next().unwrap_or(self.policy.max_backoff);
        let delay = backoff.max(retry_after.unwrap_or_default());
        if elapsed.saturating_add(delay) > self.policy.max_elapsed {
            return Err(GaveUp::Exhausted { cause, attempts });
        }
        Ok((delay, cause))
    }

    /// Like [`after`](Self::after), and waits for the delay.
    pub async fn sleep_after<E, P>(&mut self, error: RequestError<E, P>) -> Result<(), GaveUp<E, P>> {
        let (delay, _) = self.after(error)?;
        tokio::time::sleep(delay).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Error = RequestError<&'static str>;

    #[test]
    fn delays_double_up_to_the_longest() {
        let policy = RetryPolicy { max_retries: 60, ..RetryPolicy::default() };
        let mut retries = Retries::new(&policy);
        let delays: Vec<Duration> =
            (0..60).map(|_| retries.after(Error::transient("cut")).unwrap().0).collect();
        for (attempt, most) in [(1, 500), (2, 1000), (3, 2000), (60, 30_000)] {
            let (delay, most) = (delays[attempt - 1], Duration::from_millis(most));
            assert!(delay >= most / 2 && delay <= most, "{attempt}: {delay:?}");
        }
    }

    #[test]
    fn delays_differ_from_request_to_request() {
        let policy = RetryPolicy::default();
        let delays: Vec<Duration> =
            (0..100).map(|_| Retries::new(&policy).after(Error::transient("cut")).unwrap().0).collect();
        assert!(delays.windows(2).all(|pair| pair[0] != pair[1]), "{delays:?}");
    }

    #[test]
    fn attempts_end_by_count_and_progress_starts_over() {
        let policy =
            RetryPolicy { max_retries: 2, initial_backoff: Duration::ZERO, ..RetryPolicy::default() };
        let mut retries = Retries::new(&policy);
        for _ in 0..5 {
            retries.after(Error::transient("cut")).unwrap();
            retries.after(Error::transient("cut")).unwrap();
            retries.record_progress();
        }
        retries.after(Error::transient("cut")).unwrap();
        retries.after(Error::transient("cut")).unwrap();
        let ended = retries.after(Error::transient("cut"));
        assert_eq!(ended, Err(GaveUp::Exhausted { cause: "cut", attempts: 3 }));
    }

    #[test]
    fn retry_after_is_waited_for_up_to_the_limit() {
        let after = |seconds| RequestError::<_>::Transient {
            cause: "busy",
            retry_after: Some(Duration::from_secs(seconds)),
        };
        let policy = RetryPolicy::default();
        assert_eq!(Retries::new(&policy).after(after(300)), Ok((Duration::from_secs(300), "busy")));
        let delay = Duration::from_secs(86_400);
        let ended = Retries::new(&policy).after(after(86_400));
        assert_eq!(ended, Err(GaveUp::RetryAfter { cause: "busy", attempts: 1, delay }));
    }

    #[test]
    fn retries_end_by_time_and_for_permanent_failures() {
        let policy = RetryPolicy { max_elapsed: Duration::ZERO, ..RetryPolicy::default() };
        let ended = Retries::new(&policy).after(Error::transient("cut"));
        assert_eq!(ended, Err(GaveUp::Exhausted { cause: "cut", attempts: 1 }));
        let ended = Retries::new(&RetryPolicy::default()).after(Error::Permanent("404"));
        assert_eq!(ended, Err(GaveUp::Permanent("404")));
    }

    #[test]
    fn only_statuses_that_may_pass_are_retried() {
        for status in [408, 425, 429, 500, 502, 503, 504] {
            assert_eq!(Retryable::from_status(status), Retryable::Yes, "{status}");
        }
        for status in [301, 400, 401, 403, 404, 416, 501, 505] {
            assert_eq!(Retryable::from_status(status), Retryable::No, "{status}");
        }
    }
}
