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

use super::count::Measure;
use super::documents::Documents;
use super::error::DataError;
use super::order::Order;
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
    pub(super) order: Order,
    pub(super) epochs: Epochs,
    pub(super) layout: RowLayout,
    /// Inputs per row.
    pub(super) size: usize,
    pub(super) pad: u32,
    pub(super) lengths: Lengths,
    /// The last tokenized document. Parts of a document follow each other, so
    /// one is enough.
    pub(super) latest: Option<(usize, Sample)>,
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
            RowLayout::Packed => self.take_packed(position, builder.as_mut())?,
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
        position.advance(self.documents.len() as u64);
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
            position.advance(self.documents.len() as u64);
        }
        Ok(take)
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
        let documents = self.documents.len() as u64;
        let mut dropped = 0;
        while !self.epochs.are_over(position.epoch) {
            // Count dropped documents within one epoch only: the order differs
            // between epochs.
            if position.place == 0 {
                dropped = 0;
            }
            let document = self.order.at(position.epoch, position.place) as usize;
            let known = self.lookup(document)?;
            let number = position.epoch.saturating_mul(documents).saturating_add(position.place);
            if number >= position.documents {
                position.documents = number.saturating_add(1);
                match known.status {
                    DocumentStatus::Dropped(reason) => position.dropped.add(reason),
                    DocumentStatus::Truncated => position.truncated = position.truncated.saturating_add(1),
                    DocumentStatus::Whole => {}
                }
            }
            if position.offset < known.length as u64 {
                let from = position.offset as usize;
                return Ok(Some(Remainder { document, from, length: known.length }));
            }
            if matches!(known.status, DocumentStatus::Dropped(_)) {
                dropped += 1;
                if dropped >= documents {
                    return Err(DataError::NoTargets { documents: documents as usize });
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
const DROPPED: [u32; DropReason::ALL.len()] = [1, 2, TRUNCATED | 1, TRUNCATED | 2];

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
