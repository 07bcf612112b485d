//! Finding and parsing the records of CSV and TSV files.
//!
//! Fields may be in double quotes, and then contain the delimiter, line breaks
//! and doubled quotes. The first record names the columns.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use weightloom_errors::FileError;

use super::error::DataError;
use super::lines::FileSummary;

/// Size of the read buffer.
const BUFFER: usize = 1 << 20;

/// Bytes of a header at most.
const MAX_HEADER: usize = 1 << 20;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// The location of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TableRecord {
    /// Offset of its first byte.
    pub(super) start: u64,
    /// Offset of the next record.
    pub(super) end: u64,
    /// Number of its first line, starting at 1.
    pub(super) line: usize,
}

/// The length of a table and the names of its columns.
pub(super) struct Table {
    pub(super) summary: FileSummary,
    pub(super) columns: Vec<String>,
}

/// Calls `visit` for each record after the header.
pub(super) fn each_record(
    path: &Path,
    delimiter: u8,
    visit: &mut dyn FnMut(TableRecord) -> Result<(), DataError>,
) -> Result<Table, DataError> {
    let read_error = FileError::while_trying_to("read", path);
    let name = || path.display().to_string();
    let mut file = File::open(path).map_err(&read_error)?;
    let mut buffer = vec![0; BUFFER];
    let mut checksum = crc32fast::Hasher::new();
    let mut scan = Scan { at: 0, line: 1, start: 0, first_line: 1, is_blank: true, state: State::Start };
    let mut header = Vec::new();
    let mut columns = None;
    let mut take = |record: Option<TableRecord>, header: &mut Vec<u8>| match record {
        None => Ok(()),
        Some(record) if columns.is_some() => visit(record),
        Some(_) => {
            let text = std::mem::take(header);
            let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&text);
            let text = std::str::from_utf8(text).map_err(|_| DataError::NotUtf8 { file: name(), line: 1 })?;
            columns = Some(fields(text, delimiter));
            Ok(())
        }
    };
    let mut in_header = true;
    loop {
        let filled = match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(filled) => filled,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(read_error(error).into()),
        };
        checksum.update(&buffer[..filled]);
        for &byte in &buffer[..filled] {
            if in_header {
                header.push(byte);
                if header.len() > MAX_HEADER {
                    let what = "the size of the header in bytes";
                    return Err(DataError::TooLarge {
                        file: name(),
                        line: 1,
                        what,
                        limit: MAX_HEADER as u64,
                    });
                }
            }
            let record = scan.push(byte, delimiter);
            if in_header && byte == b'\n' && scan.start == scan.at {
                in_header = record.is_none();
                if in_header {
                    // A blank line before the header.
                    header.clear();
                }
            }
            take(record, &mut header)?;
        }
    }
    if scan.state == State::Quoted {
        return Err(DataError::OpenQuote { file: name(), line: scan.first_line });
    }
    let last = scan.end();
    take(last, &mut header)?;
    Ok(Table {
        summary: FileSummary { bytes: scan.at, checksum: checksum.finalize() },
        columns: columns.unwrap_or_default(),
    })
}

/// A place in a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first byte.
    Start,
    /// After a byte of a field without quotes.
    Plain,
    Quoted,
    /// After a quote in quotes, which ends the field or is the first of two.
    Quote,
}

impl State {
    fn after(self, byte: u8, delimiter: u8) -> Self {
        match (self, byte) {
            (Self::Quoted, b'"') => Self::Quote,
            (Self::Quoted, _) => Self::Quoted,
            (Self::Start | Self::Quote, b'"') => Self::Quoted,
            (_, byte) if byte == delimiter || byte == b'\n' => Self::Start,
            _ => Self::Plain,
        }
    }
}

struct Scan {
    at: u64,
    line: usize,
    start: u64,
    first_line: usize,
    is_blank: bool,
    state: State,
}

impl Scan {
    /// Takes the next byte; returns the record that it ends.
    fn push(&mut self, byte: u8, delimiter: u8) -> Option<TableRecord> {
        // A byte order mark belongs to no field.
        let mark = self.line == 1 && BYTE_ORDER_MARK.get(self.at as usize) == Some(&byte);
        if !mark {
            self.state = self.state.after(byte, delimiter);
        }
        self.at += 1;
        self.is_blank &= matches!(byte, b'\r' | b'\n');
        if byte != b'\n' {
            return None;
        }
        self.line += 1;
        (self.state != State::Quoted).then(|| self.end()).flatten()
    }

