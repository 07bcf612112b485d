//! A backend with canned answers, for tests.
//!
//! Its defaults are those of dlm-sway's dummy. Its noise has the same
//! distribution, from another generator.

use std::collections::{BTreeSet, HashMap};

use ring::digest::{SHA256, digest};

use super::{AnswerSink, Backend, Capability, Description};
use crate::answer::{Answer, CompletionScore, Distribution, Divergence, Rolling, TokenNames};
use crate::error::{BackendError, QueryError};
use crate::numbers::DivergenceKind;
use crate::numbers::pcg64::Pcg64;
use crate::question::{Query, Question};
use crate::view::View;

const VOCABULARY: usize = 1000;
/// Log-likelihood of a completion without a canned one.
const COMPLETION: f64 = -10.0;
/// Length of an embedding.
const EMBEDDING: usize = 32;

/// The canned answers of one model.
#[derive(Clone, Debug, Default)]
pub struct Canned {
    /// Generations by prompt.
    pub generations: HashMap<String, String>,
    /// Log-likelihoods by prompt and completion.
    pub completions: HashMap<(String, String), f64>,
    /// Log-probabilities of all tokens but the first, by text.
    pub texts: HashMap<String, Vec<f32>>,
    /// Next-token distributions by prompt.
    pub distributions: HashMap<String, Distribution>,
}

/// A backend with canned answers.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Dummy {
    pub base: Canned,
    pub tuned: Canned,
    /// Number of questions answered.
    pub answered: usize,
    /// Number of questions after which it fails.
    pub fail_after: Option<usize>,
    pub(crate) description: Description,
}

impl Default for Dummy {
    fn default() -> Self {
        Self::new(Canned::default(), Canned::default())
    }
}

impl Dummy {
    /// A backend with the answers of two models.
    pub fn new(base: Canned, tuned: Canned) -> Self {
        let capabilities = BTreeSet::from([
            Capability::Differential,
            Capability::Scalable,
            Capability::NullCalibrated,
            Capability::Preflight,
            Capability::FullVocabulary,
            Capability::Embedding,
        ]);
        let description = Description {
            kind: "dummy".to_owned(),
            base: "dummy".to_owned(),
            adapter: None,
            capabilities,
            notes: Vec::new(),
            identity: None,
        };
        Self { base, tuned, answered: 0, fail_after: None, description }
    }

    /// Removes a capability.
    pub fn without(mut self, capability: Capability) -> Self {
        self.description.capabilities.remove(&capability);
        self
    }

    /// Sets the identity for caching.
    pub fn with_identity(mut self, identity: &str) -> Self {
        self.description.identity = Some(identity.to_owned());
        self.description.capabilities.insert(Capability::CacheIdentity);
        self
    }

    fn reply(&self, question: &Question) -> Result<Answer, QueryError> {
        let view = &question.view;
        match &question.query {
            Query::Next { prompt, top_k } => {
                Ok(Answer::Distribution(truncate(self.distribution(view, &prompt.to_string())?, *top_k)))
            }
            Query::Divergence { prompt, from } => {
                let (base, tuned) = (
                    self.distribution(from, &prompt.to_string())?,
                    self.distribution(view, &prompt.to_string())?,
                );
                let of = |kind: DivergenceKind| {
                    kind.between(&base, &tuned)
                        .map_err(|error| QueryError::Failed { message: error.to_string() })
                };
                Ok(Answer::Divergence(Divergence {
                    js: of(DivergenceKind::Js)?,
                    kl: of(DivergenceKind::Kl)?,
                }))
            }
            Query::Completion { prompt, completion } => {
                if completion.is_empty() {
                    return Err(QueryError::NoTokens {
                        prompt: prompt.to_string(),
                        completion: String::new(),
                    });
                }
                let key = (prompt.to_string(), completion.clone());
                let of = |side: &Canned| side.completions.get(&key).copied().unwrap_or(COMPLETION);
                let total = self.interpolate(view, of(&self.base), of(&self.tuned))?;
                Ok(Answer::Completion(CompletionScore { total, tokens: 1 }))
            }
            Query::Text { text } => {
                let base = rolling(&self.base, text, -2.0);
                let tuned = rolling(&self.tuned, text, -1.5);
                let mut logprobs = Vec::new();
                for (base, tuned) in base.iter().zip(&tuned) {
                    logprobs.push(self.interpolate(view, f64::from(*base), f64::from(*tuned))? as f32);
                }
                let total = logprobs.iter().map(|logprob| f64::from(*logprob)).sum();
                Ok(Answer::Rolling(Rolling { tokens: logprobs.len() + 1, logprobs, total }))
            }
            Query::Generate { prompt, .. } | Query::Sample { prompt, .. } => {
                let side = match view {
                    View::Tuned => &self.tuned,
                    View::Scaled(strength) if strength.0 >= 0.5 => &self.tuned,
                    _ => &self.base,
                };
                let found = side.generations.get(&prompt.to_string()).cloned();
                found.map(Answer::Text).ok_or_else(|| QueryError::Failed {
                    message: format!("no canned generation for {:?}", prompt.to_string()),
                })
            }
            Query::Embedding { text } => Ok(Answer::Embedding(letter_counts(text))),
            Query::Filler { .. } => Err(self.unsupported("fillers")),
        }
    }

    fn unsupported(&self, query: &str) -> QueryError {
        QueryError::Unsupported { backend: self.description.kind.clone(), query: query.to_owned() }
    }

