//! Finding the documents in a file.

use std::path::Path;

use super::error::DataError;
use super::json_array::each_object;
use super::lines::{Content, FileSummary, Line, each_line};
use super::parts;
use super::paths::{FoundFile, Kind};
use super::table::each_record;

/// The location of a document in its file. Small, because there may be many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) start: u64,
    pub(super) bytes: u32,
    /// Number of its first line, starting at 1.
    pub(super) line: u32,
}

/// The largest document of a text file: about ten times as much is in memory.
const MAX_TEXT: u64 = 1 << 30;

/// The largest object of a JSON file: parsed, it may take a hundred times as much.
const MAX_OBJECT: u64 = 64 << 20;

/// Appends the documents of a file to `entries`, from its plain copy.
pub(super) fn scan(
    file: &FoundFile,
    plain: &Path,
    settings: ScanSettings<'_>,
    entries: &mut Vec<Entry>,
) -> Result<ScannedFile, DataError> {
    let ScanSettings { separator, part_bytes } = settings;
    let before = entries.len();
    let mut columns = Vec::new();
    let whole = match file.kind {
        // Parquet is unpacked to JSONL.
        Kind::Jsonl | Kind::Parquet => each_line(plain, 0, &mut |line| {
            if line.content == Content::Some {
                entries.push(entry(file, line.start, line.end, line.number)?);
            }
            Ok(())
        }),
        Kind::JsonArray => each_object(plain, &mut |object| {
            entries.push(entry(file, object.start, object.end, object.line)?);
            Ok(())
        }),
        Kind::Table { delimiter } => each_record(plain, delimiter, &mut |record| {
            entries.push(entry(file, record.start, record.end, record.line)?);
            Ok(())
        })
        .map(|table| {
            columns = table.columns;
            table.summary
        }),
        Kind::Text => text(file, plain, separator, entries),
    }?;
    if let Some(most) = part_bytes.filter(|_| file.kind == Kind::Text)
        && entries[before..].iter().any(|entry| entry.bytes > most)
    {
        for document in entries.split_off(before) {
            parts::cut(plain, document, most, entries)?;
        }
    }
    if entries.len() == before {
        return Err(DataError::Empty { file: file.path.display().to_string() });
    }
    Ok(ScannedFile { whole, columns })
}

/// How documents are found.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScanSettings<'a> {
    /// The line between the documents of a text file.
    pub(super) separator: Option<&'a str>,
    /// Longer documents of text files are cut into parts.
    pub(super) part_bytes: Option<u32>,
}

/// What is known about a file besides its documents.
#[derive(Debug)]
pub(super) struct ScannedFile {
    pub(super) whole: FileSummary,
    /// The columns of a table.
    pub(super) columns: Vec<String>,
}

/// A document whose end is not found yet.
struct OpenDocument {
    start: u64,
    end: u64,
    line: usize,
    content: Content,
}

fn text(
    file: &FoundFile,
    plain: &Path,
    separator: Option<&str>,
    entries: &mut Vec<Entry>,
) -> Result<FileSummary, DataError> {
    // One byte more than the separator and `\r`, to detect longer lines.
    let keep = separator.map_or(0, |separator| separator.len() + 2);
    let separates = |line: &Line<'_>| {
        let head = line.head.strip_suffix(b"\r").unwrap_or(line.head);
        separator.is_some_and(|separator| separator.as_bytes() == head)
    };
    let mut open: Option<OpenDocument> = None;
    let mut close = |open: &mut Option<OpenDocument>| match open.take() {
        Some(OpenDocument { start, end, line, content: Content::Some }) => {
            entries.push(entry(file, start, end, line)?);
            Ok(())
        }
        _ => Ok(()),
    };
    let whole = each_line(plain, keep, &mut |line| {
        if separates(&line) {
            return close(&mut open);
        }
        let text = open.get_or_insert(OpenDocument {
            start: line.start,
            end: line.end,
            line: line.number,
            content: Content::Blank,
        });
        text.end = line.end;
        if line.content == Content::Some {
            text.content = Content::Some;
        }
        Ok(())
    })?;
    close(&mut open)?;
    Ok(whole)
}

