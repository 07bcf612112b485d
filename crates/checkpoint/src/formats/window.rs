//! Small reads near one another, in few calls.
//!
//! Headers are scattered over a file, often the end of one archive next to the
//! beginning of the next. A window reads ahead and caches the last pieces, so
//! that neighbours are free.

use std::collections::VecDeque;

use crate::storage::{Storage, StorageError};

/// Bytes that are read at once.
const AHEAD: usize = 8 << 10;

/// Number of cached pieces.
const KEPT: usize = 4;

/// A file with a cache of small pieces.
pub(crate) struct Window<'a> {
    storage: Option<&'a dyn Storage>,
    name: &'a str,
    length: u64,
    pieces: VecDeque<(u64, Vec<u8>)>,
}

impl<'a> Window<'a> {
    /// A window on one file.
    pub(crate) fn new(storage: &'a dyn Storage, name: &'a str) -> Result<Self, StorageError> {
        Ok(Self { storage: Some(storage), name, length: storage.length(name)?, pieces: VecDeque::new() })
    }

    /// A window on bytes in memory; `name` is for errors.
    pub(crate) fn on(bytes: &[u8], name: &'a str) -> Self {
        let pieces = VecDeque::from([(0, bytes.to_vec())]);
        Self { storage: None, name, length: bytes.len() as u64, pieces }
    }

    /// The file's name.
    pub(crate) fn name(&self) -> &'a str {
        self.name
    }

    /// The file's length.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// `length` bytes at `offset`. Allocates nothing for bytes past the end of
    /// the file.
    pub(crate) fn bytes(&mut self, offset: u64, length: usize) -> Result<&[u8], StorageError> {
        let end = offset.saturating_add(length as u64);
        let short = || StorageError::Short { file: self.name.to_owned(), end };
        if end > self.length {
            return Err(short());
        }
        let holds = |(start, bytes): &(u64, Vec<u8>)| *start <= offset && end <= *start + bytes.len() as u64;
        let at = match self.pieces.iter().position(holds) {
            Some(at) => at,
            None => {
                let available = usize::try_from(self.length - offset).unwrap_or(usize::MAX);
                let mut bytes = vec![0; length.max(AHEAD).min(available)];
                self.storage.ok_or_else(short)?.read_at(self.name, offset, &mut bytes)?;
                self.pieces.truncate(KEPT - 1);
                self.pieces.push_front((offset, bytes));
                0
            }
        };
        let (start, bytes) = &self.pieces[at];
        let skip = (offset - start) as usize;
        Ok(&bytes[skip..skip + length])
    }
}