    /// Interpolates between base and tuned; noise gives the value of the base.
    fn interpolate(&self, view: &View, base: f64, tuned: f64) -> Result<f64, QueryError> {
        match view {
            View::Base | View::Noise { .. } => Ok(base),
            View::Tuned => Ok(tuned),
            View::Scaled(strength) => Ok((1.0 - strength.0) * base + strength.0 * tuned),
            View::Matched { .. } | View::Without { .. } => Err(self.unsupported(&view.to_string())),
        }
    }

    fn distribution(&self, view: &View, prompt: &str) -> Result<Distribution, QueryError> {
        let base = || self.base.distributions.get(prompt).cloned().unwrap_or_else(base_distribution);
        let tuned = || self.tuned.distributions.get(prompt).cloned().unwrap_or_else(tuned_distribution);
        match view {
            View::Tuned => Ok(tuned()),
            View::Noise { seed, init_scale, rank_scale } => {
                Ok(add_noise(base(), *seed, prompt, init_scale.0 * rank_scale.0.sqrt()))
            }
            _ => {
                let mut blended = base();
                for (logprob, tuned) in blended.logprobs.iter_mut().zip(tuned().logprobs) {
                    *logprob = self.interpolate(view, f64::from(*logprob), f64::from(tuned))? as f32;
                }
                Ok(blended)
            }
        }
    }
}

/// A distribution over tokens 0 to 7.
pub fn over_eight(logprobs: [f32; 8]) -> Distribution {
    let left = 1.0 - logprobs.iter().map(|logprob| f64::from(*logprob).exp()).sum::<f64>();
    Distribution {
        tokens: TokenNames::Ids((0..8).collect()),
        logprobs: logprobs.to_vec(),
        vocabulary: Some(VOCABULARY),
        tail: (left > 1e-12).then(|| left.ln()),
    }
}

fn base_distribution() -> Distribution {
    over_eight([-0.1, -5.0, -5.0, -5.0, -5.0, -5.0, -5.0, -5.0])
}

/// Almost uniform, in increasing order.
fn tuned_distribution() -> Distribution {
    let step = 2e-4 / 7.0;
    over_eight(std::array::from_fn(|index| (-(8f64.ln()) + (-1e-4 + step * index as f64)) as f32))
}

/// Adds normal noise to every log-probability, and normalizes.
fn add_noise(mut base: Distribution, seed: u64, prompt: &str, std_dev: f64) -> Distribution {
    let hash = digest(&SHA256, prompt.as_bytes());
    let offset = hash.as_ref()[..4].iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    let mut generator = Pcg64::new(seed.wrapping_add(offset % 1_000_003));
    for logprob in &mut base.logprobs {
        *logprob += (generator.normal() * std_dev) as f32;
    }
    let max = base.logprobs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f32 = base.logprobs.iter().map(|logprob| (logprob - max).exp()).sum();
    for logprob in &mut base.logprobs {
        *logprob -= max + total.ln();
    }
    base
}

fn truncate(mut found: Distribution, top_k: usize) -> Distribution {
    found.logprobs.truncate(top_k);
    match &mut found.tokens {
        TokenNames::Ids(ids) => ids.truncate(top_k),
        TokenNames::Strings(strings) => strings.truncate(top_k),
    }
    found
}

fn rolling(side: &Canned, text: &str, default: f32) -> Vec<f32> {
    side.texts.get(text).cloned().unwrap_or_else(|| {
        let words = text.split_whitespace().count().max(1);
        vec![default; words - 1]
    })
}

/// Counts of each letter, normalized to unit length.
fn letter_counts(text: &str) -> Vec<f32> {
    let mut counts = vec![0f32; EMBEDDING];
    for character in text.chars().filter(|character| character.is_alphanumeric()) {
        counts[character.to_ascii_lowercase() as usize % EMBEDDING] += 1.0;
    }
    let norm = counts.iter().map(|count| count * count).sum::<f32>().sqrt();
    if norm > 0.0 {
        for count in &mut counts {
            *count /= norm;
        }
    }
    counts
}

impl Backend for Dummy {
    fn description(&self) -> &Description {
        &self.description
    }

    fn answer(&mut self, questions: &[Question], sink: &mut dyn AnswerSink) -> Result<(), BackendError> {
        for (index, question) in questions.iter().enumerate() {
            if sink.is_cancelled() {
                return Ok(());
            }
            if self.fail_after.is_some_and(|after| self.answered >= after) {
                return Err(BackendError {
                    backend: self.description.kind.clone(),
                    message: "fails after `fail_after` questions".to_owned(),
                    hint: None,
                });
            }
            self.answered += 1;
            sink.answered(index, self.reply(question));
        }
        Ok(())
    }

    fn preflight(&mut self) -> Result<(), BackendError> {
        for view in [View::Base, View::Tuned] {
            let found = self.distribution(&view, "preflight").map(|found| truncate(found, 8));
            let problem = match found {
                Ok(found) => {
                    found.logprobs.iter().find(|logprob| !logprob.is_finite()).map(ToString::to_string)
                }
                Err(error) => Some(error.to_string()),
            };
            if let Some(message) = problem {
                return Err(BackendError {
                    backend: self.description.kind.clone(),
                    message: format!("the view `{view}` returned {message}"),
                    hint: None,
                });
            }
        }
        Ok(())
    }
}
