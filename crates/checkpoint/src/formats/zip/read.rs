//! Reading the directory of an archive and comparing it with local headers.

use std::collections::BTreeSet;

use super::{
    CENTRAL, CENTRAL_SIZE, ELSEWHERE, ENCRYPTED, END, END_64, END_64_SIZE, END_SIZE, EXTRA_64, Entry,
    FOLLOWS, LOCAL, LOCAL_SIZE, LOCATOR, LOCATOR_SIZE, Method, ZipError,
};
use crate::error::CheckpointError;
use crate::formats::window::Window;

/// The largest directory that is read: about a million entries.
const MAX_DIRECTORY: u64 = 100_000_000;

/// How far from the end the end record is looked for at first. Most archives
/// have no comment, and torch's directory of a single tensor fits too.
const TAIL: u64 = 2 << 10;

/// How far the end record can be from the end: a comment is 16 bits long.
const FULL_TAIL: u64 = END_SIZE + u16::MAX as u64;

/// Reads the directory of the archive at `start..start + length` of a file,
/// in the order of the data.
pub(crate) fn read_directory(
    window: &mut Window<'_>,
    start: u64,
    length: u64,
) -> Result<Vec<Entry>, CheckpointError> {
    let file = window.name();
    let failed = |error: ZipError| CheckpointError::format(file, error);
    if start.checked_add(length).is_none_or(|end| end > window.length()) {
        return Err(failed(ZipError::Place { start, length }));
    }
    let end = find_end(window, start, length)?;
    let directory = window.bytes(start + end.offset, end.length as usize)?.to_vec();
    let mut listed = list(&directory, end.entries).map_err(failed)?;
    // The directory may have any order; with headers sorted, each entry must
    // end before the next begins.
    listed.sort_by_key(|entry| entry.header);
    let mut names = BTreeSet::new();
    let mut entries = Vec::with_capacity(listed.len());
    for (number, entry) in listed.iter().enumerate() {
        if !names.insert(entry.name.as_str()) {
            return Err(failed(ZipError::Twice { name: entry.name.clone() }));
        }
        let limit = listed.get(number + 1).map_or(end.offset, |next| next.header);
        entries.push(locate(window, start, entry, limit)?);
    }
    Ok(entries)
}

/// What the end records say about the directory.
struct Directory {
    offset: u64,
    length: u64,
    entries: u64,
}

fn find_end(window: &mut Window<'_>, start: u64, length: u64) -> Result<Directory, CheckpointError> {
    let file = window.name();
    let failed = |error: ZipError| CheckpointError::format(file, error);
    let mut found = None;
    for reach in [TAIL, FULL_TAIL] {
        let reach = reach.min(length);
        let tail = window.bytes(start + length - reach, reach as usize)?;
        if let Some(at) = end_record(tail) {
            found = Some((length - reach + at as u64, tail[at..].to_vec()));
            break;
        }
    }
    let (at, record) = found.ok_or_else(|| failed(ZipError::NoEnd))?;
    let mut fields = Fields(&record[4..]);
    let damaged = || failed(ZipError::NoEnd);
    let disks = [fields.u16().ok_or_else(damaged)?, fields.u16().ok_or_else(damaged)?];
    let here = fields.u16().ok_or_else(damaged)?;
    let entries = fields.u16().ok_or_else(damaged)?;
    let size = fields.u32().ok_or_else(damaged)?;
    let offset = fields.u32().ok_or_else(damaged)?;
    if disks.iter().any(|&disk| disk != 0 && disk != u16::MAX) || here != entries {
        return Err(failed(ZipError::Split));
    }
    let mut directory =
        Directory { offset: u64::from(offset), length: u64::from(size), entries: u64::from(entries) };
    let mut limit = at;
    if let Some(wide) = find_end_64(window, start, at)? {
        let agree = |narrow: u64, sentinel: u64, wide: u64| narrow == sentinel || narrow == wide;
        let same = agree(directory.offset, u64::from(ELSEWHERE), wide.directory.offset)
            && agree(directory.length, u64::from(ELSEWHERE), wide.directory.length)
            && agree(directory.entries, u64::from(u16::MAX), wide.directory.entries);
        if !same {
            let Directory { offset, length, .. } = wide.directory;
            return Err(failed(ZipError::Directory { offset, length }));
        }
        (directory, limit) = (wide.directory, wide.at);
    }
    let Directory { offset, length: size, entries } = directory;
    let fits = offset.checked_add(size).is_some_and(|end| end <= limit)
        && size <= MAX_DIRECTORY
        && entries.checked_mul(CENTRAL_SIZE).is_some_and(|least| least <= size);
    if !fits {
        return Err(failed(ZipError::Directory { offset, length: size }));
    }
    Ok(directory)
}

