//! Zip archives as other formats use them: a directory of byte ranges.
//!
//! An archive may be a whole file or part of one. Entries are indexed in place,
//! which only stored (uncompressed) entries allow. Every local header is
//! compared with the directory, and no two entries may share bytes, so that a
//! small file cannot claim to be a large one.

mod read;
mod write;

pub(crate) use read::read_directory;
pub use write::ZipLayout;

use std::ops::Range;

use weightloom_errors::Hint;

use super::window::Window;
use crate::error::CheckpointError;

const LOCAL: u32 = 0x0403_4b50;
const DESCRIPTOR: u32 = 0x0807_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
const END_64: u32 = 0x0606_4b50;
const LOCATOR: u32 = 0x0706_4b50;

const LOCAL_SIZE: u64 = 30;
const CENTRAL_SIZE: u64 = 46;
const END_SIZE: u64 = 22;
const END_64_SIZE: u64 = 56;
const LOCATOR_SIZE: u64 = 20;

/// A 32-bit field whose value is in the 64-bit extra field instead.
const ELSEWHERE: u32 = u32::MAX;
/// The extra field with 64-bit sizes.
const EXTRA_64: u16 = 1;

const ENCRYPTED: u16 = 1;
/// Sizes and checksum follow the data instead of preceding them.
const FOLLOWS: u16 = 1 << 3;
const UTF8: u16 = 1 << 11;

/// Why a zip archive cannot be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ZipError {
    #[error("an archive of {length} bytes cannot begin at byte {start}")]
    Place { start: u64, length: u64 },
    #[error("not a zip archive, or its end is missing")]
    NoEnd,
    #[error("multi-part zip archives are not supported")]
    Split,
    #[error(
        "the archive's end record claims a directory of {length} bytes at byte {offset}, which does not fit"
    )]
    Directory {
        /// Relative to the archive's first byte.
        offset: u64,
        length: u64,
    },
    #[error("the archive's directory is damaged at entry {entry}")]
    Damaged { entry: u64 },
    #[error("the name of entry {entry} is not UTF-8")]
    Name { entry: u64 },
    #[error("a name of {length} bytes is too long for an archive")]
    NameLength { length: usize },
    #[error("the entry `{name}` occurs twice")]
    Twice { name: String },
    #[error("the local header of `{name}` does not match the directory")]
    Header { name: String },
    #[error("the data of `{name}` overlap the next entry")]
    Overlap { name: String },
    #[error("`{name}` is encrypted")]
    Encrypted { name: String },
    #[error("`{name}` is compressed (method {method})")]
    Compressed { name: String, method: u16 },
    #[error("the entry `{name}` is missing")]
    Missing { name: String },
    #[error("`{name}` is damaged: its checksum is {found:08x}, not {expected:08x}")]
    Checksum { name: String, expected: u32, found: u32 },
    #[error("`{name}` has {length} bytes, and the limit is {limit}")]
    TooLong { name: String, length: u64, limit: u64 },
}

impl Hint for ZipError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::NoEnd | Self::Directory { .. } | Self::Damaged { .. } | Self::Checksum { .. } => {
                Some("copy or download the file again; it is truncated or damaged".to_owned())
            }
            Self::Compressed { .. } => Some(
                "unpack it and save it without compression, as `torch.save` and `numpy.savez` do".to_owned(),
            ),
            Self::Twice { .. } | Self::Header { .. } | Self::Overlap { .. } => {
                Some("get the file from a source that you trust; it is damaged or malicious".to_owned())
            }
            _ => None,
        }
    }
}

/// How an entry's data are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Uncompressed.
    Stored,
    /// Compressed, by the number of the method; 8 is deflate.
    Compressed(u16),
}

/// One entry of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Where its data begin in the file that the archive lies in.
    pub offset: u64,
    /// Bytes of its data as stored.
    pub length: u64,
    /// How they are stored.
    pub method: Method,
    /// Their CRC-32; 0 if the writer omitted it, as torch does on request.
    pub checksum: u32,
}

impl Entry {
    /// Where its bytes are in the file, if they are stored as they are.
    pub fn range(&self) -> Result<Range<u64>, ZipError> {
        match self.method {
            Method::Stored => Ok(self.offset..self.offset + self.length),
            Method::Compressed(method) => Err(ZipError::Compressed { name: self.name.clone(), method }),
        }
    }

