//! Finding the records of a JSON array in constant memory.
//!
//! Only the structure of the array is read here: where each object starts and
//! ends. The objects are parsed when they are needed.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use weightloom_errors::FileError;

use super::error::DataError;
use super::lines::FileSummary;

/// Size of the read buffer.
const BUFFER: usize = 1 << 20;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// The location of an object in an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArrayElement {
    /// Offset of its first byte.
    pub(super) start: u64,
    /// Offset after its last byte.
    pub(super) end: u64,
    /// Number of its first line, starting at 1.
    pub(super) line: usize,
}

/// Calls `visit` for each object of an array.
pub(super) fn each_object(
    path: &Path,
    visit: &mut dyn FnMut(ArrayElement) -> Result<(), DataError>,
) -> Result<FileSummary, DataError> {
    let read_error = FileError::while_trying_to("read", path);
    let mut file = File::open(path).map_err(&read_error)?;
    let mut buffer = vec![0; BUFFER];
    let mut checksum = crc32fast::Hasher::new();
    let mut scan = ArrayScan { at: 0, line: 1, state: State::Before, depth: 0, string: InString::No };
    let failed = |line: usize, reason: &'static str| DataError::NotAnArray {
        file: path.display().to_string(),
        line,
        reason,
    };
    loop {
        let filled = match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(filled) => filled,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(read_error(error).into()),
        };
        checksum.update(&buffer[..filled]);
        for &byte in &buffer[..filled] {
            if let Some(element) = scan.push(byte).map_err(|reason| failed(scan.line, reason))? {
                visit(element)?;
            }
            scan.at += 1;
            scan.line += usize::from(byte == b'\n');
        }
    }
    match scan.state {
        State::After => Ok(FileSummary { bytes: scan.at, checksum: checksum.finalize() }),
        State::Before => Err(failed(scan.line, "the file is empty")),
        _ => Err(failed(scan.line, "the array has no end")),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Before,
    /// After `[`.
    First,
    /// After a comma.
    Next,
    Inside(ArrayElement),
    /// After an object.
    Between,
    After,
}

/// Whether a byte is part of a string.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InString {
    No,
    Yes,
    /// After a backslash.
    Escaped,
}

struct ArrayScan {
    at: u64,
    line: usize,
    state: State,
    depth: usize,
    string: InString,
}

impl ArrayScan {
    /// Takes the next byte; returns the object that it ends.
    fn push(&mut self, byte: u8) -> Result<Option<ArrayElement>, &'static str> {
        if let State::Inside(element) = self.state {
            if self.ends_object(byte) {
                self.state = State::Between;
                return Ok(Some(ArrayElement { end: self.at + 1, ..element }));
            }
            return Ok(None);
        }
        if byte.is_ascii_whitespace() {
            return Ok(None);
        }
        self.state = match (self.state, byte) {
            (State::Before, b'[') => State::First,
            (State::Before, _) if BYTE_ORDER_MARK.get(self.at as usize) == Some(&byte) => State::Before,
            (State::Before, _) => return Err("it does not start with `[`"),
            (State::First | State::Next, b'{') => {
                (self.depth, self.string) = (1, InString::No);
                State::Inside(ArrayElement { start: self.at, end: self.at, line: self.line })
            }
            (State::First, b']') | (State::Between, b']') => State::After,
            (State::First | State::Next, _) => return Err("an element is not an object"),
            (State::Between, b',') => State::Next,
            (State::Between, _) => return Err("there is no comma between two objects"),
            (State::After, _) => return Err("something follows the array"),
            (State::Inside(_), _) => self.state,
        };
        Ok(None)
    }

    /// Whether a byte ends the object that it is in.
    fn ends_object(&mut self, byte: u8) -> bool {
        self.string = match (self.string, byte) {
            (InString::Yes, b'\\') => InString::Escaped,
            (InString::Yes, b'"') => InString::No,
            (InString::Yes | InString::Escaped, _) => InString::Yes,
            (InString::No, b'"') => InString::Yes,
            (InString::No, b'{' | b'[') => {
                self.depth += 1;
                InString::No
            }
            (InString::No, b'}' | b']') => {
                self.depth -= 1;
                return self.depth == 0;
            }
            (InString::No, _) => InString::No,
        };
        false
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn objects(text: &[u8]) -> Result<Vec<(String, usize)>, (usize, &'static str)> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let mut found = Vec::new();
        let read = each_object(file.path(), &mut |element| {
            let part = text[element.start as usize..element.end as usize].to_vec();
            found.push((String::from_utf8(part).unwrap(), element.line));
            Ok(())
        });
        match read {
            Ok(summary) => {
                assert_eq!(summary.bytes, text.len() as u64);
                Ok(found)
            }
            Err(DataError::NotAnArray { line, reason, .. }) => Err((line, reason)),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn objects_are_found_with_their_lines() {
        let text = "\u{feff} [\n{\"a\": \"}]\\\"{\"},\n {\"b\": [{}, []]}\n]\n";
        let expected = [("{\"a\": \"}]\\\"{\"}".to_owned(), 2), ("{\"b\": [{}, []]}".to_owned(), 3)];
        assert_eq!(objects(text.as_bytes()), Ok(expected.to_vec()));
        assert_eq!(objects(b"[]"), Ok(Vec::new()));
    }

    #[test]
    fn anything_else_is_named() {
        for (text, line, reason) in [
            ("", 1, "the file is empty"),
            ("\n{\"a\": 1}\n{\"a\": 2}", 2, "it does not start with `[`"),
            ("[1, 2]", 1, "an element is not an object"),
            ("[{},\n]", 2, "an element is not an object"),
            ("[{}\n{}]", 2, "there is no comma between two objects"),
            ("[{}]\n\nx", 3, "something follows the array"),
            ("[{}, {\"a\": \"b\n", 2, "the array has no end"),
            ("[", 1, "the array has no end"),
        ] {
            assert_eq!(objects(text.as_bytes()), Err((line, reason)), "{text:?}");
        }
    }

    proptest! {
        /// Any array of objects is taken apart, however it is printed.
        #[test]
        fn all_objects_are_found(texts in prop::collection::vec("[a-z\\[\\]{},:\"\\\\\n ]{0,9}", 0..6)) {
            let array: Vec<Value> = texts.iter().map(|text| json!({"text": text, "more": [{"x": text}]})).collect();
            let expected: Vec<Value> = array.clone();
            for text in [serde_json::to_string(&array).unwrap(), serde_json::to_string_pretty(&array).unwrap()] {
                let found = objects(text.as_bytes()).unwrap();
                let found: Vec<Value> = found.iter().map(|(text, _)| serde_json::from_str(text).unwrap()).collect();
                prop_assert_eq!(&found, &expected);
            }
        }
    }
}
