//! All documents, found once and read one by one.
//!
//! What is kept in memory is where each document lies: 16 bytes. Its text is
//! read when it is asked for, so files may be larger than memory.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::PathBuf;

use super::error::DataError;
use super::paths::{Found, Kind};
use super::record::{Content, Origin, content};
use super::scan::{Entry, scan};
use super::state::FileMark;
use crate::config::DataFormat;

/// How much there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Files that are read.
    pub files: usize,
    /// Files in folders that are not, because of how their names end.
    pub passed_over: usize,
    /// Documents in all files.
    pub documents: usize,
    /// Bytes of all files.
    pub bytes: u64,
}

pub(super) struct Documents {
    files: Vec<Scanned>,
    entries: Vec<Entry>,
    form: DataFormat,
    passed_over: usize,
}

struct Scanned {
    path: PathBuf,
    kind: Kind,
    mark: FileMark,
    /// One behind its last document.
    end: usize,
}

impl Documents {
    /// Scans all files of some paths. Of each JSONL file the first line is
    /// read, so that a file of the wrong kind is found before the run begins.
    pub(super) fn new(
        paths: &[String],
        separator: Option<&str>,
        form: DataFormat,
    ) -> Result<Self, DataError> {
        if let Some(separator) = separator.filter(|separator| separator.contains(['\n', '\r'])) {
            return Err(DataError::Separator { separator: separator.to_owned() });
        }
        let Found { files: found, passed_over } = Found::new(paths)?;
        let (mut files, mut entries) = (Vec::with_capacity(found.len()), Vec::new());
        for file in found {
            let whole = scan(&file, separator, &mut entries)?;
            let mark = FileMark { name: file.name, bytes: whole.bytes, checksum: whole.checksum };
            files.push(Scanned { path: file.path, kind: file.kind, mark, end: entries.len() });
        }
        entries.shrink_to_fit();
        let documents = Self { files, entries, form, passed_over };
        let mut first = 0;
        for file in &documents.files {
            if file.kind == Kind::Lines {
                documents.read(first)?;
            }
            first = file.end;
        }
        Ok(documents)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn extent(&self) -> Extent {
        Extent {
            files: self.files.len(),
            passed_over: self.passed_over,
            documents: self.len(),
            bytes: self.marks().map(|mark| mark.bytes).sum(),
        }
    }

    /// What tells these files from others.
    pub(super) fn marks(&self) -> impl Iterator<Item = &FileMark> + Clone {
        self.files.iter().map(|file| &file.mark)
    }

    /// Whether there may be conversations.
    pub(super) fn has_lines(&self) -> bool {
        self.files.iter().any(|file| file.kind == Kind::Lines)
    }

    /// Reads a document. Its number must be less than [`Self::len`].
    pub(super) fn read(&self, number: usize) -> Result<(Origin, Content), DataError> {
        let file = &self.files[self.files.partition_point(|file| file.end <= number)];
        let entry = self.entries[number];
        let origin = Origin { file: file.path.display().to_string(), line: entry.line as usize };
        let text = String::from_utf8(bytes(file, entry, &origin)?).map_err(|error| {
            let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = origin.line + before.iter().filter(|&&byte| byte == b'\n').count();
            DataError::NotUtf8 { file: origin.file.clone(), line }
        })?;
        let content = match file.kind {
            Kind::Text => Content::Text(text),
            Kind::Lines => content(&text, self.form, &origin)?,
        };
        Ok((origin, content))
    }
}

fn bytes(file: &Scanned, entry: Entry, origin: &Origin) -> Result<Vec<u8>, DataError> {
    let name = || origin.file.clone();
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => DataError::Vanished { file: name() },
        _ => DataError::Read { file: name(), message: error.to_string() },
    };
    // Opened anew for each document: a file that is replaced is noticed, and
    // however many files there are, none stays open.
    let mut open = File::open(&file.path).map_err(failed)?;
    let found = open.metadata().map_err(failed)?.len();
    if found != file.mark.bytes {
        return Err(DataError::Changed { file: name(), scanned: file.mark.bytes, found });
    }
    open.seek(SeekFrom::Start(entry.start)).map_err(failed)?;
    let mut bytes = vec![0; entry.bytes as usize];
    open.read_exact(&mut bytes).map_err(failed)?;
    Ok(bytes)
}
