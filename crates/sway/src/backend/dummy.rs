//! A backend without a model, for tests: it says what it was told to say.
//!
//! Its defaults are those of dlm-sway's. Its noise is our own: the same in
//! kind, drawn by another generator.

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
/// What a completion scores that nothing was said of.
const COMPLETION: f64 = -10.0;
/// How long its vectors of texts are.
const LETTERS: usize = 32;

/// What one side says.
#[derive(Clone, Debug, Default)]
pub struct Canned {
    /// Texts by prompt.
    pub writings: HashMap<String, String>,
    /// Scores by prompt and completion.
    pub completions: HashMap<(String, String), f64>,
    /// Logarithms of each token but the first, by text.
    pub texts: HashMap<String, Vec<f32>>,
    /// Distributions by prompt.
    pub distributions: HashMap<String, Distribution>,
}

/// A backend that says what it was told to say.
#[derive(Clone, Debug)]
pub struct Dummy {
    /// What the base says.
    pub base: Canned,
    /// What the tuned model says.
    pub tuned: Canned,
    /// How many questions were asked.
    pub asked: usize,
    /// How many questions it answers before it is gone.
    pub gone_after: Option<usize>,
    pub(crate) description: Description,
}

impl Default for Dummy {
    fn default() -> Self {
        Self::new(Canned::default(), Canned::default())
    }
}

impl Dummy {
    /// A backend of two sides.
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
        Self { base, tuned, asked: 0, gone_after: None, description }
    }

    /// The same without some of what it can do.
    pub fn without(mut self, capability: Capability) -> Self {
        self.description.capabilities.remove(&capability);
        self
    }

    /// The same under a name by which answers can be kept.
    pub fn with_identity(mut self, identity: &str) -> Self {
        self.description.identity = Some(identity.to_owned());
        self.description.capabilities.insert(Capability::CacheIdentity);
        self
    }

    fn reply(&self, question: &Question) -> Result<Answer, QueryError> {
        let view = &question.view;
        match &question.query {
            Query::Next { prompt, top_k } => {
                Ok(Answer::Distribution(kept(self.distribution(view, prompt)?, *top_k)))
            }
            Query::Divergence { prompt, from } => {
                let (base, tuned) = (self.distribution(from, prompt)?, self.distribution(view, prompt)?);
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
                    return Err(QueryError::NoTokens { prompt: prompt.clone(), completion: String::new() });
                }
                let key = (prompt.clone(), completion.clone());
                let of = |side: &Canned| side.completions.get(&key).copied().unwrap_or(COMPLETION);
                let total = self.blend(view, of(&self.base), of(&self.tuned))?;
                Ok(Answer::Completion(CompletionScore { total, tokens: 1 }))
            }
            Query::Text { text } => {
                let base = rolling(&self.base, text, -2.0);
                let tuned = rolling(&self.tuned, text, -1.5);
                let mut logprobs = Vec::new();
                for (base, tuned) in base.iter().zip(&tuned) {
                    logprobs.push(self.blend(view, f64::from(*base), f64::from(*tuned))? as f32);
                }
                let total = logprobs.iter().map(|logprob| f64::from(*logprob)).sum();
                Ok(Answer::Rolling(Rolling { tokens: logprobs.len() + 1, logprobs, total }))
            }
            Query::Generate { prompt, .. } => {
                let side = match view {
                    View::Tuned => &self.tuned,
                    View::Scaled(strength) if strength.0 >= 0.5 => &self.tuned,
                    _ => &self.base,
                };
                let found = side.writings.get(prompt).cloned();
                found.map(Answer::Text).ok_or_else(|| QueryError::Failed {
                    message: format!("nothing is written behind {prompt:?}"),
                })
            }
            Query::Embedding { text } => Ok(Answer::Embedding(letters(text))),
            Query::Filler { .. } => Err(self.not_able("fillers")),
        }
    }

    fn not_able(&self, query: &str) -> QueryError {
        QueryError::Unsupported { backend: self.description.kind.clone(), query: query.to_owned() }
    }

    /// A number of a view between those of both sides. Noise leaves the base's.
    fn blend(&self, view: &View, base: f64, tuned: f64) -> Result<f64, QueryError> {
        match view {
            View::Base | View::Noise { .. } => Ok(base),
            View::Tuned => Ok(tuned),
            View::Scaled(strength) => Ok((1.0 - strength.0) * base + strength.0 * tuned),
            View::Matched { .. } | View::Without { .. } => Err(self.not_able(&view.to_string())),
        }
    }

    fn distribution(&self, view: &View, prompt: &str) -> Result<Distribution, QueryError> {
        let base = || self.base.distributions.get(prompt).cloned().unwrap_or_else(base_distribution);
        let tuned = || self.tuned.distributions.get(prompt).cloned().unwrap_or_else(tuned_distribution);
        match view {
            View::Tuned => Ok(tuned()),
            View::Noise { seed, init_scale, rank_scale } => {
                Ok(noisy(base(), *seed, prompt, init_scale.0 * rank_scale.0.sqrt()))
            }
            _ => {
                let mut blended = base();
                for (logprob, tuned) in blended.logprobs.iter_mut().zip(tuned().logprobs) {
                    *logprob = self.blend(view, f64::from(*logprob), f64::from(tuned))? as f32;
                }
                Ok(blended)
            }
        }
    }
}

