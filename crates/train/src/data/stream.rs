//! The stream of rows, which all ranks walk together.
//!
//! A packed row has one token more than inputs, and the next row starts with that
//! token, so every token is a target once. The first token of a document follows
//! the last one of another document and is masked.
//!
//! The lengths of earlier documents determine the documents of a row. A rank
//! that does not know them must tokenize other ranks' documents; lengths are
//! remembered, so this happens once. After counting, or after the first epoch, a
//! rank tokenizes only its own rows.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::block::{Block, BlockSettings, Plan, Segment};
use super::count::{Count, Measure};
use super::documents::Documents;
use super::error::DataError;
use super::order::DocumentOrder;
use super::row::{Row, RowBuilder};
use super::sample::{Sample, Sampler};
use super::state::Position;
use super::status::{DocumentStatus, DropReason};
use crate::config::RowLayout;

/// The number of epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epochs {
    /// Unlimited.
    Endless,
    /// This many.
    Times(u64),
}

impl Epochs {
    fn are_over(self, epoch: u64) -> bool {
        matches!(self, Self::Times(times) if epoch >= times)
    }
}

/// Whether a row is needed, or only the position after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    Row,
    Position,
}

pub(super) struct RowStream {
    pub(super) documents: Documents,
    pub(super) sampler: Sampler,
    pub(super) order: DocumentOrder,
    /// The block of the position, if rows are planned in blocks.
    pub(super) blocks: Option<Blocks>,
    pub(super) epochs: Epochs,
    pub(super) layout: RowLayout,
    /// Inputs per row.
    pub(super) size: usize,
    pub(super) pad: u32,
    pub(super) lengths: Lengths,
    /// The last tokenized document. Parts of a document follow each other, so
    /// one is enough.
    pub(super) latest: Option<(usize, Sample)>,
    /// The documents of the current batch, if rows are planned in blocks.
    pub(super) taken: Vec<usize>,
}

/// Rows that are planned in blocks.
pub(super) struct Blocks {
    pub(super) settings: BlockSettings,
    pub(super) current: Option<Block>,
}

/// The rest of a document.
struct Remainder {
    document: usize,
    from: usize,
    length: usize,
}

impl RowStream {
    /// Moves past the next row, and returns it if wanted; `None` after the last
    /// epoch.
    pub(super) fn next(
        &mut self,
        position: &mut Position,
        want: Want,
    ) -> Result<Option<Option<Row>>, DataError> {
        if self.layout == RowLayout::Pairs {
            return self.next_pair(position, want);
        }
        let mut builder = (want == Want::Row).then(|| RowBuilder::new(self.size));
        let taken = match self.layout {
            _ if self.blocks.is_some() => self.take_planned(position, builder.as_mut())?,
            RowLayout::Packed | RowLayout::BestFit => self.take_packed(position, builder.as_mut())?,
            RowLayout::Padded | RowLayout::Pairs => self.take_padded(position, builder.as_mut())?,
        };
        if taken < 2 {
            return Ok(None);
        }
        position.rows = position.rows.saturating_add(1);
        position.tokens = position.tokens.saturating_add(taken as u64 - 1);
        Ok(Some(builder.map(|builder| builder.finish(self.pad))))
    }

    /// Moves past the next document, which is a row.
    fn next_pair(&mut self, position: &mut Position, want: Want) -> Result<Option<Option<Row>>, DataError> {
        let Some(Remainder { document, length, .. }) = self.next_remainder(position)? else {
            return Ok(None);
        };
        let row = (want == Want::Row).then(|| self.pair_row(document)).transpose()?;
        position.advance(self.order.len());
        position.rows = position.rows.saturating_add(1);
        position.tokens = position.tokens.saturating_add(length as u64 - 1);
        Ok(Some(row))
    }

