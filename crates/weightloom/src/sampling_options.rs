//! Sampling parameters that a request may set.

use weightloom_hub::default_sampling;
use weightloom_hub::text::GenerationDefaults;
use weightloom_nn::Sampling;

/// Sampling parameters of a request. Without any of them, the most likely token is taken; with one,
/// the others are the model's own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplingOptions {
    /// Samples even if no other parameter says so.
    pub sample: bool,
    /// The temperature.
    pub temperature: Option<f64>,
    /// Samples from this many of the most likely tokens.
    pub top_k: Option<usize>,
    /// Samples from the most likely tokens with this total probability.
    pub top_p: Option<f64>,
    /// Samples from tokens with at least this fraction of the highest probability.
    pub min_p: Option<f64>,
    /// Penalizes repeated tokens; it does not enable sampling.
    pub repetition_penalty: Option<f64>,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl SamplingOptions {
    /// The parameters, with those of the model where the request has none.
    pub fn resolve(&self, defaults: &GenerationDefaults) -> Sampling {
        let samples = self.sample
            || self.temperature.is_some()
            || self.top_k.is_some()
            || self.top_p.is_some()
            || self.min_p.is_some();
        let mut sampling = if samples {
            default_sampling(defaults, self.seed)
        } else {
            Sampling { seed: self.seed, ..Sampling::default() }
        };
        sampling.temperature = self.temperature.unwrap_or(sampling.temperature);
        sampling.top_k = self.top_k.or(sampling.top_k);
        sampling.top_p = self.top_p.or(sampling.top_p);
        sampling.min_p = self.min_p.or(sampling.min_p);
        sampling.repetition_penalty = self.repetition_penalty.unwrap_or(sampling.repetition_penalty);
        sampling
    }
}
