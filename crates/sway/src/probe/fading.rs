//! How fast a change fades along a context, for probes that measure it.

use std::f64::consts::LN_2;

use crate::numbers::linear_fit::{LinearFit, half_life};
use crate::numbers::mean;
use crate::numbers::student_t::TTest;
use crate::paired::{Limit, NO_CHANGE, mean_above};

/// Divergences between two models at several positions of a context.
pub(crate) struct Fading {
    /// The positions, in tokens or turns.
    pub(crate) positions: Vec<f64>,
    /// The divergence after each prompt, position by position.
    pub(crate) divergences: Vec<Vec<f64>>,
}

impl Fading {
    /// The mean over prompts at each position.
    pub(crate) fn means(&self) -> Vec<f64> {
        self.divergences.iter().map(|prompts| mean(prompts).unwrap_or(0.0)).collect()
    }

    /// Whether the models differ nowhere.
    pub(crate) fn is_nothing(&self) -> bool {
        self.means().iter().all(|divergence| *divergence < NO_CHANGE)
    }

    /// The half-life of the means; none if they do not decay.
    pub(crate) fn half_life(&self) -> Option<f64> {
        half_life(&self.positions, &self.means())
    }

    /// The rate of decay after each prompt: positive if the change fades.
    fn rates(&self) -> Vec<f64> {
        let prompts = self.divergences.first().map_or(0, Vec::len);
        let rate = |prompt: usize| {
            let logarithms: Vec<f64> =
                self.divergences.iter().map(|one| one[prompt].max(NO_CHANGE).ln()).collect();
            LinearFit::least_squares(&self.positions, &logarithms).map(|line| -line.slope)
        };
        (0..prompts).filter_map(rate).collect()
    }

    /// Tests that the half-life is at least `wanted`, prompt by prompt.
    pub(crate) fn test(&self, wanted: f64) -> FadingTest {
        let rates = self.rates();
        let interval = TTest::of(&rates).map(|test| test.confidence_interval());
        let margin: Vec<f64> = rates.iter().map(|rate| LN_2 / wanted - rate).collect();
        FadingTest {
            rate: mean(&rates),
            rate_interval: interval,
            half_lives: interval.filter(|[low, _]| *low > 0.0).map(|[low, high]| [LN_2 / high, LN_2 / low]),
            limit: mean_above(&margin, 0.0, "prompts"),
        }
    }
}

/// The test of a half-life.
pub(crate) struct FadingTest {
    /// The mean rate of decay per position.
    pub(crate) rate: Option<f64>,
    /// 95 % confidence interval of the rate.
    pub(crate) rate_interval: Option<[f64; 2]>,
    /// 95 % confidence interval of the half-life, if the change surely fades.
    pub(crate) half_lives: Option<[f64; 2]>,
    /// The claim that the half-life is long enough.
    pub(crate) limit: Limit,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn halving_every(positions: f64) -> Fading {
        let divergence = |position: f64, prompt: usize| {
            let wobble = 1.0 + 0.01 * (position * prompt as f64).sin();
            wobble * 0.5_f64.powf(position / positions)
        };
        let at = [2.0, 3.0, 4.0];
        let divergences = at.map(|position| (0..6).map(|prompt| divergence(position, prompt)).collect());
        Fading { positions: at.to_vec(), divergences: divergences.to_vec() }
    }

    #[test]
    fn half_lives_are_tested_on_both_sides() {
        let fading = halving_every(3.0);
        assert!((fading.half_life().unwrap() - 3.0).abs() < 0.1);
        let kept = fading.test(2.0);
        assert!(kept.limit.within < 0.01 && kept.limit.beyond > 0.99);
        let lost = fading.test(6.0);
        assert!(lost.limit.beyond < 0.01);
        let [low, high] = lost.half_lives.unwrap();
        assert!(low < 3.0 && 3.0 < high, "{low} {high}");
    }

    #[test]
    fn nothing_cannot_fade() {
        let nothing = Fading { positions: vec![0.0, 1.0], divergences: vec![vec![0.0; 3]; 2] };
        assert!(nothing.is_nothing() && nothing.half_life().is_none());
        assert!(!halving_every(1.0).is_nothing());
    }
}