    /// Takes tokens until a row is full. The next row starts with the last of
    /// them.
    fn take_packed(
        &mut self,
        position: &mut Position,
        mut builder: Option<&mut RowBuilder>,
    ) -> Result<usize, DataError> {
        let mut taken = 0;
        let mut last = (position.epoch, position.place, position.offset);
        while taken <= self.size {
            let Some(remainder) = self.next_remainder(position)? else { break };
            let take = (remainder.length - remainder.from).min(self.size + 1 - taken);
            self.copy(&remainder, take, builder.as_deref_mut())?;
            taken += take;
            position.offset += take as u64;
            last = (position.epoch, position.place, position.offset - 1);
        }
        (position.epoch, position.place, position.offset) = last;
        Ok(taken)
    }

    /// Takes tokens of one document, which may continue in the next row.
    fn take_padded(
        &mut self,
        position: &mut Position,
        builder: Option<&mut RowBuilder>,
    ) -> Result<usize, DataError> {
        let Some(remainder) = self.next_remainder(position)? else { return Ok(0) };
        let take = (remainder.length - remainder.from).min(self.size + 1);
        self.copy(&remainder, take, builder)?;
        position.offset += take as u64 - 1;
        // A single token has no target.
        if remainder.from + take >= remainder.length {
            position.advance(self.order.len());
        }
        Ok(take)
    }

    /// Takes the next row of a block.
    fn take_planned(
        &mut self,
        position: &mut Position,
        builder: Option<&mut RowBuilder>,
    ) -> Result<usize, DataError> {
        let Some(mut blocks) = self.blocks.take() else { return Ok(0) };
        let taken = self.take_from(&mut blocks, position, builder);
        self.blocks = Some(blocks);
        taken
    }

    fn take_from(
        &mut self,
        blocks: &mut Blocks,
        position: &mut Position,
        builder: Option<&mut RowBuilder>,
    ) -> Result<usize, DataError> {
        let mut without_rows = 0_u64;
        while !self.epochs.are_over(position.epoch) {
            let block = self.block(blocks, (position.epoch, position.place))?;
            if position.offset == 0 {
                for place in position.place..block.end {
                    let document = self.order.at(position.epoch, place) as usize;
                    let status = self.lookup(document)?.status;
                    self.count(position, place, document, status);
                }
            }
            let (index, rows) = (position.offset, block.rows.len() as u64);
            if index < rows {
                let row = &block.rows[block.order.at(position.epoch, index) as usize];
                self.taken.extend(row.iter().map(|segment| segment.document));
                if let Some(builder) = builder {
                    for &Segment { document, from, take } in row {
                        let sample = match block.samples.entry(document) {
                            Entry::Occupied(known) => known.into_mut(),
                            Entry::Vacant(place) => place.insert(self.tokenize(document)?),
                        };
                        builder.push(sample, from, take);
                    }
                }
                let taken = row.iter().map(|segment| segment.take).sum();
                position.offset += 1;
                if position.offset == rows {
                    position.place = block.end - 1;
                    position.advance(self.order.len());
                }
                return Ok(taken);
            }
            without_rows = without_rows.saturating_add(block.end - position.place);
            if without_rows >= self.patience() {
                return Err(DataError::NoTargets { documents: self.documents.len() });
            }
            position.place = block.end - 1;
            position.advance(self.order.len());
        }
        Ok(0)
    }