/// Where in the archive's last bytes the end record is: the last one whose
/// comment reaches exactly to the end.
fn end_record(tail: &[u8]) -> Option<usize> {
    let last = tail.len().checked_sub(END_SIZE as usize)?;
    (0..=last).rev().find(|&at| {
        let record = &tail[at..];
        let comment = usize::from(u16::from_le_bytes([record[20], record[21]]));
        record[..4] == END.to_le_bytes() && comment == record.len() - END_SIZE as usize
    })
}

/// The 64-bit end record and where it is.
struct Wide {
    directory: Directory,
    at: u64,
}

/// Reads the 64-bit end record, if there is one before the plain one.
fn find_end_64(window: &mut Window<'_>, start: u64, end: u64) -> Result<Option<Wide>, CheckpointError> {
    let file = window.name();
    let failed = |error: ZipError| CheckpointError::format(file, error);
    let Some(locator) = end.checked_sub(LOCATOR_SIZE) else { return Ok(None) };
    let mut fields = Fields(window.bytes(start + locator, LOCATOR_SIZE as usize)?);
    if fields.u32() != Some(LOCATOR) {
        return Ok(None);
    }
    let (_, at) = (fields.u32(), fields.u64().unwrap_or(u64::MAX));
    if at.checked_add(END_64_SIZE).is_none_or(|end| end > locator) {
        return Err(failed(ZipError::NoEnd));
    }
    let mut fields = Fields(window.bytes(start + at, END_64_SIZE as usize)?);
    let signature = fields.u32();
    // Its own size, two versions.
    fields.skip(8 + 2 + 2);
    let disks = [fields.u32(), fields.u32()];
    let (here, entries, length, offset) = (fields.u64(), fields.u64(), fields.u64(), fields.u64());
    let (Some(END_64), Some(entries), Some(length), Some(offset)) = (signature, entries, length, offset)
    else {
        return Err(failed(ZipError::NoEnd));
    };
    if disks != [Some(0); 2] || here != Some(entries) {
        return Err(failed(ZipError::Split));
    }
    Ok(Some(Wide { directory: Directory { offset, length, entries }, at }))
}

/// An entry as the directory has it.
struct Listed {
    name: String,
    flags: u16,
    method: u16,
    checksum: u32,
    packed: u64,
    unpacked: u64,
    /// Where its local header is, from the archive's first byte on.
    header: u64,
}

fn list(directory: &[u8], entries: u64) -> Result<Vec<Listed>, ZipError> {
    let mut fields = Fields(directory);
    let mut listed = Vec::new();
    for entry in 0..entries {
        let one = list_one(&mut fields).ok_or(ZipError::Damaged { entry })?;
        listed.push(one.map_err(|NotText| ZipError::Name { entry })?);
    }
    if fields.0.is_empty() { Ok(listed) } else { Err(ZipError::Damaged { entry: entries }) }
}

/// A name that is not UTF-8.
struct NotText;

fn list_one(fields: &mut Fields<'_>) -> Option<Result<Listed, NotText>> {
    if fields.u32()? != CENTRAL {
        return None;
    }
    // Two versions.
    fields.skip(4);
    let (flags, method) = (fields.u16()?, fields.u16()?);
    // Time and date.
    fields.skip(4);
    let checksum = fields.u32()?;
    let (packed, unpacked) = (fields.u32()?, fields.u32()?);
    let (name, extra, comment) = (fields.u16()?, fields.u16()?, fields.u16()?);
    // The disk, and attributes.
    fields.skip(2 + 2 + 4);
    let header = fields.u32()?;
    let name = fields.take(usize::from(name))?;
    let extra = fields.take(usize::from(extra))?;
    fields.take(usize::from(comment))?;
    let Ok(name) = std::str::from_utf8(name) else { return Some(Err(NotText)) };
    let mut wide = Fields(extra_64(extra));
    let mut widen = |narrow: u32| if narrow == ELSEWHERE { wide.u64() } else { Some(u64::from(narrow)) };
    // The order of the extra field, which is not the order of the fields.
    let (unpacked, packed, header) = (widen(unpacked)?, widen(packed)?, widen(header)?);
    Some(Ok(Listed { name: name.to_owned(), flags, method, checksum, packed, unpacked, header }))
}

