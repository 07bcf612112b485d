//! Reading Parquet files as JSON objects, one per row.
//!
//! The reader knows what files of text data use: nested columns, all encodings
//! of the current format version, and pages that are plain or compressed with
//! Snappy, gzip or Zstandard. It holds one page of each column in memory. The
//! crate `parquet` is not used: its Zstandard is a C library, it panics on some
//! damaged files, and it is several times the code.

mod column;
mod delta;
mod error;
mod hybrid;
mod metadata;
mod page;
mod rows;
mod schema;
mod snappy;
#[cfg(test)]
mod tests;
mod thrift;

pub use error::ParquetError;
pub(super) use rows::write_rows;

use std::io::{Read, Seek, SeekFrom};

/// A file that is read at offsets.
trait Source: Read + Seek {}

impl<T: Read + Seek> Source for T {}

/// Reads a range of bytes. `most` guards against sizes in damaged files.
fn read_range(source: &mut dyn Source, start: u64, bytes: u64) -> Result<Vec<u8>, ParquetError> {
    source.seek(SeekFrom::Start(start))?;
    let mut range = Vec::new();
    source.take(bytes).read_to_end(&mut range)?;
    if range.len() as u64 == bytes { Ok(range) } else { Err(ParquetError::Damaged("it ends early")) }
}

/// Reads a file from memory and discards its rows: for fuzzing.
#[doc(hidden)]
pub fn check_parquet(bytes: &[u8]) {
    let mut most = 100_000;
    let _ = write_rows(&mut std::io::Cursor::new(bytes), &mut |_| {
        most -= 1;
        if most == 0 { Err(std::io::Error::other("enough")) } else { Ok(()) }
    });
}
