//! Reading through memory maps.
//!
//! # Why this file contains `unsafe`
//!
//! A map shows the file as it is, not as it was: if another program changes
//! it, bytes change under a reader, and if it is cut short, the process is
//! killed. So a map never becomes a slice that anybody keeps. Bytes are copied
//! out of it at once, nothing relies on their staying the same between two
//! looks, and maps are used only if a caller asks for them, for files that
//! nobody is writing.

use std::fs::File;
use std::io;

use memmap2::{Mmap, MmapOptions};

/// A whole file in memory.
#[derive(Debug)]
pub(super) struct MappedFile(Mmap);

impl MappedFile {
    pub(super) fn new(file: &File) -> io::Result<Self> {
        // SAFETY: the map is read only by `read`, which copies plain bytes,
        // for which any value is valid; see the top of the file.
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
