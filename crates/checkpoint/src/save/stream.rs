//! A rank's own file on its way to an object store, from its first byte to
//! its last.

use std::collections::VecDeque;

use crate::error::CheckpointError;
use crate::storage::Upload;

/// A file that is written in order. What is known beforehand (header, bytes
/// around the data) comes in between by itself.
pub(crate) struct Stream {
    upload: Box<dyn Upload>,
    /// Bytes known beforehand, ascending.
    frame: VecDeque<(u64, Vec<u8>)>,
    at: u64,
    length: u64,
}

impl Stream {
    pub(super) fn new(upload: Box<dyn Upload>, mut frame: Vec<(u64, Vec<u8>)>, length: u64) -> Self {
        frame.sort_by_key(|(offset, _)| *offset);
        Self { upload, frame: frame.into(), at: 0, length }
    }

    /// Writes bytes that lie behind all that were written before.
    pub(crate) fn put(&mut self, offset: u64, bytes: &[u8]) -> Result<(), CheckpointError> {
        while let Some((start, known)) = self.frame.pop_front_if(|(start, _)| *start < offset) {
            self.place(start, &known)?;
        }
        self.place(offset, bytes)
    }

    /// Writes what is left and makes the file appear.
    pub(crate) fn finish(mut self) -> Result<(), CheckpointError> {
        while let Some((start, known)) = self.frame.pop_front() {
            self.place(start, &known)?;
        }
        self.place(self.length, &[])?;
        Ok(self.upload.finish()?)
    }

    fn place(&mut self, offset: u64, bytes: &[u8]) -> Result<(), CheckpointError> {
        const ZEROS: [u8; 4096] = [0; 4096];
        debug_assert!(offset >= self.at, "pieces come in order");
        while self.at < offset {
            let gap = (offset - self.at).min(ZEROS.len() as u64);
            self.upload.write(&ZEROS[..gap as usize])?;
            self.at += gap;
        }
        self.upload.write(bytes)?;
        self.at += bytes.len() as u64;
        Ok(())
    }
}
