//! Mining: the prompts in the user's data on which fine-tuning changed the model
//! most.
//!
//! Whatever differs most was partly selected for its noise, so a test on the same
//! prompts would be biased. Mining divides the data by a hash of each text. On
//! one half it measures and selects. From that half alone it predicts which
//! prompts of the other half differ most, by the words they share, and then
//! measures whether they do.

mod candidates;
mod error;
mod similarity;
mod suite;

#[cfg(test)]
mod tests;

use ring::digest::{SHA256, digest};
use serde::Serialize;

pub use candidates::Candidates;
pub use error::MineError;
pub use suite::mined_suite;

use self::similarity::WordIndex;
use crate::answer_store::AnswerStore;
use crate::backend::{Backend, Capability};
use crate::cache::Cache;
use crate::chat::ChatSettings;
use crate::numbers::permutation_test::permutation_test;
use crate::numbers::{DivergenceKind, mean};
use crate::prompt::Prompt;
use crate::question::{Query, Question};
use crate::runner::{Observer, answer_all};
use crate::statistics::Statistics;
use crate::view::View;

/// The fewest prompts in each half.
const LEAST: usize = 16;

/// The most significant p-value that confirms a selection.
const LEVEL: f64 = 0.05;

/// The largest share of a half that is selected: one in this many.
const SHARE: usize = 4;

/// What to mine, and how much.
#[derive(Clone, Debug)]
pub struct Mining<'a> {
    /// Prompts from the user's data.
    pub prompts: &'a [String],
    /// The most prompts to select.
    pub top: usize,
    /// How many of the most likely tokens to compare, where the backend does not
    /// see the whole vocabulary.
    pub top_k: usize,
    /// Seed of the permutation test.
    pub seed: u64,
}

/// A prompt with the divergence of both models after it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MinedPrompt {
    /// The prompt.
    pub prompt: String,
    /// Jensen-Shannon divergence of the next token, in nats.
    pub divergence: f64,
}

/// The result of mining.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mined {
    /// The prompts of the first half that differ most, the largest divergence
    /// first.
    pub selected: Vec<MinedPrompt>,
    /// The mean divergence of the first half.
    pub mean: f64,
    /// The prompts of the second half that were predicted to differ most.
    pub predicted: Vec<MinedPrompt>,
    /// All other prompts of the second half.
    pub others: Vec<MinedPrompt>,
    /// The mean divergence of the predicted prompts.
    pub predicted_mean: f64,
    /// The mean divergence of the others.
    pub others_mean: f64,
    /// One-sided p-value that the predicted prompts differ more than the others.
    pub p_value: f64,
    /// Prompts that could not be asked.
    pub failed: usize,
}

impl Mined {
    /// Whether the selection holds on the second half.
    pub fn is_confirmed(&self) -> bool {
        self.p_value <= LEVEL
    }
}

/// The half of the data that a text is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// Prompts are selected here.
    Selection,
    /// The selection is tested here.
    Test,
}

impl Half {
    /// The half of a text, by a hash: neither order nor other texts matter.
    pub fn of(text: &str) -> Self {
        match digest(&SHA256, text.as_bytes()).as_ref()[0] & 1 {
            0 => Self::Selection,
            _ => Self::Test,
        }
    }
}

/// Finds the prompts that differ most, and tests whether that generalizes.
pub fn mine(
    mining: &Mining<'_>,
    backend: &mut dyn Backend,
    cache: Option<&mut Cache>,
    observer: &mut dyn Observer,
) -> Result<Mined, MineError> {
    let mut prompts: Vec<&String> = mining.prompts.iter().collect();
    prompts.sort_unstable();
    prompts.dedup();
    let count = |half: Half| prompts.iter().filter(|prompt| Half::of(prompt) == half).count();
    check(count(Half::Selection).min(count(Half::Test)))?;
    let measured = measure(mining, &prompts, backend, cache, observer)?;
    let failed = prompts.len() - measured.len();
    let (mut first, second): (Vec<MinedPrompt>, Vec<MinedPrompt>) =
        measured.into_iter().partition(|one| Half::of(&one.prompt) == Half::Selection);
    check(first.len().min(second.len()))?;
    let (predicted, others) = predict(&first, second, mining.top);
    let mean_of = |prompts: &[MinedPrompt]| {
        let values: Vec<f64> = prompts.iter().map(|one| one.divergence).collect();
        (mean(&values).unwrap_or(0.0), values)
    };
    let (predicted_mean, predicted_values) = mean_of(&predicted);
    let (others_mean, others_values) = mean_of(&others);
    let (mean, _) = mean_of(&first);
    first.sort_by(by_divergence);
    first.truncate(most(first.len(), mining.top));
    Ok(Mined {
        p_value: permutation_test(&predicted_values, &others_values, mining.seed),
        selected: first,
        mean,
        predicted,
        others,
        predicted_mean,
        others_mean,
        failed,
    })
}

