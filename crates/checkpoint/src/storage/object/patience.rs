//! How often and how long to try again.
//!
//! This is the only place where requests are repeated: the client library is
//! told not to, so that counts and times are what the options say.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

use super::options::ObjectOptions;
use super::watch::{Failure, Outlook};

/// How much patience is left with one request.
#[derive(Debug)]
pub(super) struct Patience<'a> {
    options: &'a ObjectOptions,
    attempts: u32,
    since: Option<Instant>,
}

/// A request that is not made again.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) failure: Failure,
    pub(super) attempts: u32,
}

impl<'a> Patience<'a> {
    pub(super) fn new(options: &'a ObjectOptions) -> Self {
        Self { options, attempts: 0, since: None }
    }

    /// How often it went wrong so far.
    pub(super) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Waits until it is time to try again, if it is worth it.
    pub(super) async fn after(&mut self, failure: Failure) -> Result<(), Ended> {
        self.attempts += 1;
        let failing_for = self.since.get_or_insert_with(Instant::now).elapsed();
        let wait = self.wait(failure.wait);
        let again = failure.outlook == Outlook::Hopeful
            && self.attempts <= self.options.retries
            && failing_for.saturating_add(wait) <= self.options.retry_for;
        if !again {
            return Err(Ended { failure, attempts: self.attempts });
        }
        tokio::time::sleep(wait).await;
        Ok(())
    }

    /// Between half and all of a time that doubles, so that ranks that failed
    /// together do not come back together; longer if the service says so.
    fn wait(&self, wanted: Option<Duration>) -> Duration {
        let doublings = (self.attempts - 1).min(20);
        let full = self.options.first_wait.saturating_mul(1 << doublings).min(self.options.longest_wait);
        let random = RandomState::new().build_hasher().finish() >> 32;
        let wait = full / 2 + (full / 2).mul_f64(random as f64 / u32::MAX as f64);
        wait.max(wanted.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::RemoteProblem;

    #[test]
    fn waits_double_up_to_the_longest() {
        let options = ObjectOptions::default();
        for (attempts, most) in [(1, 100), (2, 200), (3, 400), (30, 10_000)] {
            let most = Duration::from_millis(most);
            let wait = Patience { options: &options, attempts, since: None }.wait(None);
            assert!(wait >= most / 2 && wait <= most, "{attempts}: {wait:?}");
        }
    }

    #[test]
    fn patience_ends_by_count_by_time_and_without_hope() {
        let runtime = super::super::runtime::shared().unwrap();
        let ended = |options: &ObjectOptions, failure: Failure| {
            super::super::runtime::wait_for(&runtime, async {
                let mut patience = Patience::new(options);
                loop {
                    if let Err(ended) = patience.after(failure.clone()).await {
                        return ended.attempts;
                    }
                }
            })
        };
        let failure = Failure::of(RemoteProblem::Cut, "");
        let brief = Duration::from_millis(1);
        let mut options = ObjectOptions { retries: 3, first_wait: brief, ..ObjectOptions::default() };
        assert_eq!(ended(&options, failure.clone()), 4);
        assert_eq!(ended(&options, Failure { outlook: Outlook::Hopeless, ..failure.clone() }), 1);
        assert_eq!(ended(&options, Failure { wait: Some(Duration::from_secs(3600)), ..failure.clone() }), 1);
        options.retry_for = Duration::ZERO;
        assert_eq!(ended(&options, failure), 1);
    }
}
