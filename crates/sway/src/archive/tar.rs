//! The container: a tar file (POSIX ustar) of plain files with known names.
//!
//! Reading accepts only what [`write`] writes: no folders, links, long names,
//! sparse files or extensions. Contents are slices of the input, so a length that
//! is too large is an error and never an allocation.

use std::collections::BTreeMap;

use super::error::ArchiveError;

/// Everything in a tar file is aligned to this.
const BLOCK: usize = 512;

const NAME: std::ops::Range<usize> = 0..100;
const SIZE: std::ops::Range<usize> = 124..136;
const CHECKSUM: std::ops::Range<usize> = 148..156;
const TYPE: usize = 156;
const MAGIC: std::ops::Range<usize> = 257..265;
/// `ustar`, and version `00`.
const USTAR: &[u8] = b"ustar\x0000";
/// The type of a regular file.
const REGULAR: u8 = b'0';

/// Writes files. Times, owners and modes are constant.
pub(super) fn write(files: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, bytes) in files {
        out.extend(header(name, bytes.len()));
        out.extend(bytes);
        out.resize(out.len().next_multiple_of(BLOCK), 0);
    }
    out.resize(out.len() + 2 * BLOCK, 0);
    out
}

fn header(name: &str, length: usize) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(NAME.start, name.as_bytes());
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(SIZE.start, format!("{length:011o}\0").as_bytes());
    put(136, b"00000000000\0");
    put(TYPE, &[REGULAR]);
    put(MAGIC.start, USTAR);
    let sum = checksum_field(&header);
    header[CHECKSUM].copy_from_slice(&sum);
    header
}

/// The sum of all bytes with spaces in place of the checksum: six octal digits, a
/// zero and a space.
pub(super) fn checksum_field(header: &[u8]) -> [u8; 8] {
    let byte = |(at, byte): (usize, &u8)| u32::from(if CHECKSUM.contains(&at) { b' ' } else { *byte });
    let sum: u32 = header.iter().enumerate().map(byte).sum();
    let mut field = *b"000000\0 ";
    for (place, digit) in field[..6].iter_mut().rev().enumerate() {
        *digit = b'0' + (sum >> (3 * place) & 7) as u8;
    }
    field
}

/// The files of a tar file. All names must be in `names`, in that order.
pub(super) fn read<'a>(
    bytes: &'a [u8],
    names: &[&'static str],
) -> Result<BTreeMap<&'static str, &'a [u8]>, ArchiveError> {
    let mut files = BTreeMap::new();
    let mut at = 0;
    let truncated = |wanted: &str| ArchiveError::Truncated { length: bytes.len(), wanted: wanted.to_owned() };
    loop {
        let Some(header) = bytes.get(at..).and_then(|rest| rest.get(..BLOCK)) else {
            return Err(if at == 0 { ArchiveError::NotAnArchive } else { truncated("its end") });
        };
        at += BLOCK;
        if header.iter().all(|byte| *byte == 0) {
            // The end: two blocks of zeros, and nothing more.
            return match &bytes[at..] {
                rest if rest.len() < BLOCK => Err(truncated("its end")),
                rest if rest.iter().any(|byte| *byte != 0) => Err(ArchiveError::NotAnArchive),
                _ => Ok(files),
            };
        }
        if header[MAGIC] != *USTAR || header[CHECKSUM] != checksum_field(header) {
            return Err(ArchiveError::NotAnArchive);
        }
        let name = name_of(header);
        let known = names.iter().find(|known| **known == name);
        let Some(known) = known.filter(|_| header[TYPE] == REGULAR && is_unprefixed(header)) else {
            return Err(ArchiveError::UnexpectedFile { name });
        };
        let length = number(&header[SIZE]).and_then(|length| usize::try_from(length).ok());
        let Some(length) = length else { return Err(ArchiveError::NotAnArchive) };
        let whole = length.checked_next_multiple_of(BLOCK).and_then(|whole| at.checked_add(whole));
        let Some(end) = whole.filter(|end| *end <= bytes.len()) else { return Err(truncated(&name)) };
        if bytes[at + length..end].iter().any(|byte| *byte != 0) {
            return Err(ArchiveError::NotAnArchive);
        }
        if files.insert(*known, &bytes[at..at + length]).is_some() {
            return Err(ArchiveError::Duplicate { name });
        }
        at = end;
    }
}

/// The name, with anything that is not printable replaced.
fn name_of(header: &[u8]) -> String {
    let field = &header[NAME];
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    let name = String::from_utf8_lossy(&field[..end]);
    name.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
}

/// Whether the name has no prefix, which would make it a path.
fn is_unprefixed(header: &[u8]) -> bool {
    header[345..500].iter().all(|byte| *byte == 0)
}

/// An octal number, ended by a zero or a space.
fn number(field: &[u8]) -> Option<u64> {
    let end = field.iter().position(|byte| *byte == 0 || *byte == b' ')?;
    let digits = std::str::from_utf8(&field[..end]).ok()?;
    u64::from_str_radix(digits, 8).ok().filter(|_| !digits.starts_with(['+', '-']))
}