    /// Reads the entry, which must not be longer than `limit`, and compares it
    /// with its checksum.
    pub(crate) fn read(&self, window: &mut Window<'_>, limit: u64) -> Result<Vec<u8>, CheckpointError> {
        let file = window.name();
        let range = self.range().map_err(|error| CheckpointError::format(file, error))?;
        if self.length > limit {
            let error = ZipError::TooLong { name: self.name.clone(), length: self.length, limit };
            return Err(CheckpointError::format(file, error));
        }
        let bytes = window.bytes(range.start, self.length as usize)?.to_vec();
        let found = crc32fast::hash(&bytes);
        if self.checksum != 0 && self.checksum != found {
            let error = ZipError::Checksum { name: self.name.clone(), expected: self.checksum, found };
            return Err(CheckpointError::format(file, error));
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::MemoryStorage;

    fn entries(bytes: &[u8], start: u64, length: u64) -> Result<Vec<Entry>, CheckpointError> {
        let storage = MemoryStorage::one("a.zip", bytes);
        read_directory(&mut Window::new(&storage, "a.zip").unwrap(), start, length)
    }

    fn whole(bytes: &[u8]) -> Result<Vec<Entry>, ZipError> {
        entries(bytes, 0, bytes.len() as u64).map_err(|error| match error {
            CheckpointError::Format { problem: crate::FormatError::Zip(error), .. } => error,
            other => panic!("{other}"),
        })
    }

    fn archive(parts: &[(&str, &[u8])]) -> Vec<u8> {
        let layout = ZipLayout::new(parts.iter().map(|(name, data)| (*name, data.len() as u64))).unwrap();
        let mut bytes = Vec::new();
        let mut checksums = Vec::new();
        for (number, (_, data)) in parts.iter().enumerate() {
            bytes.extend(layout.header(number));
            assert_eq!(bytes.len() as u64, layout.data(number).start);
            bytes.extend(*data);
            checksums.push(crc32fast::hash(data));
            bytes.extend(layout.descriptor(number, checksums[number]));
        }
        bytes.extend(layout.directory(&checksums));
        assert_eq!(bytes.len() as u64, layout.length());
        bytes
    }

    #[test]
    fn written_archives_are_read_at_any_offset() {
        let inner = archive(&[("a/one", b"1"), ("a/two", b"twenty-two"), ("a/none", b"")]);
        let mut bytes = vec![7; 100];
        bytes.extend(&inner);
        bytes.extend([9; 50]);
        let found = entries(&bytes, 100, inner.len() as u64).unwrap();
        let data: Vec<(&str, &[u8])> = found
            .iter()
            .map(|entry| {
                let range = entry.range().unwrap();
                (entry.name.as_str(), &bytes[range.start as usize..range.end as usize])
            })
            .collect();
        assert_eq!(data, [("a/one", &b"1"[..]), ("a/two", b"twenty-two"), ("a/none", b"")]);
        assert!(found.iter().all(|entry| (entry.offset - 100) % 64 == 0));
        assert_eq!(found[1].checksum, crc32fast::hash(b"twenty-two"));
    }

    #[test]
    fn an_archive_cut_off_anywhere_is_refused() {
        let bytes = archive(&[("one", b"1"), ("two", b"22")]);
        for length in 0..bytes.len() {
            assert!(whole(&bytes[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn no_changed_byte_makes_it_panic_or_moves_data_outside() {
        let bytes = archive(&[("one", b"1"), ("two", b"22")]);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                for entry in whole(&changed).unwrap_or_default() {
                    assert!(entry.offset + entry.length <= changed.len() as u64);
                }
            }
        }
    }

    #[test]
    fn entries_that_share_bytes_are_refused() {
        let bytes = archive(&[("one", b"1"), ("two", b"22")]);
        let found = whole(&bytes).unwrap();
        // The directory's second entry is pointed at the first one's header.
        let second = (0..bytes.len() - 4).rfind(|&at| bytes[at..at + 4] == CENTRAL.to_le_bytes()).unwrap();
        let mut aliased = bytes.clone();
        aliased[second + 42..second + 46].fill(0);
        assert!(matches!(whole(&aliased), Err(ZipError::Overlap { .. } | ZipError::Header { .. })));
        // Its size is made to reach into the directory.
        let mut long = bytes.clone();
        for field in [20, 24] {
            long[second + field..second + field + 4].copy_from_slice(&200u32.to_le_bytes());
        }
        assert_eq!(whole(&long), Err(ZipError::Overlap { name: "two".to_owned() }));
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn names_must_not_repeat() {
        let bytes = archive(&[("same", b"1"), ("same", b"2")]);
        assert_eq!(whole(&bytes), Err(ZipError::Twice { name: "same".to_owned() }));
    }

    #[test]
    fn compressed_entries_are_listed_but_have_no_range() {
        let mut bytes = archive(&[("one", b"1")]);
        let central = (0..bytes.len()).find(|&at| bytes[at..].starts_with(&CENTRAL.to_le_bytes())).unwrap();
        (bytes[8], bytes[central + 10]) = (8, 8);
        let entry = &whole(&bytes).unwrap()[0];
        assert_eq!(entry.range(), Err(ZipError::Compressed { name: "one".to_owned(), method: 8 }));
    }

    #[test]
    fn a_comment_does_not_hide_the_end() {
        let mut bytes = archive(&[("one", b"1")]);
        let comment = [b'c'; 5000];
        let length = bytes.len();
        bytes[length - 2..].copy_from_slice(&5000u16.to_le_bytes());
        bytes.extend(comment);
        assert_eq!(whole(&bytes).unwrap()[0].name, "one");
    }
}
