//! An index of all documents, which are read on demand.
//!
//! The index takes 16 bytes per document, so files may be larger than memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use weightloom_errors::FileError;
use weightloom_hub::text::OrderedJson;
use weightloom_hub::{DataFile, DataKind};

use super::error::DataError;
use super::format::SelectedFormat;
use super::hf_dataset::Purpose;
use super::parts::{Neighbour, Part};
use super::paths::{FoundFiles, Kind};
use super::record::{Content, Origin, Parsed, parse_fields};
use super::scan::{Entry, ScanSettings, ScannedFile, scan};
use super::state::FileFingerprint;
use super::table::fields;
use super::unpacked::plain_file;
use crate::config::BadLines;

/// The format of documents that are not records.
const TEXT_FILE: &str = "text file";

/// The size of the data.
#[allow(missing_docs)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataSize {
    pub files: usize,
    /// Files in folders with an unsupported extension, by extension.
    pub skipped_files: BTreeMap<String, usize>,
    /// Files of dataset folders that belong to other splits, by split.
    pub other_splits: BTreeMap<String, usize>,
    pub documents: usize,
    pub bytes: u64,
}

pub(super) struct Documents {
    files: Vec<Scanned>,
    entries: Vec<Entry>,
    /// The index after the last document of each set.
    ends: Vec<usize>,
    /// Parts that are not the first of their documents. All parts count as documents
    /// here.
    continuations: usize,
    format: SelectedFormat,
    bad_lines: BadLines,
    skipped_files: BTreeMap<String, usize>,
    other_splits: BTreeMap<String, usize>,
    prompt_style: PromptStyle,
}

/// How files are read.
pub(super) struct DocumentSettings<'a> {
    pub(super) scan: ScanSettings<'a>,
    pub(super) format: &'a SelectedFormat,
    pub(super) bad_lines: BadLines,
    /// The split of dataset folders that is read.
    pub(super) purpose: Purpose,
    /// The folder for plain copies of compressed files.
    pub(super) cache: &'a Path,
}

/// Records of a file that are tried for its kind, if the first are bad.
const TRIED: usize = 100;

/// How prompts look to a model that is trained on the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromptStyle {
    /// As they are.
    #[default]
    Plain,
    /// As user messages in a chat template.
    Chat,
}

struct Scanned {
    path: PathBuf,
    /// The file with the documents: a copy, if the file is compressed.
    plain: PathBuf,
    /// The columns of a table.
    columns: Vec<String>,
    kind: Kind,
    fingerprint: FileFingerprint,
    /// The index after its last document.
    end: usize,
}

impl Documents {
    /// Scans all files. The first object of each JSON file is parsed, so that a
    /// file in another format is found before the run starts.
    pub(super) fn new(sets: &[&[String]], settings: &DocumentSettings<'_>) -> Result<Self, DataError> {
        let DocumentSettings { scan: how, format, bad_lines, purpose, cache } = *settings;
        if let Some(separator) = how.separator.filter(|separator| separator.contains(['\n', '\r'])) {
            return Err(DataError::Separator { separator: separator.to_owned() });
        }
        let (mut files, mut entries, mut ends) = (Vec::new(), Vec::new(), Vec::with_capacity(sets.len()));
        let mut skipped_files: BTreeMap<String, usize> = BTreeMap::new();
        let mut other_splits: BTreeMap<String, usize> = BTreeMap::new();
        for paths in sets {
            let found = FoundFiles::new(paths, &format.kind, purpose)?;
            for (kind, count) in found.skipped_files {
                *skipped_files.entry(kind).or_default() += count;
            }
            for (split, count) in found.left_out {
                *other_splits.entry(split).or_default() += count;
            }
            for file in found.files {
                let plain = plain_file(&file, cache)?;
                let ScannedFile { whole, columns } = scan(&file, &plain, how, &mut entries)?;
                let fingerprint =
                    FileFingerprint { name: file.name, bytes: whole.bytes, checksum: whole.checksum };
                let (path, kind, end) = (file.path, file.kind, entries.len());
                files.push(Scanned { path, plain, columns, kind, fingerprint, end });
            }
            ends.push(entries.len());
        }
        entries.shrink_to_fit();
        let mut documents = Self {
            files,
            entries,
            ends,
            continuations: 0,
            format: format.clone(),
            bad_lines,
            skipped_files,
            other_splits,
            prompt_style: PromptStyle::Plain,
        };
        let mut first = 0;
        for file in &documents.files {
            let entries = &documents.entries[first..file.end];
            if file.kind == Kind::Text {
                documents.continuations += entries.windows(2).filter(|pair| are_joined(pair)).count();
            }
            first = file.end;
        }
        if documents.file_kinds()?.contains(&Some(DataKind::Chat)) {
            documents.prompt_style = PromptStyle::Chat;
        }
        Ok(documents)
    }

