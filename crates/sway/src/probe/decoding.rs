//! How a probe lets models generate text.

use ring::digest::{SHA256, digest};

use super::context::ProbeContext;
use super::kind::FieldProblem;
use super::lookup::{Stop, all};
use crate::prompt::Prompt;
use crate::question::Query;
use crate::view::{Real, View};

/// The most samples of a prompt.
const MOST_SAMPLES: usize = 64;

/// How a probe lets models generate text: greedily, or by seeded sampling.
///
/// Both views draw the same random numbers after a prompt, so that texts differ
/// only where the models do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Decoding {
    pub(crate) max_new_tokens: usize,
    /// 0 is greedy.
    pub(crate) temperature: f64,
    pub(crate) top_p: f64,
    /// By default the seed of the suite.
    pub(crate) seed: Option<u64>,
    /// Texts per prompt.
    pub(crate) samples: usize,
}

impl Decoding {
    /// Problems with the fields of a probe.
    pub(crate) fn problems(&self) -> Vec<FieldProblem> {
        let greedy = self.temperature == 0.0;
        FieldProblem::of_broken_rules([
            (self.temperature >= 0.0 && self.temperature.is_finite(), "temperature", "must be at least 0"),
            (self.top_p > 0.0 && self.top_p <= 1.0, "top_p", "must be above 0 and at most 1"),
            ((1..=MOST_SAMPLES).contains(&self.samples), "samples", "must be from 1 to 64"),
            (!greedy || self.samples <= 1, "samples", "needs a `temperature` above 0"),
        ])
    }

    /// The texts that a view generates after a prompt.
    pub(crate) fn texts<'a>(
        &self,
        context: &ProbeContext<'a>,
        view: &View,
        prompt: &Prompt,
    ) -> Result<Vec<&'a str>, Stop> {
        if self.temperature == 0.0 {
            return Ok(vec![context.answers.generation(view, prompt, self.max_new_tokens)?]);
        }
        all((0..self.samples).map(|sample| {
            let query = Query::Sample {
                prompt: prompt.clone(),
                max_new_tokens: self.max_new_tokens,
                temperature: Real(self.temperature),
                top_p: Real(self.top_p),
                seed: seed_of(self.seed.unwrap_or(context.seed), sample, &prompt.to_string()),
            };
            context.answers.text_of(view, query)
        }))
    }
}

/// The seed of one text. Prompts and samples have unrelated random numbers.
/// Servers accept 31 bits.
fn seed_of(seed: u64, sample: usize, prompt: &str) -> u64 {
    let hash = digest(&SHA256, format!("{seed} {sample} {prompt}").as_bytes());
    let bytes = hash.as_ref();
    u64::from(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WARM: Decoding =
        Decoding { max_new_tokens: 8, temperature: 0.8, top_p: 0.9, seed: None, samples: 3 };

    #[test]
    fn seeds_differ_between_prompts_and_samples() {
        let seeds = [seed_of(0, 0, "a"), seed_of(0, 1, "a"), seed_of(0, 0, "b"), seed_of(1, 0, "a")];
        for (index, seed) in seeds.iter().enumerate() {
            assert!(*seed < 1 << 31 && !seeds[..index].contains(seed));
        }
        assert_eq!(seed_of(7, 2, "a"), seed_of(7, 2, "a"));
    }

    #[test]
    fn impossible_values_are_problems() {
        assert!(WARM.problems().is_empty());
        let fields = |decoding: Decoding| -> Vec<String> {
            decoding.problems().into_iter().map(|problem| problem.field).collect()
        };
        assert_eq!(fields(Decoding { temperature: -1.0, top_p: 0.0, ..WARM }), ["temperature", "top_p"]);
        assert_eq!(fields(Decoding { temperature: f64::NAN, top_p: 1.5, ..WARM }), ["temperature", "top_p"]);
        assert_eq!(fields(Decoding { samples: 0, ..WARM }), ["samples"]);
        assert_eq!(fields(Decoding { temperature: 0.0, ..WARM }), ["samples"]);
    }
}
