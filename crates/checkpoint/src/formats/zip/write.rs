//! The layout of an archive to be written, known before its data.
//!
//! Its parts can be written in any order: header, data and descriptor of each
//! entry, then the directory. Checksums follow the data, so that nothing is
//! written twice.

use std::ops::Range;

use super::{
    CENTRAL, CENTRAL_SIZE, DESCRIPTOR, ELSEWHERE, END, END_64, END_64_SIZE, END_SIZE, EXTRA_64, FOLLOWS,
    LOCAL, LOCAL_SIZE, LOCATOR, LOCATOR_SIZE, UTF8, ZipError,
};

/// Alignment of data, for mapping and vector loads.
const ALIGNMENT: u64 = 64;

/// The extra field that fills the room before aligned data; the letters are
/// those that torch uses.
const PADDING: u16 = 0x4246;

/// The version of the format that has 64-bit sizes.
const VERSION: u16 = 45;

/// Layout of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZipLayout {
    entries: Vec<Planned>,
    directory: u64,
    length: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Planned {
    name: String,
    header: u64,
    data: Range<u64>,
}

impl Planned {
    fn length(&self) -> u64 {
        self.data.end - self.data.start
    }

    fn is_wide(&self) -> bool {
        self.length() >= u64::from(ELSEWHERE)
    }

    fn descriptor_size(&self) -> u64 {
        if self.is_wide() { 24 } else { 16 }
    }

    /// Bytes of 64-bit values in the directory, without the field's own header.
    fn wide_values(&self) -> Vec<u8> {
        let mut values = Vec::new();
        if self.is_wide() {
            // Unpacked and packed.
            values.extend(self.length().to_le_bytes());
            values.extend(self.length().to_le_bytes());
        }
        if self.header >= u64::from(ELSEWHERE) {
            values.extend(self.header.to_le_bytes());
        }
        values
    }
}