fn entry(file: &FoundFile, start: u64, end: u64, line: usize) -> Result<Entry, DataError> {
    let small = |what: &'static str, number: u64, limit: u64| {
        u32::try_from(number).ok().filter(|_| number <= limit).ok_or_else(|| DataError::TooLarge {
            file: file.path.display().to_string(),
            line,
            what,
            limit,
        })
    };
    let most = match file.kind {
        Kind::Text => MAX_TEXT,
        Kind::Jsonl | Kind::JsonArray | Kind::Table { .. } | Kind::Parquet => MAX_OBJECT,
    };
    Ok(Entry {
        start,
        bytes: small("the size of a document in bytes", end - start, most)?,
        line: small("the line number", line as u64, u64::from(u32::MAX))?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    fn scanned(kind: Kind, text: &str, separator: Option<&str>) -> Result<Vec<(String, u32)>, DataError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let (path, name) = (file.path().to_owned(), "x".to_owned());
        let found = FoundFile { path, name, kind, compression: None };
        let mut entries = Vec::new();
        scan(&found, &found.path, ScanSettings { separator, part_bytes: None }, &mut entries)?;
        let cut = |entry: &Entry| {
            let start = entry.start as usize;
            (text[start..start + entry.bytes as usize].to_owned(), entry.line)
        };
        Ok(entries.iter().map(cut).collect())
    }

    fn expect(found: Result<Vec<(String, u32)>, DataError>, expected: &[(&str, u32)]) {
        let found = found.unwrap();
        let found: Vec<(&str, u32)> = found.iter().map(|(text, line)| (text.as_str(), *line)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_separator_splits_a_text_into_documents() {
        expect(scanned(Kind::Text, "\none\n---\ntwo\n", None), &[("\none\n---\ntwo\n", 1)]);
        let text = "one\n---\n\n---\r\n---\n\ntwo\n---- \n---\nthree";
        let expected = [("one\n", 1), ("\ntwo\n---- \n", 6), ("three", 10)];
        expect(scanned(Kind::Text, text, Some("---")), &expected);
        // An empty line can be the separator.
        expect(scanned(Kind::Text, "a\nb\n\n\nc", Some("")), &[("a\nb\n", 1), ("c", 5)]);
    }

    #[test]
    fn each_jsonl_line_is_a_document() {
        expect(
            scanned(Kind::Jsonl, "{}\n\n \r\n[]\r\n7", Some("7")),
            &[("{}\n", 1), ("[]\r\n", 4), ("7", 5)],
        );
    }

    #[test]
    fn files_without_documents_are_errors() {
        for (kind, text, separator) in [
            (Kind::Text, "", None),
            (Kind::Text, " \n", None),
            (Kind::Text, "-\n-\n", Some("-")),
            (Kind::Jsonl, "\n\n", None),
            (Kind::JsonArray, "[]", None),
        ] {
            assert!(matches!(scanned(kind, text, separator), Err(DataError::Empty { .. })), "{text:?}");
        }
    }

    #[test]
    fn oversized_documents_are_errors() {
        let (path, name) = ("x.txt".into(), "x.txt".to_owned());
        let file = FoundFile { path, name, kind: Kind::Text, compression: None };
        let large = |error: DataError| match error {
            DataError::TooLarge { what, line, .. } => (what, line),
            other => panic!("{other:?}"),
        };
        let (what, line) = large(entry(&file, 7, 8 + MAX_TEXT, 3).unwrap_err());
        assert_eq!((what.contains("bytes"), line), (true, 3));
        assert!(entry(&file, 7, 7 + MAX_TEXT, 3).is_ok());
        let objects = FoundFile { kind: Kind::Jsonl, ..file.clone() };
        assert!(entry(&objects, 0, MAX_OBJECT, 3).is_ok());
        assert!(entry(&objects, 0, MAX_OBJECT + 1, 3).is_err());
        let (what, _) = large(entry(&file, 0, 1, 1 << 32).unwrap_err());
        assert!(what.contains("line"));
    }
}