fn check(fewest: usize) -> Result<(), MineError> {
    if fewest < LEAST { Err(MineError::TooFew { found: fewest, least: LEAST }) } else { Ok(()) }
}

/// How many prompts of a half are selected.
fn most(count: usize, top: usize) -> usize {
    top.min(count / SHARE).max(1)
}

/// The largest divergence first; equal ones in the order of their texts.
fn by_divergence(one: &MinedPrompt, other: &MinedPrompt) -> std::cmp::Ordering {
    other.divergence.total_cmp(&one.divergence).then_with(|| one.prompt.cmp(&other.prompt))
}

/// The divergence after each prompt that can be asked.
fn measure(
    mining: &Mining<'_>,
    prompts: &[&String],
    backend: &mut dyn Backend,
    cache: Option<&mut Cache>,
    observer: &mut dyn Observer,
) -> Result<Vec<MinedPrompt>, MineError> {
    let whole = backend.description().capabilities.contains(&Capability::FullVocabulary);
    // As the suite that is written asks them.
    let rendering = ChatSettings::default().rendering(None, &backend.chat_support(), Statistics::Paired);
    let rendered: Vec<Prompt> =
        prompts.iter().map(|prompt| rendering.apply(&Prompt::from(prompt.as_str()))).collect();
    let next = |view: &View, prompt: &Prompt| {
        Question::new(view, Query::Next { prompt: prompt.clone(), top_k: mining.top_k })
    };
    let questions: Vec<Question> = rendered
        .iter()
        .flat_map(|prompt| match whole {
            true => {
                let query = Query::Divergence { prompt: prompt.clone(), from: View::Base };
                vec![Question::new(&View::Tuned, query)]
            }
            false => vec![next(&View::Base, prompt), next(&View::Tuned, prompt)],
        })
        .collect();
    let answers = answer_all(&questions, backend, cache, observer)?;
    let divergence = |prompt: &Prompt, answers: &AnswerStore| -> Option<f64> {
        if whole {
            return answers.divergence(&View::Tuned, &View::Base, prompt).ok().map(|found| found.js);
        }
        let base = answers.next_token(&View::Base, prompt, mining.top_k).ok()?;
        let tuned = answers.next_token(&View::Tuned, prompt, mining.top_k).ok()?;
        DivergenceKind::Js.between(base, tuned).ok()
    };
    let found = prompts.iter().zip(&rendered).filter_map(|(prompt, rendered)| {
        let divergence = divergence(rendered, &answers).filter(|found| found.is_finite())?;
        Some(MinedPrompt { prompt: (*prompt).clone(), divergence })
    });
    Ok(found.collect())
}

/// Divides the second half into the prompts that the first half predicts to
/// differ most, and the others. Their own divergences are not looked at.
fn predict(
    first: &[MinedPrompt],
    second: Vec<MinedPrompt>,
    top: usize,
) -> (Vec<MinedPrompt>, Vec<MinedPrompt>) {
    let index = WordIndex::new(first.iter().map(|one| (one.prompt.as_str(), one.divergence)));
    let mut ranked: Vec<(f64, MinedPrompt)> =
        second.into_iter().map(|one| (index.predict(&one.prompt), one)).collect();
    ranked.sort_by(|one, other| other.0.total_cmp(&one.0).then_with(|| one.1.prompt.cmp(&other.1.prompt)));
    let mut predicted: Vec<MinedPrompt> = ranked.into_iter().map(|(_, one)| one).collect();
    let others = predicted.split_off(most(predicted.len(), top));
    (predicted, others)
}