    /// The block that starts at a place of an epoch, which is planned if it is
    /// another one.
    fn block<'b>(&mut self, blocks: &'b mut Blocks, start: (u64, u64)) -> Result<&'b mut Block, DataError> {
        let block = match blocks.current.take().filter(|block| block.start == start) {
            Some(block) => block,
            None => self.plan(&blocks.settings, start)?,
        };
        Ok(blocks.current.insert(block))
    }

    fn plan(&mut self, settings: &BlockSettings, start: (u64, u64)) -> Result<Block, DataError> {
        let (epoch, place) = start;
        let mut samples = HashMap::new();
        let (mut documents, mut tokens, mut end) = (Vec::new(), 0_u64, place);
        while end < self.order.len() && !settings.is_full(end - place, tokens) {
            let document = self.order.at(epoch, end) as usize;
            let length = match self.lengths.get(document) {
                Some(known) => known.length,
                None => {
                    let sample = self.tokenize(document)?;
                    let length = self.lengths.put(document, Measure::of(&sample)).length;
                    samples.insert(document, sample);
                    length
                }
            };
            documents.push((document, length));
            tokens += length as u64;
            end += 1;
        }
        let Plan { rows, .. } = settings.plan(&documents);
        let order = settings.order(place, rows.len());
        Ok(Block { start, end, rows, order, samples })
    }

    /// The sums over the measures of all documents.
    pub(super) fn count_rows(&self, measures: &[Measure]) -> Count {
        let by_epochs = self.planned_rows(measures).map_or_else(Vec::new, |rows| rows.by_epochs);
        let documents = measures.iter().copied().enumerate();
        Count::new(&self.whole_documents(documents), by_epochs)
    }

    /// The measures of documents, from those of their parts.
    pub(super) fn whole_documents(&self, measures: impl Iterator<Item = (usize, Measure)>) -> Vec<Measure> {
        let mut whole: Vec<Measure> = Vec::new();
        for (document, measure) in measures {
            match whole.last_mut().filter(|_| !self.documents.part(document).starts_document()) {
                None => whole.push(measure),
                Some(first) => {
                    first.tokens = first.tokens.saturating_add(measure.tokens);
                    first.targets = first.targets.saturating_add(measure.targets);
                    first.full_length = first.full_length.saturating_add(measure.full_length);
                    if let DocumentStatus::Dropped(_) = first.status {
                        first.status = measure.status;
                    }
                }
            }
        }
        whole
    }

    /// Rows of the block that starts at a place, if rows are planned.
    pub(super) fn rows_of_block(&mut self, epoch: u64, place: u64) -> Result<Option<u64>, DataError> {
        let Some(mut blocks) = self.blocks.take() else { return Ok(None) };
        let rows = self.block(&mut blocks, (epoch, place)).map(|block| Some(block.rows.len() as u64));
        self.blocks = Some(blocks);
        rows
    }

    /// Documents in a row without a token to train on, after which the run gives up.
    fn patience(&self) -> u64 {
        match self.order.is_finite() {
            true => self.order.len(),
            // A set of a mixture may have little weight.
            false => (self.documents.len() as u64).saturating_mul(64).max(1 << 20),
        }
    }

    /// Counts a document that is started, once.
    fn count(&self, position: &mut Position, place: u64, document: usize, status: DocumentStatus) {
        let number = position.epoch.saturating_mul(self.order.len()).saturating_add(place);
        if number < position.documents {
            return;
        }
        position.documents = number.saturating_add(1);
        if !self.documents.part(document).starts_document() {
            position.parts = position.parts.saturating_add(1);
            return;
        }
        match status {
            DocumentStatus::Dropped(reason) => position.dropped.add(reason),
            DocumentStatus::Truncated => position.truncated = position.truncated.saturating_add(1),
            DocumentStatus::Whole => {}
        }
    }

    fn copy(
        &mut self,
        remainder: &Remainder,
        take: usize,
        builder: Option<&mut RowBuilder>,
    ) -> Result<(), DataError> {
        if let Some(builder) = builder {
            let from = remainder.from;
            builder.push(self.sample(remainder.document)?, from, take);
        }
        Ok(())
    }

    /// Moves to the next document with tokens left.
    fn next_remainder(&mut self, position: &mut Position) -> Result<Option<Remainder>, DataError> {
        let documents = self.order.len();
        let mut dropped = 0;
        while !self.epochs.are_over(position.epoch) {
            // Count dropped documents within one epoch only: the order differs
            // between epochs.
            if position.place == 0 {
                dropped = 0;
            }
            let document = self.order.at(position.epoch, position.place) as usize;
            let known = self.lookup(document)?;
            self.count(position, position.place, document, known.status);
            if position.offset < known.length as u64 {
                let from = position.offset as usize;
                return Ok(Some(Remainder { document, from, length: known.length }));
            }
            if matches!(known.status, DocumentStatus::Dropped(_)) {
                dropped += 1;
                if dropped >= self.patience() {
                    return Err(DataError::NoTargets { documents: self.documents.len() });
                }
            }
            position.advance(documents);
        }
        Ok(None)
    }

    /// The length of a document, which is tokenized if unknown.
    pub(super) fn lookup(&mut self, document: usize) -> Result<DocumentLength, DataError> {
        if let Some(known) = self.lengths.get(document) {
            return Ok(known);
        }
        let measure = Measure::of(self.sample(document)?);
        Ok(self.lengths.put(document, measure))
    }

    /// The tokens of a document.
    pub(super) fn sample(&mut self, document: usize) -> Result<&Sample, DataError> {
        let latest = match self.latest.take() {
            Some((number, sample)) if number == document => (number, sample),
            _ => (document, self.tokenize(document)?),
        };
        Ok(&self.latest.insert(latest).1)
    }
}

