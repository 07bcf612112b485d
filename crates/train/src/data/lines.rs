//! Iterating over the lines of a file in constant memory.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use weightloom_errors::FileError;

use super::error::DataError;

/// Size of the read buffer.
const BUFFER: usize = 1 << 20;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// The location of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line<'a> {
    /// Offset of its first byte.
    pub(super) start: u64,
    /// Offset of the next line.
    pub(super) end: u64,
    /// Line number, starting at 1.
    pub(super) number: usize,
    /// Its first bytes, without the newline.
    pub(super) head: &'a [u8],
    pub(super) content: Content,
}

/// Whether a line has anything but white space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Blank,
    Some,
}

/// Length and checksum of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileSummary {
    pub(super) bytes: u64,
    /// CRC-32 of all bytes.
    pub(super) checksum: u32,
}

/// Calls `visit` for each line of a file, with up to `keep` of its first
/// bytes.
pub(super) fn each_line(
    path: &Path,
    keep: usize,
    visit: &mut dyn FnMut(Line<'_>) -> Result<(), DataError>,
) -> Result<FileSummary, DataError> {
    let read_error = FileError::while_trying_to("read", path);
    let mut file = File::open(path).map_err(&read_error)?;
    let mut piece = vec![0; BUFFER];
    let mut checksum = crc32fast::Hasher::new();
    let mut scan =
        Scan { at: 0, start: 0, number: 1, head: Vec::with_capacity(keep), keep, content: Content::Blank };
    loop {
        let filled = fill(&mut file, &mut piece).map_err(&read_error)?;
        if filled == 0 {
            break;
        }
        let mut bytes = &piece[..filled];
        checksum.update(bytes);
        if scan.at == 0
            && let Some(rest) = bytes.strip_prefix(BYTE_ORDER_MARK)
        {
            scan.at = BYTE_ORDER_MARK.len() as u64;
            scan.start = scan.at;
            bytes = rest;
        }
        scan.push(bytes, visit)?;
    }
    if scan.at > scan.start {
        scan.end_line(visit)?;
    }
    Ok(FileSummary { bytes: scan.at, checksum: checksum.finalize() })
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &mut File, memory: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < memory.len() {
        match file.read(&mut memory[filled..]) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

struct Scan {
    at: u64,
    start: u64,
    number: usize,
    head: Vec<u8>,
    keep: usize,
    content: Content,
}

impl Scan {
    fn push(
        &mut self,
        mut bytes: &[u8],
        visit: &mut dyn FnMut(Line<'_>) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            self.extend(&bytes[..end]);
            self.at += 1;
            self.end_line(visit)?;
            bytes = &bytes[end + 1..];
        }
        self.extend(bytes);
        Ok(())
    }

    fn extend(&mut self, bytes: &[u8]) {
        self.at += bytes.len() as u64;
        let room = self.keep - self.head.len();
        self.head.extend_from_slice(&bytes[..room.min(bytes.len())]);
        if self.content == Content::Blank && !bytes.iter().all(u8::is_ascii_whitespace) {
            self.content = Content::Some;
        }
    }

    fn end_line(
        &mut self,
        visit: &mut dyn FnMut(Line<'_>) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let Self { at, start, number, content, .. } = *self;
        visit(Line { start, end: at, number, head: &self.head, content })?;
        self.start = at;
        self.number += 1;
        self.head.clear();
        self.content = Content::Blank;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use proptest::prelude::*;

    use super::*;

    /// Start, end, number, first bytes and content.
    type Seen = (u64, u64, usize, Vec<u8>, Content);

    fn lines(bytes: &[u8], keep: usize) -> (Vec<Seen>, FileSummary) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let mut seen = Vec::new();
        let whole = each_line(file.path(), keep, &mut |line| {
            seen.push((line.start, line.end, line.number, line.head.to_vec(), line.content));
            Ok(())
        });
        (seen, whole.unwrap())
    }

    #[test]
    fn lines_have_numbers_and_offsets() {
        let (seen, whole) = lines(b"\xEF\xBB\xBFone\n \t\r\n\nlast", 2);
        let expected = [
            (3, 7, 1, b"on".to_vec(), Content::Some),
            (7, 11, 2, b" \t".to_vec(), Content::Blank),
            (11, 12, 3, b"".to_vec(), Content::Blank),
            (12, 16, 4, b"la".to_vec(), Content::Some),
        ];
        assert_eq!(seen, expected);
        assert_eq!(whole.bytes, 16);
        assert_ne!(whole.checksum, lines(b"\xEF\xBB\xBFone\n \t\r\n\nlasT", 2).1.checksum);
        assert_eq!(lines(b"", 4).0, []);
        assert_eq!(lines(b"\xEF\xBB\xBF", 4).0, []);
    }

    #[test]
    fn a_line_may_be_longer_than_the_buffer() {
        let mut text = vec![b' '; BUFFER - 1];
        text.extend(b"x\n");
        text.extend(vec![b'y'; 2 * BUFFER]);
        let (seen, _) = lines(&text, 1);
        let size = BUFFER as u64;
        assert_eq!(seen[0], (0, size + 1, 1, b" ".to_vec(), Content::Some));
        assert_eq!(seen[1], (size + 1, 3 * size + 1, 2, b"y".to_vec(), Content::Some));
        assert_eq!(seen.len(), 2);
    }

    proptest! {
        #[test]
        fn lines_tile_the_file(bytes in prop::collection::vec(prop::sample::select(&b"a \n\r"[..]), 0..40)) {
            let (seen, whole) = lines(&bytes, 100);
            let mut end = 0;
            for (at, (start, stop, number, head, content)) in seen.into_iter().enumerate() {
                prop_assert_eq!((start, number), (end, at + 1));
                let line = &bytes[start as usize..stop as usize];
                prop_assert_eq!(line.strip_suffix(b"\n").unwrap_or(line), &head[..]);
                prop_assert_eq!(content == Content::Blank, line.iter().all(u8::is_ascii_whitespace));
                end = stop;
            }
            prop_assert_eq!((end, whole.bytes), (bytes.len() as u64, bytes.len() as u64));
        }
    }
}
