//! How often and how long to try again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::error::{Fault, FetchError};
use super::network::{Stop, Trouble};
use super::settings::FetchSettings;

/// How much patience is left. Progress restores it.
#[derive(Debug)]
pub(super) struct Patience<'a> {
    settings: &'a FetchSettings,
    what: &'a str,
    attempts: u32,
}

impl<'a> Patience<'a> {
    pub(super) fn new(settings: &'a FetchSettings, what: &'a str) -> Self {
        Self { settings, what, attempts: 0 }
    }

    /// Something came that was not there before.
    pub(super) fn restore(&mut self) {
        self.attempts = 0;
    }

    /// Waits until it is time to try again, if it is worth it.
    pub(super) fn after(&mut self, trouble: Trouble, stop: &Stop<'_>) -> Result<(), Trouble> {
        let (fault, asked) = match trouble {
            Trouble::Passing(fault, asked) => (fault, asked),
            other => return Err(other),
        };
        self.attempts += 1;
        let what = || self.what.to_owned();
        if self.attempts > self.settings.retries {
            return Err(Trouble::Final(FetchError::GaveUp { what: what(), attempts: self.attempts, fault }));
        }
        if let Some(wait) = asked.filter(|wait| *wait > self.settings.longest_asked_wait) {
            return Err(Trouble::Final(FetchError::RateLimited { what: what(), wait }));
        }
        let wait = self.own_wait().max(asked.unwrap_or_default());
        stop.observer.retrying(self.what, &fault, wait);
        stop.sleep(wait)
    }

    /// Between half and all of a time that doubles, so that those who failed
    /// together do not come back together.
    fn own_wait(&self) -> Duration {
        let doublings = (self.attempts - 1).min(20);
        let full = self.settings.first_wait.saturating_mul(1 << doublings).min(self.settings.longest_wait);
        full / 2 + (full / 2).mul_f64(jitter())
    }
}

impl Trouble {
    /// Trouble that may pass.
    pub(super) fn passing(fault: Fault) -> Self {
        Self::Passing(fault, None)
    }
}

/// A number between 0 and 1 that is another one in every process and call: a
/// counter, mixed as SplitMix64 does it.
fn jitter() -> f64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed) ^ (u64::from(std::process::id()) << 32);
    let mut mixed = count.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let settings = FetchSettings::in_folders("a", "b");
        for (attempts, most) in [(1, 500), (2, 1000), (3, 2000), (60, 30_000)] {
            let most = Duration::from_millis(most);
            let wait = Patience { settings: &settings, what: "", attempts }.own_wait();
            assert!(wait >= most / 2 && wait <= most, "{attempts}: {wait:?}");
        }
    }

    #[test]
    fn jitter_differs_from_call_to_call() {
        let values: Vec<f64> = (0..100).map(|_| jitter()).collect();
        assert!(values.iter().all(|value| (0.0..1.0).contains(value)));
        assert!(values.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn patience_ends_by_count_and_progress_restores_it() {
        let mut settings = FetchSettings::in_folders("a", "b");
        (settings.retries, settings.first_wait) = (2, Duration::ZERO);
        let stop = Stop::new(&(), "x");
        let fail = |patience: &mut Patience<'_>| patience.after(Trouble::passing(Fault::Changed), &stop);
        let mut patience = Patience::new(&settings, "x");
        for _ in 0..5 {
            fail(&mut patience).unwrap();
            fail(&mut patience).unwrap();
            patience.restore();
        }
        fail(&mut patience).unwrap();
        fail(&mut patience).unwrap();
        let Err(Trouble::Final(FetchError::GaveUp { attempts: 3, .. })) = fail(&mut patience) else {
            panic!("there is no patience left");
        };
    }

    #[test]
    fn a_longer_pause_than_we_make_is_told() {
        let settings = FetchSettings::in_folders("a", "b");
        let wait = Duration::from_secs(86_400);
        let trouble = Trouble::Passing(Fault::Changed, Some(wait));
        let ended = Patience::new(&settings, "x").after(trouble, &Stop::new(&(), "x"));
        assert!(
            matches!(ended, Err(Trouble::Final(FetchError::RateLimited { wait: told, .. })) if told == wait)
        );
    }
}
