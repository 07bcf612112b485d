//! Reading through memory maps.
//!
//! # Why this file contains `unsafe`
//!
//! A map shows the file as it is, not as it was: if another program changes
//! it, bytes change under a reader, and if it is cut short, the process is
//! killed. No program can rule that out by itself. So maps are used only if a
//! caller asks for them and so guarantees that the files do not change; nothing
//! here makes one by default. Checkpoints are written
//! under another name and renamed, by us and by others, so replacing one leaves
//! the mapped file as it is. Reads copy bytes out at once; only who asks for
//! the map itself keeps it.

use std::fs::File;
use std::io;

use memmap2::{Mmap, MmapOptions};

/// A whole file in memory.
#[derive(Debug)]
pub(super) struct MappedFile(Mmap);

impl MappedFile {
    pub(super) fn new(file: &File) -> io::Result<Self> {
        // SAFETY: the map is read only, of plain bytes, for which any value is
        // valid; the caller guarantees that the file does not change. See the
        // top of this file.
        let map = unsafe { MmapOptions::new().map(file)? };
        Ok(Self(map))
    }

    /// Copies bytes out; fails if the file was too short when it was mapped.
    pub(super) fn read(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        let end = start.checked_add(into.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        let bytes = self.0.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?;
        into.copy_from_slice(bytes);
        Ok(())
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
