//! What a loss knows of the batch, beside the result of the model.

use weightloom_dtensor::DTensor;
use weightloom_nn::IGNORED;

use super::MetricSums;
use crate::data::Supervision;
use crate::engine::MicroBatch;

/// What a loss needs beside the result of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LossNeeds {
    /// The documents that it trains on.
    pub documents: Supervision,
    /// The model that it compares with.
    pub reference: Reference,
    /// The weights of the model that it imitates.
    pub teacher: Option<String>,
    /// Names of the metrics that it reports.
    pub metrics: &'static [&'static str],
}

/// The model that a loss compares the trained one with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reference {
    /// None.
    #[default]
    None,
    /// The model before training.
    Initial,
}

/// Counts over the rows of all ranks in a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchTotals {
    /// Targets.
    pub targets: u64,
    /// Pairs, or labelled completions.
    pub examples: u64,
    /// Targets of chosen completions.
    pub chosen_targets: u64,
    /// Tokens of chosen completions and their prompts, without the first.
    pub chosen_tokens: u64,
}

impl BatchTotals {
    /// The counts of a rank's rows.
    pub fn of(micros: &[MicroBatch], documents: Supervision) -> Self {
        let mut totals = Self::default();
        for micro in micros {
            let rows = micro.rows_of_targets().map(Positions::of);
            for (number, Positions { targets, tokens }) in rows.enumerate() {
                totals.targets += targets;
                let is_first = match documents {
                    Supervision::Tokens => continue,
                    Supervision::Preferences => number.is_multiple_of(2),
                    Supervision::Labels => true,
                };
                if is_first {
                    totals.examples += u64::from(targets > 0);
                    totals.chosen_targets += targets;
                    totals.chosen_tokens += tokens;
                }
            }
        }
        totals
    }

    pub(crate) fn counts(&self) -> [u64; 4] {
        [self.targets, self.examples, self.chosen_targets, self.chosen_tokens]
    }

    pub(crate) fn from_counts([targets, examples, chosen_targets, chosen_tokens]: [u64; 4]) -> Self {
        Self { targets, examples, chosen_targets, chosen_tokens }
    }
}

/// Counts of a row's positions.
struct Positions {
    targets: u64,
    /// Up to the last target.
    tokens: u64,
}

impl Positions {
    fn of(row: &[i64]) -> Self {
        let counted = |target: &&i64| **target != IGNORED;
        let tokens = row.iter().rposition(|&target| target != IGNORED).map_or(0, |last| last as u64 + 1);
        Self { targets: row.iter().filter(counted).count() as u64, tokens }
    }
}

/// What a loss knows of the batch, as far as it [needs](LossNeeds) it.
#[derive(Clone, Copy, Default)]
pub struct LossBatch<'a> {
    /// This rank's rows of the micro-batch.
    pub rows: Option<&'a MicroBatch>,
    /// Counts over the whole batch.
    pub totals: BatchTotals,
    /// Log-probabilities of this rank's completions under the reference.
    pub reference: Option<&'a [f32]>,
    /// How far the model is from its reference over the whole batch: the mean log-ratio
    /// of mismatched completions, at least 0.
    pub divergence: f64,
    /// Logits of the teacher in `f32`, `[batch · time, vocabulary]`.
    pub teacher: Option<&'a DTensor>,
    /// Where metrics go.
    pub metrics: Option<&'a MetricSums>,
}