    /// Ends the record; `None` if it is a blank line.
    fn end(&mut self) -> Option<TableRecord> {
        let record = TableRecord { start: self.start, end: self.at, line: self.first_line };
        let is_blank = std::mem::replace(&mut self.is_blank, true);
        (self.start, self.first_line) = (self.at, self.line);
        (!is_blank && record.end > record.start).then_some(record)
    }
}

/// The fields of a record.
pub(super) fn fields(record: &str, delimiter: u8) -> Vec<String> {
    let record = record.strip_suffix('\n').unwrap_or(record);
    let record = record.strip_suffix('\r').unwrap_or(record);
    let mut fields = Vec::new();
    let (mut field, mut state) = (Vec::new(), State::Start);
    for &byte in record.as_bytes() {
        let before = state;
        state = state.after(byte, delimiter);
        match (before, byte) {
            // The first of two quotes, or the one that opens or closes a field.
            (State::Start, b'"') => {}
            (State::Quoted, b'"') => {}
            (State::Quoted, byte) => field.push(byte),
            (_, byte) if byte == delimiter => fields.push(std::mem::take(&mut field)),
            (_, byte) => field.push(byte),
        }
    }
    fields.push(field);
    // Cut at ASCII characters, which are never parts of others.
    fields.into_iter().map(|field| String::from_utf8_lossy(&field).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use proptest::prelude::*;

    use super::*;

    /// Records with their lines.
    type Records = Vec<(usize, Vec<String>)>;

    /// The columns and the records.
    fn table(text: &str, delimiter: u8) -> Result<(Vec<String>, Records), DataError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let mut records = Vec::new();
        let table = each_record(file.path(), delimiter, &mut |record| {
            let part = &text[record.start as usize..record.end as usize];
            records.push((record.line, fields(part, delimiter)));
            Ok(())
        })?;
        assert_eq!(table.summary.bytes, text.len() as u64);
        Ok((table.columns, records))
    }

    fn owned(fields: &[&str]) -> Vec<String> {
        fields.iter().map(|field| (*field).to_owned()).collect()
    }

    #[test]
    fn quotes_hold_delimiters_and_line_breaks() {
        let text = "\u{feff}a,\"b\"\"c\"\r\n\n\"one, two\nthree\",x \"y\"\r\n,\n\"\"\"\",\"\"";
        let (columns, records) = table(text, b',').unwrap();
        assert_eq!(columns, ["a", "b\"c"]);
        let expected =
            [(3, owned(&["one, two\nthree", "x \"y\""])), (5, owned(&["", ""])), (6, owned(&["\"", ""]))];
        assert_eq!(records, expected);
        let (columns, records) = table("\n\nx\ty\n1, 2\t\"3\t4\"", b'\t').unwrap();
        assert_eq!((columns, records), (owned(&["x", "y"]), vec![(4, owned(&["1, 2", "3\t4"]))]));
        assert_eq!(table("", b',').unwrap(), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_quote_without_an_end_is_an_error() {
        let error = table("a,b\n1,2\n3,\"4\n5\n", b',').unwrap_err();
        assert!(matches!(error, DataError::OpenQuote { line: 3, .. }), "{error}");
    }

    proptest! {
        /// Any table is read as it was written.
        #[test]
        fn tables_are_read_as_they_were_written(
            rows in prop::collection::vec(prop::collection::vec("[a,\"\n\r\t é]{0,6}", 3), 1..5),
            tabs in any::<bool>(),
        ) {
            let delimiter = if tabs { '\t' } else { ',' };
            let quoted = |field: &String| format!("\"{}\"", field.replace('"', "\"\""));
            let mut text = String::new();
            let (mut expected, mut line) = (Vec::new(), 1);
            for row in &rows {
                expected.push((line, row.clone()));
                let record = row.iter().map(quoted).collect::<Vec<_>>().join(&delimiter.to_string()) + "\n";
                line += record.matches('\n').count();
                text += &record;
            }
            let (columns, records) = table(&text, delimiter as u8).unwrap();
            prop_assert_eq!(&columns, &rows[0]);
            prop_assert_eq!(records, expected[1..].to_vec());
        }
    }
}