/// The length and status of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DocumentLength {
    pub(super) length: usize,
    pub(super) status: DocumentStatus,
}

/// Known lengths of documents, in four bytes each.
pub(super) struct Lengths(Vec<u32>);

/// Flag of truncated documents.
const TRUNCATED: u32 = 1 << 31;

/// The codes of dropped documents by reason. Used documents have two tokens or
/// more, which are stored as three or more.
const DROPPED: [u32; DropReason::ALL.len()] = [1, 2, TRUNCATED | 1, TRUNCATED | 2, TRUNCATED];

impl Lengths {
    pub(super) fn unknown(documents: usize) -> Self {
        Self(vec![0; documents])
    }

    fn get(&self, document: usize) -> Option<DocumentLength> {
        let kept = self.0[document];
        if let Some(code) = DROPPED.iter().position(|&code| code == kept) {
            let status = DocumentStatus::Dropped(DropReason::ALL[code]);
            return Some(DocumentLength { length: 0, status });
        }
        // Stored plus one; zero means unknown.
        let length = (kept & !TRUNCATED).checked_sub(1)? as usize;
        let status = if kept & TRUNCATED != 0 { DocumentStatus::Truncated } else { DocumentStatus::Whole };
        Some(DocumentLength { length, status })
    }

    pub(super) fn put(&mut self, document: usize, measure: Measure) -> DocumentLength {
        let known = DocumentLength { length: measure.tokens as usize, status: measure.status };
        // A length that does not fit is measured again.
        let stored = measure.tokens.saturating_add(1);
        self.0[document] = match measure.status {
            DocumentStatus::Dropped(reason) => DROPPED[reason as usize],
            _ if stored >= TRUNCATED => 0,
            DocumentStatus::Truncated => stored | TRUNCATED,
            DocumentStatus::Whole => stored,
        };
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_document_keeps_its_length_and_status() {
        let dropped = DropReason::ALL.map(|reason| (0, DocumentStatus::Dropped(reason)));
        let used = [2, 3, 255, 256, TRUNCATED - 2].into_iter().flat_map(|tokens| {
            [DocumentStatus::Whole, DocumentStatus::Truncated].map(|status| (tokens, status))
        });
        for (tokens, status) in dropped.into_iter().chain(used) {
            let mut lengths = Lengths::unknown(1);
            assert_eq!(lengths.get(0), None);
            let measure = Measure { tokens, targets: 1, full_length: tokens, status };
            let put = lengths.put(0, measure);
            assert_eq!(put, DocumentLength { length: tokens as usize, status });
            assert_eq!(lengths.get(0), Some(put));
        }
        // Too long to remember.
        let mut lengths = Lengths::unknown(1);
        let status = DocumentStatus::Whole;
        lengths.put(0, Measure { tokens: TRUNCATED - 1, targets: 1, full_length: 0, status });
        assert_eq!(lengths.get(0), None);
    }
}