/// The extra field with 64-bit values; empty if there is none.
fn extra_64(extra: &[u8]) -> &[u8] {
    let mut fields = Fields(extra);
    while let (Some(kind), Some(length)) = (fields.u16(), fields.u16()) {
        let Some(value) = fields.take(usize::from(length)) else { break };
        if kind == EXTRA_64 {
            return value;
        }
    }
    &[]
}

/// Compares the local header with the directory and locates the data, which
/// must end before `limit`.
fn locate(window: &mut Window<'_>, start: u64, entry: &Listed, limit: u64) -> Result<Entry, CheckpointError> {
    let file = window.name();
    let failed = |error: ZipError| CheckpointError::format(file, error);
    let overlap = || failed(ZipError::Overlap { name: entry.name.clone() });
    let differs = || failed(ZipError::Header { name: entry.name.clone() });
    if entry.flags & ENCRYPTED != 0 {
        return Err(failed(ZipError::Encrypted { name: entry.name.clone() }));
    }
    let end_of = |length: u64| entry.header.checked_add(length).filter(|&end| end <= limit);
    end_of(LOCAL_SIZE).ok_or_else(overlap)?;
    let header = window.bytes(start + entry.header, LOCAL_SIZE as usize)?;
    let local = Local::parse(header).ok_or_else(differs)?;
    let text = local.name + local.extra;
    let data = end_of(LOCAL_SIZE + text as u64).ok_or_else(overlap)?;
    let text = window.bytes(start + entry.header + LOCAL_SIZE, text)?;
    let (name, extra) = text.split_at(local.name);
    if name != entry.name.as_bytes() || !local.agrees(entry, extra) {
        return Err(differs());
    }
    data.checked_add(entry.packed).filter(|&end| end <= limit).ok_or_else(overlap)?;
    let method = match entry.method {
        0 if entry.packed == entry.unpacked => Method::Stored,
        0 => return Err(differs()),
        method => Method::Compressed(method),
    };
    Ok(Entry {
        name: entry.name.clone(),
        offset: start + data,
        length: entry.packed,
        method,
        checksum: entry.checksum,
    })
}

/// The local header before an entry's data.
struct Local {
    flags: u16,
    method: u16,
    checksum: u32,
    packed: u32,
    unpacked: u32,
    name: usize,
    extra: usize,
}

impl Local {
    fn parse(header: &[u8]) -> Option<Self> {
        let mut fields = Fields(header);
        if fields.u32()? != LOCAL {
            return None;
        }
        fields.skip(2);
        let (flags, method) = (fields.u16()?, fields.u16()?);
        fields.skip(4);
        let (checksum, packed, unpacked) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let (name, extra) = (usize::from(fields.u16()?), usize::from(fields.u16()?));
        Some(Self { flags, method, checksum, packed, unpacked, name, extra })
    }

    /// Whether it matches the directory. Sizes that follow the data may be
    /// absent here.
    fn agrees(&self, entry: &Listed, extra: &[u8]) -> bool {
        if self.method != entry.method || self.flags & ENCRYPTED != 0 {
            return false;
        }
        if self.flags & FOLLOWS != 0 {
            return true;
        }
        let mut wide = Fields(extra_64(extra));
        let mut widen = |narrow: u32| if narrow == ELSEWHERE { wide.u64() } else { Some(u64::from(narrow)) };
        let (unpacked, packed) = (widen(self.unpacked), widen(self.packed));
        self.checksum == entry.checksum && packed == Some(entry.packed) && unpacked == Some(entry.unpacked)
    }
}

/// Little-endian numbers, one after another.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn skip(&mut self, length: usize) {
        self.0 = self.0.get(length..).unwrap_or_default();
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2)?.try_into().ok().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }
}
