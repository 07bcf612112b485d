//! The stream of rows that all ranks walk through together.
//!
//! A packed row has one token more than inputs, and the next row begins with
//! that token: so every token is a target once, also at the seams. The first
//! token of a document follows the last one of another, and does not count.
//!
//! Which documents are in a row follows from the lengths of those before it.
//! A rank that does not know them has to tokenize documents that others train
//! on; lengths are remembered, so that this happens once. After a pass that
//! counts, or after the first epoch, a rank tokenizes its own rows alone.

use super::count::Measure;
use super::documents::Documents;
use super::error::DataError;
use super::order::Order;
use super::row::{Row, RowBuilder};
use super::sample::{Fate, Sample, Sampler};
use super::state::Position;
use crate::config::RowLayout;

/// How often all documents are gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epochs {
    /// Until nobody asks for more.
    Endless,
    /// So many times.
    Times(u64),
}

impl Epochs {
    fn are_over(self, epoch: u64) -> bool {
        matches!(self, Self::Times(times) if epoch >= times)
    }
}

/// Whether a row is needed, or only its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    Row,
    Place,
}

pub(super) struct RowStream {
    pub(super) documents: Documents,
    pub(super) sampler: Sampler,
    pub(super) order: Order,
    pub(super) epochs: Epochs,
    pub(super) layout: RowLayout,
    /// Inputs of a row.
    pub(super) size: usize,
    pub(super) pad: u32,
    pub(super) lengths: Lengths,
    /// The document that was tokenized last. Pieces of one document follow
    /// each other, so one is enough.
    pub(super) latest: Option<(usize, Sample)>,
}

/// A document with tokens to come.
struct Stretch {
    document: usize,
    from: usize,
    length: usize,
}

impl RowStream {
    /// Passes the next row, and gives it if it is wanted; none at the end of
    /// the last epoch.
    pub(super) fn next(
        &mut self,
        position: &mut Position,
        want: Want,
    ) -> Result<Option<Option<Row>>, DataError> {
        let mut builder = (want == Want::Row).then(|| RowBuilder::new(self.size));
        let taken = match self.layout {
            RowLayout::Packed => self.take_packed(position, builder.as_mut())?,
            RowLayout::Padded => self.take_padded(position, builder.as_mut())?,
        };
        if taken < 2 {
            return Ok(None);
        }
        position.rows = position.rows.saturating_add(1);
        position.tokens = position.tokens.saturating_add(taken as u64 - 1);
        Ok(Some(builder.map(|builder| builder.finish(self.pad))))
    }

    /// Takes tokens until a row is full. The last of them is where the next
    /// row begins.
    fn take_packed(
        &mut self,
        position: &mut Position,
        mut builder: Option<&mut RowBuilder>,
    ) -> Result<usize, DataError> {
        let mut taken = 0;
        let mut last = (position.epoch, position.place, position.offset);
        while taken <= self.size {
            let Some(stretch) = self.settle(position)? else { break };
            let take = (stretch.length - stretch.from).min(self.size + 1 - taken);
            self.copy(&stretch, take, builder.as_deref_mut())?;
            taken += take;
            position.offset += take as u64;
            last = (position.epoch, position.place, position.offset - 1);
        }
        (position.epoch, position.place, position.offset) = last;
        Ok(taken)
    }

    /// Takes tokens of one document, of which a row may be too short for all.
    fn take_padded(
        &mut self,
        position: &mut Position,
        builder: Option<&mut RowBuilder>,
    ) -> Result<usize, DataError> {
        let Some(stretch) = self.settle(position)? else { return Ok(0) };
        let take = (stretch.length - stretch.from).min(self.size + 1);
        self.copy(&stretch, take, builder)?;
        position.offset += take as u64 - 1;
        // One token alone has no target.
        if stretch.from + take >= stretch.length {
            position.advance(self.documents.len() as u64);
        }
        Ok(take)
    }

    fn copy(
        &mut self,
        stretch: &Stretch,
        take: usize,
        builder: Option<&mut RowBuilder>,
    ) -> Result<(), DataError> {
        if let Some(builder) = builder {
            let from = stretch.from;
            builder.push(self.sample(stretch.document)?, from, take);
        }
        Ok(())
    }

    /// Goes on to a document that has tokens to come.
    fn settle(&mut self, position: &mut Position) -> Result<Option<Stretch>, DataError> {
        let documents = self.documents.len() as u64;
        let mut left_out = 0;
        while !self.epochs.are_over(position.epoch) {
            // Only a whole epoch says that there is nothing: two parts of two
            // epochs, each in its own order, may lack the same document.
            if position.place == 0 {
                left_out = 0;
            }
            let document = self.order.at(position.epoch, position.place) as usize;
            let known = self.known(document)?;
            let number = position.epoch.saturating_mul(documents).saturating_add(position.place);
            if number >= position.documents {
                position.documents = number.saturating_add(1);
                match known.fate {
                    Fate::LeftOut => position.left_out = position.left_out.saturating_add(1),
                    Fate::Truncated => position.truncated = position.truncated.saturating_add(1),
                    Fate::Whole => {}
                }
            }
            if position.offset < known.length as u64 {
                let from = position.offset as usize;
                return Ok(Some(Stretch { document, from, length: known.length }));
            }
            if known.fate == Fate::LeftOut {
                left_out += 1;
                if left_out >= documents {
                    return Err(DataError::NothingCounts { documents: documents as usize });
                }
            }
            position.advance(documents);
        }
        Ok(None)
    }

    /// What is known of a document; it is tokenized if nothing is.
    pub(super) fn known(&mut self, document: usize) -> Result<Known, DataError> {
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
            _ => {
                let (origin, content) = self.documents.read(document)?;
                (document, self.sampler.sample(content, &origin)?)
            }
        };
        Ok(&self.latest.insert(latest).1)
    }
}

/// What rows need to know of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) length: usize,
    pub(super) fate: Fate,
}

/// Lengths of documents, as far as they are known: four bytes for each.
pub(super) struct Lengths(Vec<u32>);

/// For documents that were cut off.
const TRUNCATED: u32 = 1 << 31;

impl Lengths {
    pub(super) fn unknown(documents: usize) -> Self {
        Self(vec![0; documents])
    }

    fn get(&self, document: usize) -> Option<Known> {
        // Zero is for what is not known, so lengths are kept plus one.
        let kept = self.0[document];
        let length = (kept & !TRUNCATED).checked_sub(1)? as usize;
        let fate = match length {
            0 => Fate::LeftOut,
            _ if kept & TRUNCATED != 0 => Fate::Truncated,
            _ => Fate::Whole,
        };
        Some(Known { length, fate })
    }

    pub(super) fn put(&mut self, document: usize, measure: Measure) -> Known {
        let known = Known { length: measure.tokens as usize, fate: measure.fate };
        // What does not fit is not remembered, and measured again.
        if measure.tokens < TRUNCATED - 1 {
            let flag = if measure.fate == Fate::Truncated { TRUNCATED } else { 0 };
            self.0[document] = (measure.tokens + 1) | flag;
        }
        known
    }
}
