//! Rows of epochs and how full they are, from the lengths of all documents.

use serde::{Deserialize, Serialize};

use super::block::Plan;
use super::count::{Measure, rows_of};
use super::parts::Part;
use super::stream::{Epochs, RowStream};
use crate::config::RowLayout;

/// Epochs whose rows are planned. Later ones count as the last of them.
const MOST_EPOCHS: u64 = 10_000;

/// How well documents fill rows, over an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PackingEfficiency {
    /// Share of the tokens of rows that are not padding.
    pub filled: f64,
    /// Share of the documents that continue in another row.
    pub cut: f64,
}

/// The rows of a run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PlannedRows {
    /// Rows of the first epoch, of the first two, and so on.
    pub(super) by_epochs: Vec<u64>,
    pub(super) efficiency: PackingEfficiency,
}

/// Sums over an epoch.
#[derive(Clone, Copy, Default)]
struct Sums {
    documents: u64,
    rows: u64,
    inputs: u64,
    cut: u64,
    tokens: u64,
}

impl RowStream {
    /// The rows of all epochs, from the measures of all documents; `None` if an
    /// epoch has no end.
    pub(super) fn planned_rows(&self, measures: &[Measure]) -> Option<PlannedRows> {
        if !self.order.is_finite() {
            return None;
        }
        let epochs = match self.epochs {
            Epochs::Endless => 1,
            Epochs::Times(times) => times.clamp(1, MOST_EPOCHS),
        };
        let first = self.sums(measures, 0);
        let by_epochs = match (&self.blocks, self.layout) {
            // Only here the order makes a difference.
            (Some(_), _) => {
                let later = (1..epochs).map(|epoch| self.sums(measures, epoch).rows);
                let mut total = 0_u64;
                let mut add = |rows: u64| {
                    total = total.saturating_add(rows);
                    total
                };
                std::iter::once(first.rows).chain(later).map(&mut add).collect()
            }
            (None, RowLayout::Padded | RowLayout::Pairs) => {
                (1..=epochs).map(|all| first.rows.saturating_mul(all)).collect()
            }
            (None, _) => {
                let size = self.size as u64;
                (1..=epochs).map(|all| rows_of(first.tokens.saturating_mul(all), size)).collect()
            }
        };
        let share = |part: u64, of: u64| if of == 0 { 0.0 } else { part as f64 / of as f64 };
        let room = self.size.saturating_mul(self.sampler.supervision.sequences()) as u64;
        let efficiency = PackingEfficiency {
            filled: share(first.inputs, first.rows.saturating_mul(room)),
            cut: share(first.cut, first.documents),
        };
        Some(PlannedRows { by_epochs, efficiency })
    }

    fn sums(&self, measures: &[Measure], epoch: u64) -> Sums {
        let mut sums = Sums::default();
        let size = self.size as u64;
        let mut block = Vec::new();
        let (mut block_tokens, mut block_places) = (0, 0);
        for place in 0..self.order.len() {
            let document = self.order.at(epoch, place) as usize;
            let tokens = measures.get(document).map_or(0, |measure| u64::from(measure.tokens));
            let part = self.documents.part(document);
            sums.documents += u64::from(tokens > 0 && part.starts_document());
            // A text in several parts has several rows.
            sums.cut += u64::from(tokens > 0 && part == Part::First);
            match (&self.blocks, self.layout) {
                (Some(blocks), _) => {
                    block.push((document, tokens as usize));
                    block_tokens += tokens;
                    block_places += 1;
                    if blocks.settings.is_full(block_places, block_tokens) || place + 1 == self.order.len() {
                        let plan = blocks.settings.plan(&block);
                        let is_whole = |document: &&usize| self.documents.part(**document) == Part::Whole;
                        sums.cut += plan.cut.iter().filter(is_whole).count() as u64;
                        sums.rows += plan.rows.len() as u64;
                        sums.inputs += inputs(&plan);
                        block.clear();
                        (block_tokens, block_places) = (0, 0);
                    }
                }
                (None, RowLayout::Pairs) => {
                    sums.rows += u64::from(tokens > 0);
                    sums.inputs += tokens.saturating_sub(1);
                }
                (None, RowLayout::Padded) => {
                    let rows = rows_of(tokens, size);
                    sums.rows += rows;
                    sums.inputs += tokens.saturating_sub(1);
                    sums.cut += u64::from(rows > 1);
                }
                (None, _) if tokens > 1 => {
                    // The rows of its first and its last target.
                    let rows = [sums.tokens, sums.tokens + tokens - 2].map(|target| target / size);
                    sums.cut += u64::from(rows[0] != rows[1]);
                }
                (None, _) => {}
            }
            sums.tokens += tokens;
        }
        if self.blocks.is_none() && matches!(self.layout, RowLayout::Packed | RowLayout::BestFit) {
            sums.rows = rows_of(sums.tokens, size);
            sums.inputs = sums.tokens.saturating_sub(1);
        }
        sums
    }
}

/// Inputs of all rows: all tokens but the last of each.
fn inputs(plan: &Plan) -> u64 {
    let tokens: u64 = plan.rows.iter().flatten().map(|segment| segment.take as u64).sum();
    tokens - plan.rows.len() as u64
}
