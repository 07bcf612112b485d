//! Sampling of the next token.

use weightloom_errors::Hint;
use weightloom_tensor::Stream;

/// Sampling parameters.
///
/// Applies the repetition penalty, the temperature, `top_k`, `top_p` and `min_p`
/// in this order, and draws one of the remaining tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the most likely token.
    pub temperature: f64,
    /// Keep this many of the most likely tokens.
    pub top_k: Option<usize>,
    /// Keep the most likely tokens with at least this total probability.
    pub top_p: Option<f64>,
    /// Keep tokens with at least this fraction of the highest probability.
    pub min_p: Option<f64>,
    /// Divides the logits of tokens that occurred, or multiplies them if they are
    /// negative. 1 has no effect.
    pub repetition_penalty: f64,
    /// Seed of the random numbers.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: None, top_p: None, min_p: None, repetition_penalty: 1.0, seed: 0 }
    }
}

/// An invalid sampling parameter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid `{key}`: {value} is not {expected}")]
#[allow(missing_docs)]
pub struct SamplingError {
    pub key: &'static str,
    pub value: String,
    pub expected: &'static str,
}

impl Hint for SamplingError {
    fn hint(&self) -> Option<String> {
        Some(format!("set `{}` to a number {}", self.key, self.expected))
    }
}

impl Sampling {
    /// Checks all parameters.
    pub fn check(&self) -> Result<(), SamplingError> {
        let is_share = |value: Option<f64>| value.is_none_or(|value| value > 0.0 && value <= 1.0);
        let penalty = self.repetition_penalty;
        let checks = [
            (
                "temperature",
                self.temperature.to_string(),
                "at least 0",
                self.temperature >= 0.0 && self.temperature.is_finite(),
            ),
            ("top_k", self.top_k.unwrap_or(1).to_string(), "at least 1", self.top_k != Some(0)),
            ("top_p", self.top_p.unwrap_or(1.0).to_string(), "above 0 and at most 1", is_share(self.top_p)),
            (
                "min_p",
                self.min_p.unwrap_or(0.0).to_string(),
                "between 0 and 1",
                self.min_p.is_none_or(|value| (0.0..=1.0).contains(&value)),
            ),
            ("repetition_penalty", penalty.to_string(), "above 0", penalty > 0.0 && penalty.is_finite()),
        ];
        match checks.into_iter().find(|(.., fits)| !fits) {
            Some((key, value, expected, _)) => Err(SamplingError { key, value, expected }),
            None => Ok(()),
        }
    }
}

/// Samples tokens, the same ones for the same seed on every rank.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
}

impl Sampler {
    /// Checks the parameters.
    pub fn new(sampling: Sampling) -> Result<Self, SamplingError> {
        sampling.check()?;
        Ok(Self { sampling })
    }

    /// The parameters.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Samples the next token of a row from its logits, which it modifies.
    /// `drawn` counts the tokens sampled for the row so far, and `before` holds
    /// all its tokens for the repetition penalty.
    pub fn sample(&self, logits: &mut [f32], row: u64, drawn: u64, before: &[u32]) -> u32 {
        self.penalize_repetition(logits, before);
        if self.sampling.temperature == 0.0 {
            return argmax(logits);
        }
        let mut left = self.candidates(logits);
        let total: f64 = left.iter().map(|(_, weight)| weight).sum();
        // Sorted by token, so that the order of equal logits does not matter.
        left.sort_unstable_by_key(|(token, _)| *token);
        let stream = Stream { seed: self.sampling.seed, number: row };
        let mut rest = f64::from(stream.uniform(drawn)) * total;
        for &(token, weight) in &left {
            rest -= weight;
            if rest < 0.0 {
                return token;
            }
        }
        left.last().map_or_else(|| argmax(logits), |(token, _)| *token)
    }

    fn penalize_repetition(&self, logits: &mut [f32], before: &[u32]) {
        let penalty = self.sampling.repetition_penalty as f32;
        if penalty == 1.0 {
            return;
        }
        let mut seen: Vec<u32> = before.to_vec();
        seen.sort_unstable();
        seen.dedup();
        for token in seen {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = if *logit < 0.0 { *logit * penalty } else { *logit / penalty };
            }
        }
    }

    /// Tokens that may be drawn with their weights, most likely first.
    fn candidates(&self, logits: &[f32]) -> Vec<(u32, f64)> {
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.sampling;
        let most = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let weight = |logit: f32| ((f64::from(logit) - most) / temperature).exp();
        let mut left: Vec<(u32, f64)> =
            logits.iter().zip(0..).map(|(&logit, token)| (token, weight(logit))).collect();
        let by_weight = |a: &(u32, f64), b: &(u32, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if let Some(count) = top_k.filter(|&count| count < left.len()) {
            left.select_nth_unstable_by(count - 1, by_weight);
            left.truncate(count);
        }
        left.sort_unstable_by(by_weight);
        if let Some(share) = top_p.filter(|&share| share < 1.0) {
            let total: f64 = left.iter().map(|(_, weight)| weight).sum();
            let mut sum = 0.0;
            let enough = left.iter().position(|(_, weight)| {
                sum += weight;
                sum >= share * total
            });
            left.truncate(enough.map_or(left.len(), |last| last + 1));
        }
        if let Some(share) = min_p {
            // The most likely token has weight 1.
            left.retain(|(_, weight)| *weight >= share);
        }
        left
    }
}

