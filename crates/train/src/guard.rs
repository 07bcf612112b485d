//! Judging the steps and the evaluations of a run.
//!
//! Everything here depends only on losses, which are the same on all ranks, and on the
//! state, which is saved with each checkpoint. So all ranks decide alike, and so does
//! a run that resumes.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::config::{EarlyStopping, SpikeConfig};

/// Bad steps in a row that are skipped at most.
pub(crate) const MOST_SKIPPED: u64 = 10;

/// Returns to one checkpoint at most.
pub(crate) const MOST_RETURNS: u64 = 3;

/// Deviations below this share of the mean are not noticed: losses that hardly change
/// have no spikes.
const LEAST_DEVIATION: f64 = 1e-3;

/// What a run remembers to judge its next steps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GuardState {
    /// The bits of the losses of the last good steps: numbers in JSON are rounded.
    losses: VecDeque<u64>,
    /// Steps skipped in a row.
    skipped: u64,
    /// The bits of the lowest evaluation loss that was an improvement.
    best: Option<u64>,
    /// Evaluations since then.
    stale: u64,
}

/// A loss that is far above those before it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Spike {
    pub loss: f64,
    /// Mean and standard deviation of the losses before it.
    pub mean: f64,
    pub deviation: f64,
}

impl GuardState {
    /// Whether a loss is a spike.
    pub(crate) fn judge(&self, loss: f64, config: &SpikeConfig) -> Option<Spike> {
        if self.losses.len() < config.window {
            return None;
        }
        let count = self.losses.len() as f64;
        let losses = || self.losses.iter().map(|bits| f64::from_bits(*bits));
        let mean = losses().sum::<f64>() / count;
        let variance = losses().map(|loss| (loss - mean).powi(2)).sum::<f64>() / count;
        let deviation = variance.sqrt().max(LEAST_DEVIATION * mean.abs());
        (loss > mean + config.threshold * deviation).then_some(Spike { loss, mean, deviation })
    }

    /// Remembers the loss of a good step.
    pub(crate) fn accept(&mut self, loss: f64, config: Option<&SpikeConfig>) {
        self.skipped = 0;
        let window = config.map_or(0, |config| config.window);
        self.losses.push_back(loss.to_bits());
        let surplus = self.losses.len().saturating_sub(window);
        self.losses.drain(..surplus);
    }

    /// Remembers a skipped step.
    pub(crate) fn skip(&mut self) {
        self.skipped += 1;
    }

    /// Whether one more step can be skipped.
    pub(crate) fn may_skip(&self) -> bool {
        self.skipped < MOST_SKIPPED
    }

    /// Remembers an evaluation loss.
    pub(crate) fn observe(&mut self, loss: f64, config: &EarlyStopping) {
        let best = self.best.map_or(f64::INFINITY, f64::from_bits);
        if loss < best - config.min_delta || (self.best.is_none() && loss.is_finite()) {
            (self.best, self.stale) = (Some(loss.to_bits()), 0);
        } else {
            self.stale += 1;
        }
    }

    /// Whether the run should end early.
    pub(crate) fn is_stale(&self, config: Option<&EarlyStopping>) -> bool {
        config.is_some_and(|config| self.stale >= config.patience)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;
    use crate::config::BadStepAction;

    fn after(losses: &[f64], config: &SpikeConfig) -> GuardState {
        let mut state = GuardState::default();
        losses.iter().for_each(|loss| state.accept(*loss, Some(config)));
        state
    }

    #[test]
    fn a_spike_is_far_above_the_window() {
        let config = SpikeConfig { action: BadStepAction::Skip, window: 4, threshold: 3.0 };
        // Only the last four count, with a mean of 3 and a deviation of 1.
        let state = after(&[100.0, 2.0, 4.0, 2.0, 4.0], &config);
        assert_eq!(state.judge(6.0, &config), None);
        let spike = state.judge(6.1, &config).unwrap();
        assert_eq!((spike.loss, spike.mean, spike.deviation), (6.1, 3.0, 1.0));
        // A fall is welcome.
        assert_eq!(state.judge(-100.0, &config), None);
    }

    #[test]
    fn nothing_is_a_spike_before_the_window_is_full() {
        let config = SpikeConfig { action: BadStepAction::Skip, window: 4, threshold: 3.0 };
        assert_eq!(after(&[1.0, 2.0, 1.0], &config).judge(1e9, &config), None);
    }

    #[test]
    fn the_state_is_the_same_after_a_checkpoint() {
        let config = SpikeConfig { action: BadStepAction::Skip, window: 3, threshold: 3.0 };
        let mut state = after(&[0.1 + 0.2, 1.0 / 3.0, f64::MIN_POSITIVE], &config);
        state.observe(0.7, &EarlyStopping::default());
        state.skip();
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<GuardState>(&text).unwrap(), state);
        assert_eq!(serde_json::from_str::<GuardState>("{}").unwrap(), GuardState::default());
    }

    #[test]
    fn steps_are_skipped_in_a_row_only_so_often() {
        let mut state = GuardState::default();
        (0..MOST_SKIPPED).for_each(|_| state.skip());
        assert!(!state.may_skip());
        state.accept(1.0, None);
        assert!(state.may_skip());
        // Without a rule for spikes, nothing is kept.
        assert!(state.losses.is_empty());
    }

    #[test]
    fn patience_ends_after_evaluations_without_improvement() {
        let config = EarlyStopping { patience: 2, min_delta: 0.1 };
        let stale_after = |losses: &[f64]| {
            let mut state = GuardState::default();
            losses.iter().for_each(|loss| state.observe(*loss, &config));
            state.is_stale(Some(&config))
        };
        assert!(!stale_after(&[3.0, 2.0, 1.95]));
        assert!(stale_after(&[3.0, 2.0, 1.95, 1.92]));
        // Many small improvements add up to one.
        assert!(!stale_after(&[3.0, 2.0, 1.95, 1.85, 1.8]));
        assert!(stale_after(&[f64::NAN, f64::NAN]));
        assert!(!GuardState::default().is_stale(Some(&config)));
        assert!(!GuardState { stale: 99, ..GuardState::default() }.is_stale(None));
    }
}