    /// The kind of the first readable document of each file, if there is one.
    fn file_kinds(&self) -> Result<Vec<Option<DataKind>>, DataError> {
        let mut first = 0;
        let mut kinds = Vec::with_capacity(self.files.len());
        for file in &self.files {
            kinds.push(self.kind_of(file, first..file.end)?);
            first = file.end;
        }
        Ok(kinds)
    }

    fn kind_of(&self, file: &Scanned, documents: Range<usize>) -> Result<Option<DataKind>, DataError> {
        // A text file may be one large document.
        if file.kind == Kind::Text {
            return Ok((!documents.is_empty()).then_some(DataKind::Text));
        }
        for document in documents.take(TRIED) {
            match self.read(document) {
                Ok((_, parsed)) => return Ok(Some(parsed.content.kind())),
                Err(error) if self.skips(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Whether a run continues after an error about a record.
    pub(super) fn skips(&self, error: &DataError) -> bool {
        self.bad_lines == BadLines::Drop && error.is_bad_record()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn size(&self) -> DataSize {
        DataSize {
            files: self.files.len(),
            skipped_files: self.skipped_files.clone(),
            other_splits: self.other_splits.clone(),
            documents: self.len() - self.continuations(),
            bytes: self.fingerprints().map(|file| file.bytes).sum(),
        }
    }

    /// The documents of each set, and their bytes.
    pub(super) fn sets(&self) -> Vec<(Range<usize>, u64)> {
        let mut first = 0;
        let set = |&end: &usize| {
            let range = first..end;
            first = end;
            let bytes = self.entries[range.clone()].iter().map(|entry| u64::from(entry.bytes)).sum();
            (range, bytes)
        };
        self.ends.iter().map(set).collect()
    }

    /// Where a document is in the one that it is a part of.
    pub(super) fn part(&self, number: usize) -> Part {
        if self.continuations == 0 {
            return Part::Whole;
        }
        let file = self.files.partition_point(|file| file.end <= number);
        if self.files[file].kind != Kind::Text {
            return Part::Whole;
        }
        let first = file.checked_sub(1).map_or(0, |before| self.files[before].end);
        let follows = |number: usize| match are_joined(&self.entries[number - 1..=number]) {
            true => Neighbour::Part,
            false => Neighbour::None,
        };
        let before = if number > first { follows(number) } else { Neighbour::None };
        let after = if number + 1 < self.files[file].end { follows(number + 1) } else { Neighbour::None };
        Part::between(before, after)
    }

    /// The number of parts that are not the first of their documents.
    pub(super) fn continuations(&self) -> usize {
        self.continuations
    }

    /// The fingerprints of all files.
    pub(super) fn fingerprints(&self) -> impl Iterator<Item = &FileFingerprint> + Clone {
        self.files.iter().map(|file| &file.fingerprint)
    }

    /// The files with documents, each with the kind of its first.
    pub(super) fn data_files(&self) -> Result<Vec<DataFile>, DataError> {
        let files = self.files.iter().zip(self.file_kinds()?);
        let found = files.filter_map(|(file, kind)| {
            let FileFingerprint { name, bytes, .. } = file.fingerprint.clone();
            Some(DataFile { name, bytes, kind: kind? })
        });
        Ok(found.collect())
    }

    /// Whether there are JSON files.
    pub(super) fn has_json(&self) -> bool {
        self.files.iter().any(|file| file.kind != Kind::Text)
    }

    /// Chat, if the first record of a file is a conversation.
    pub(super) fn prompt_style(&self) -> PromptStyle {
        self.prompt_style
    }

    /// The size of a document in bytes.
    pub(super) fn bytes(&self, number: usize) -> u64 {
        u64::from(self.entries[number].bytes)
    }

    fn file_of(&self, number: usize) -> &Scanned {
        &self.files[self.files.partition_point(|file| file.end <= number)]
    }

    /// The location of a document.
    pub(super) fn origin(&self, number: usize) -> Origin {
        let file = self.file_of(number).path.display().to_string();
        Origin { file, line: self.entries[number].line as usize }
    }

    /// The document with this index as it is in its file.
    pub(super) fn text(&self, number: usize) -> Result<String, DataError> {
        let origin = self.origin(number);
        String::from_utf8(bytes(self.file_of(number), self.entries[number], &origin)?).map_err(|error| {
            let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = origin.line + before.iter().filter(|&&byte| byte == b'\n').count();
            DataError::NotUtf8 { file: origin.file, line }
        })
    }

    fn read_table(
        &self,
        record: &str,
        delimiter: u8,
        number: usize,
        origin: &Origin,
    ) -> Result<Parsed, DataError> {
        let columns = &self.file_of(number).columns;
        let fields = fields(record, delimiter);
        if fields.len() != columns.len() {
            let Origin { file, line } = origin.clone();
            return Err(DataError::Fields { file, line, expected: columns.len(), found: fields.len() });
        }
        let fields = columns.iter().cloned().zip(fields.into_iter().map(OrderedJson::from));
        parse_fields(fields.collect(), &self.format.kind, origin)
    }

    /// Reads the document with this index.
    pub(super) fn read(&self, number: usize) -> Result<(Origin, Parsed), DataError> {
        let (origin, text) = (self.origin(number), self.text(number)?);
        let parsed = match self.file_of(number).kind {
            Kind::Text => Parsed { content: Content::Text(text), format: TEXT_FILE },
            Kind::Jsonl | Kind::JsonArray | Kind::Parquet => self.format.format.read(&text, &origin)?,
            Kind::Table { delimiter } => self.read_table(&text, delimiter, number, &origin)?,
        };
        Ok((origin, parsed))
    }
}

/// Whether two neighbours of a text file are parts of a document: between documents,
/// there is a separator.
fn are_joined(pair: &[Entry]) -> bool {
    matches!(pair, [before, after] if before.start + u64::from(before.bytes) == after.start)
}

fn bytes(file: &Scanned, entry: Entry, origin: &Origin) -> Result<Vec<u8>, DataError> {
    let name = || origin.file.clone();
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => DataError::Deleted { file: name() },
        _ => FileError::new("read", &file.plain, &error).into(),
    };
    // Opened for each document, so that a replaced file is noticed and no file
    // stays open.
    let mut open = File::open(&file.plain).map_err(failed)?;
    let found = open.metadata().map_err(failed)?.len();
    if found != file.fingerprint.bytes {
        return Err(DataError::Changed { file: name(), scanned: file.fingerprint.bytes, found });
    }
    open.seek(SeekFrom::Start(entry.start)).map_err(failed)?;
    let mut bytes = vec![0; entry.bytes as usize];
    open.read_exact(&mut bytes).map_err(failed)?;
    Ok(bytes)
}