impl ZipLayout {
    /// Lays out entries by name and length, in this order. Offsets count from
    /// the archive's first byte.
    pub fn new<'a>(entries: impl IntoIterator<Item = (&'a str, u64)>) -> Result<Self, ZipError> {
        let mut planned = Vec::new();
        let (mut at, mut directory_size) = (0, 0);
        for (name, length) in entries {
            if u16::try_from(name.len()).is_err() {
                return Err(ZipError::NameLength { length: name.len() });
            }
            let wide = if length >= u64::from(ELSEWHERE) { 4 + 16 } else { 0 };
            // The padding needs room for its own header.
            let least = at + LOCAL_SIZE + name.len() as u64 + wide + 4;
            let data = least.next_multiple_of(ALIGNMENT);
            let entry = Planned { name: name.to_owned(), header: at, data: data..data + length };
            at = entry.data.end + entry.descriptor_size();
            let values = entry.wide_values().len() as u64;
            directory_size += CENTRAL_SIZE + name.len() as u64 + if values > 0 { 4 + values } else { 0 };
            planned.push(entry);
        }
        let length = at + directory_size + END_64_SIZE + LOCATOR_SIZE + END_SIZE;
        Ok(Self { entries: planned, directory: at, length })
    }

    /// Bytes of the whole archive.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Where the data of an entry are.
    pub fn data(&self, entry: usize) -> Range<u64> {
        self.entries[entry].data.clone()
    }

    /// The bytes directly before the data of an entry.
    pub fn header(&self, entry: usize) -> Vec<u8> {
        let entry = &self.entries[entry];
        let mut bytes = Vec::new();
        bytes.extend(LOCAL.to_le_bytes());
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((FOLLOWS | UTF8).to_le_bytes());
        // Method, time and date, checksum.
        bytes.extend([0; 2 + 4 + 4]);
        let size = if entry.is_wide() { ELSEWHERE } else { 0 };
        bytes.extend(size.to_le_bytes());
        bytes.extend(size.to_le_bytes());
        bytes.extend((entry.name.len() as u16).to_le_bytes());
        let room = entry.data.start - entry.header;
        let extra = room - LOCAL_SIZE - entry.name.len() as u64;
        bytes.extend((extra as u16).to_le_bytes());
        bytes.extend(entry.name.as_bytes());
        if entry.is_wide() {
            bytes.extend(EXTRA_64.to_le_bytes());
            bytes.extend(16u16.to_le_bytes());
            bytes.extend(entry.length().to_le_bytes());
            bytes.extend(entry.length().to_le_bytes());
        }
        let padding = room - bytes.len() as u64 - 4;
        bytes.extend(PADDING.to_le_bytes());
        bytes.extend((padding as u16).to_le_bytes());
        bytes.resize(room as usize, b'Z');
        bytes
    }

    /// The bytes directly after the data of an entry. A checksum of 0 means that
    /// there is none, as in files that `torch.save` wrote without checksums.
    pub fn descriptor(&self, entry: usize, checksum: u32) -> Vec<u8> {
        let entry = &self.entries[entry];
        let mut bytes = Vec::new();
        bytes.extend(DESCRIPTOR.to_le_bytes());
        bytes.extend(checksum.to_le_bytes());
        for _ in ["packed", "unpacked"] {
            match entry.is_wide() {
                true => bytes.extend(entry.length().to_le_bytes()),
                false => bytes.extend((entry.length() as u32).to_le_bytes()),
            }
        }
        bytes
    }

    /// The directory and the end records, which follow the last descriptor.
    /// Takes one checksum per entry.
    pub fn directory(&self, checksums: &[u32]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (entry, checksum) in self.entries.iter().zip(checksums) {
            let values = entry.wide_values();
            let extra = if values.is_empty() { 0 } else { 4 + values.len() };
            bytes.extend(CENTRAL.to_le_bytes());
            bytes.extend(VERSION.to_le_bytes());
            bytes.extend(VERSION.to_le_bytes());
            bytes.extend((FOLLOWS | UTF8).to_le_bytes());
            // Method, time and date.
            bytes.extend([0; 2 + 4]);
            bytes.extend(checksum.to_le_bytes());
            bytes.extend(narrow(entry.length()).to_le_bytes());
            bytes.extend(narrow(entry.length()).to_le_bytes());
            bytes.extend((entry.name.len() as u16).to_le_bytes());
            bytes.extend((extra as u16).to_le_bytes());
            // Comment, disk, attributes.
            bytes.extend([0; 2 + 2 + 2 + 4]);
            bytes.extend(narrow(entry.header).to_le_bytes());
            bytes.extend(entry.name.as_bytes());
            if extra > 0 {
                bytes.extend(EXTRA_64.to_le_bytes());
                bytes.extend((values.len() as u16).to_le_bytes());
                bytes.extend(values);
            }
        }
        self.write_end(&mut bytes);
        bytes
    }

    /// Always both end records, as torch does: one form for every size.
    fn write_end(&self, bytes: &mut Vec<u8>) {
        let (size, count) = (bytes.len() as u64, self.entries.len() as u64);
        bytes.extend(END_64.to_le_bytes());
        // The record's size does not count the signature and itself.
        bytes.extend((END_64_SIZE - 12).to_le_bytes());
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(VERSION.to_le_bytes());
        // This disk, the directory's disk.
        bytes.extend([0; 4 + 4]);
        for number in [count, count, size, self.directory] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(LOCATOR.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend((self.directory + size).to_le_bytes());
        bytes.extend(1u32.to_le_bytes());
        bytes.extend(END.to_le_bytes());
        bytes.extend([0; 2 + 2]);
        let short = u16::try_from(count).unwrap_or(u16::MAX);
        bytes.extend(short.to_le_bytes());
        bytes.extend(short.to_le_bytes());
        bytes.extend(narrow(size).to_le_bytes());
        bytes.extend(narrow(self.directory).to_le_bytes());
        bytes.extend([0; 2]);
    }
}

/// The value of a 32-bit field.
fn narrow(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(ELSEWHERE)
}