/// A distribution over the tokens 0 to 7.
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

/// All but even, from the unlikeliest to the likeliest.
fn tuned_distribution() -> Distribution {
    let step = 2e-4 / 7.0;
    over_eight(std::array::from_fn(|place| (-(8f64.ln()) + (-1e-4 + step * place as f64)) as f32))
}

/// Normal noise on every logarithm, made into a distribution again.
fn noisy(mut base: Distribution, seed: u64, prompt: &str, deviation: f64) -> Distribution {
    let hash = digest(&SHA256, prompt.as_bytes());
    let offset = hash.as_ref()[..4].iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    let mut generator = Pcg64::new(seed.wrapping_add(offset % 1_000_003));
    for logprob in &mut base.logprobs {
        *logprob += (generator.normal() * deviation) as f32;
    }
    let most = base.logprobs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f32 = base.logprobs.iter().map(|logprob| (logprob - most).exp()).sum();
    for logprob in &mut base.logprobs {
        *logprob -= most + total.ln();
    }
    base
}

fn kept(mut found: Distribution, top: usize) -> Distribution {
    found.logprobs.truncate(top);
    match &mut found.tokens {
        TokenNames::Ids(ids) => ids.truncate(top),
        TokenNames::Strings(strings) => strings.truncate(top),
    }
    found
}

fn rolling(side: &Canned, text: &str, usual: f32) -> Vec<f32> {
    side.texts.get(text).cloned().unwrap_or_else(|| {
        let words = text.split_whitespace().count().max(1);
        vec![usual; words - 1]
    })
}

/// How often each letter occurs, as a vector of the length 1.
fn letters(text: &str) -> Vec<f32> {
    let mut counts = vec![0f32; LETTERS];
    for character in text.chars().filter(|character| character.is_alphanumeric()) {
        counts[character.to_ascii_lowercase() as usize % LETTERS] += 1.0;
    }
    let length = counts.iter().map(|count| count * count).sum::<f32>().sqrt();
    if length > 0.0 {
        for count in &mut counts {
            *count /= length;
        }
    }
    counts
}

impl Backend for Dummy {
    fn description(&self) -> &Description {
        &self.description
    }

    fn answer(&mut self, questions: &[Question], sink: &mut dyn AnswerSink) -> Result<(), BackendError> {
        for (place, question) in questions.iter().enumerate() {
            if sink.is_cancelled() {
                return Ok(());
            }
            if self.gone_after.is_some_and(|after| self.asked >= after) {
                return Err(BackendError {
                    backend: self.description.kind.clone(),
                    message: "it is gone".to_owned(),
                    hint: None,
                });
            }
            self.asked += 1;
            sink.answered(place, self.reply(question));
        }
        Ok(())
    }

    fn preflight(&mut self) -> Result<(), BackendError> {
        for view in [View::Base, View::Tuned] {
            let found = self.distribution(&view, "preflight").map(|found| kept(found, 8));
            let broken = match found {
                Ok(found) => {
                    found.logprobs.iter().find(|logprob| !logprob.is_finite()).map(ToString::to_string)
                }
                Err(error) => Some(error.to_string()),
            };
            if let Some(message) = broken {
                return Err(BackendError {
                    backend: self.description.kind.clone(),
                    message: format!("{view} gave {message}"),
                    hint: None,
                });
            }
        }
        Ok(())
    }
}