/// The first token with the largest logit.
fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (token, &logit) in logits.iter().enumerate() {
        if logit > logits[best] || logits[best].is_nan() {
            best = token;
        }
    }
    best as u32
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    fn frequencies(sampling: Sampling, logits: &[f32], draws: u64) -> Vec<f64> {
        let sampler = Sampler::new(sampling).unwrap();
        let mut counts = vec![0.0; logits.len()];
        for drawn in 0..draws {
            counts[sampler.sample(&mut logits.to_vec(), 0, drawn, &[]) as usize] += 1.0 / draws as f64;
        }
        counts
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let logits = [0.0, 1.0, 2.0, -1.0];
        let total: f64 = logits.iter().map(|&x: &f32| (f64::from(x) / 0.7).exp()).sum();
        let found = frequencies(Sampling { temperature: 0.7, ..Sampling::default() }, &logits, 20_000);
        for (found, logit) in found.iter().zip(logits) {
            // Four standard deviations of 20,000 draws.
            assert!((found - (f64::from(logit) / 0.7).exp() / total).abs() < 0.0142);
        }
    }

    #[test]
    fn unlikely_tokens_are_never_drawn() {
        let logits = [3.0, 2.0, 1.0, 0.0, -4.0];
        let warm = Sampling { temperature: 1.0, ..Sampling::default() };
        let never = |sampling: Sampling| -> Vec<usize> {
            let found = frequencies(sampling, &logits, 4000);
            (0..logits.len()).filter(|&token| found[token] == 0.0).collect()
        };
        assert_eq!(never(Sampling { top_k: Some(2), ..warm.clone() }), [2, 3, 4]);
        // 0.64, 0.24, 0.09, 0.03, 0.0006
        assert_eq!(never(Sampling { top_p: Some(0.64), ..warm.clone() }), [1, 2, 3, 4]);
        assert_eq!(never(Sampling { top_p: Some(0.7), ..warm.clone() }), [2, 3, 4]);
        assert_eq!(never(Sampling { min_p: Some(0.2), ..warm.clone() }), [2, 3, 4]);
        assert_eq!(never(Sampling { top_k: Some(99), ..warm }), Vec::<usize>::new());
    }

    #[test]
    fn greedy_takes_the_first_maximum_after_the_penalty() {
        let greedy = Sampler::new(Sampling::default()).unwrap();
        assert_eq!(greedy.sample(&mut [1.0, 3.0, 3.0], 0, 0, &[1]), 1);
        let varied = Sampler::new(Sampling { repetition_penalty: 2.0, ..Sampling::default() }).unwrap();
        assert_eq!(varied.sample(&mut [1.0, 3.0, 2.5], 0, 0, &[1, 1, 7]), 2);
        assert_eq!(varied.sample(&mut [-1.0, -3.0, -2.5], 0, 0, &[0]), 0);
        assert_eq!(greedy.sample(&mut [f32::NAN, 1.0], 0, 0, &[]), 1);
    }

    #[test]
    fn draws_depend_on_seed_and_row_only() {
        let sampler =
            |seed| Sampler::new(Sampling { temperature: 1.0, seed, ..Sampling::default() }).unwrap();
        let draw = |seed, row| -> Vec<u32> {
            (0..40).map(|drawn| sampler(seed).sample(&mut [0.0; 50], row, drawn, &[])).collect()
        };
        assert_eq!(draw(1, 0), draw(1, 0));
        assert_ne!(draw(1, 0), draw(2, 0));
        assert_ne!(draw(1, 0), draw(1, 1));
    }

    #[test]
    fn invalid_parameters_are_named() {
        let wrong = Sampling { top_p: Some(1.5), ..Sampling::default() };
        let error = Sampler::new(wrong).unwrap_err();
        assert_eq!(error.to_string(), "invalid `top_p`: 1.5 is not above 0 and at most 1");
        for wrong in [
            Sampling { temperature: -1.0, ..Sampling::default() },
            Sampling { temperature: f64::NAN, ..Sampling::default() },
            Sampling { top_k: Some(0), ..Sampling::default() },
            Sampling { repetition_penalty: 0.0, ..Sampling::default() },
            Sampling { min_p: Some(-0.1), ..Sampling::default() },
        ] {
            assert!(Sampler::new(wrong).is_err());
        }
    }
}
