//! Cutting long texts into parts, whose rows can be shuffled and which can be
//! tokenized alone.
//!
//! A part ends before a line break, or else a space, where tokenizers split texts
//! anyway.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use weightloom_errors::FileError;

use super::error::DataError;
use super::scan::Entry;

/// Bytes of a part for rows of this many tokens: enough rows that cut ones are few.
pub(super) fn part_bytes(max_seq_len: usize) -> u32 {
    (max_seq_len.saturating_mul(128)).clamp(64 << 10, 256 << 10) as u32
}

/// Where a part is in its document.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Part {
    #[default]
    Whole,
    First,
    Middle,
    Last,
}

impl Part {
    /// The part with or without others before and after it.
    pub(super) fn between(before: Neighbour, after: Neighbour) -> Self {
        match (before, after) {
            (Neighbour::None, Neighbour::None) => Self::Whole,
            (Neighbour::None, Neighbour::Part) => Self::First,
            (Neighbour::Part, Neighbour::Part) => Self::Middle,
            (Neighbour::Part, Neighbour::None) => Self::Last,
        }
    }

    pub(super) fn starts_document(self) -> bool {
        matches!(self, Self::Whole | Self::First)
    }

    pub(super) fn ends_document(self) -> bool {
        matches!(self, Self::Whole | Self::Last)
    }
}

/// Whether there is another part of the document beside one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Neighbour {
    None,
    Part,
}

/// Appends the parts of a document of a text file.
pub(super) fn cut(path: &Path, document: Entry, most: u32, parts: &mut Vec<Entry>) -> Result<(), DataError> {
    let failed = FileError::while_trying_to("read", path);
    let mut file = File::open(path).map_err(&failed)?;
    file.seek(SeekFrom::Start(document.start)).map_err(&failed)?;
    let Entry { mut start, bytes, mut line } = document;
    let end = start + u64::from(bytes);
    let mut piece = Vec::new();
    while end - start > u64::from(most) {
        let wanted = u64::from(most) - piece.len() as u64;
        (&mut file).take(wanted).read_to_end(&mut piece).map_err(&failed)?;
        let length = place(&piece);
        if length == 0 {
            // The file is shorter now, which is an error when it is read.
            break;
        }
        parts.push(Entry { start, bytes: length as u32, line });
        line = line.saturating_add(piece[..length].iter().filter(|&&byte| byte == b'\n').count() as u32);
        start += length as u64;
        piece.drain(..length);
    }
    parts.push(Entry { start, bytes: (end - start) as u32, line });
    Ok(())
}

/// The length of the part at the start of some bytes.
fn place(bytes: &[u8]) -> usize {
    let latter = bytes.len() / 2;
    let before = |separator: u8| {
        let is_cut = |&at: &usize| bytes[at] == separator && bytes[at - 1].is_ascii_graphic();
        (latter.max(1)..bytes.len()).rev().find(is_cut)
    };
    // Not inside of a character.
    let character = || (1..bytes.len()).rev().find(|&at| bytes[at] & 0xc0 != 0x80);
    before(b'\n').or_else(|| before(b' ')).or_else(character).unwrap_or(bytes.len())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use proptest::prelude::*;

    use super::*;

    fn parts(text: &str, most: u32) -> Vec<(String, u32)> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("before{text}after")).unwrap();
        let document = Entry { start: 6, bytes: text.len() as u32, line: 3 };
        let mut parts = Vec::new();
        cut(file.path(), document, most, &mut parts).unwrap();
        let part = |part: &Entry| {
            let start = part.start as usize - 6;
            (text[start..start + part.bytes as usize].to_owned(), part.line)
        };
        parts.iter().map(part).collect()
    }

    #[test]
    fn parts_end_before_a_line_break_or_a_space() {
        let found = parts("one two\nthree four five six", 12);
        let expected = [("one two", 3), ("\nthree four", 3), (" five six", 4)];
        assert_eq!(found, expected.map(|(text, line)| (text.to_owned(), line)));
        assert_eq!(parts("short", 5), [("short".to_owned(), 3)]);
    }

    proptest! {
        #[test]
        fn parts_tile_the_document(text in "[ab \né€]{0,80}", most in 8_u32..30) {
            let found = parts(&text, most);
            prop_assert!(found.iter().all(|(part, _)| part.len() <= most as usize));
            let mut line = 3;
            for (part, at) in &found {
                prop_assert_eq!(line, *at);
                line += part.matches('\n').count() as u32;
            }
            prop_assert_eq!(found.into_iter().map(|(part, _)| part).collect::<String>(), text);
        }
    }
}
