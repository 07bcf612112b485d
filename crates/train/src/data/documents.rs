//! An index of all documents, which are read on demand.
//!
//! The index takes 16 bytes per document, so files may be larger than memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::PathBuf;

use weightloom_errors::FileError;
use weightloom_hub::{DataFile, DataKind};

use super::error::DataError;
use super::format::SelectedFormat;
use super::paths::{FoundFiles, Kind};
use super::record::{Content, Origin};
use super::scan::{Entry, scan};
use super::state::FileFingerprint;

/// The size of the data.
#[allow(missing_docs)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataSize {
    pub files: usize,
    /// Files in folders with an unsupported extension, by extension.
    pub skipped_files: BTreeMap<String, usize>,
    pub documents: usize,
    pub bytes: u64,
}

pub(super) struct Documents {
    files: Vec<Scanned>,
    entries: Vec<Entry>,
    format: SelectedFormat,
    skipped_files: BTreeMap<String, usize>,
    prompt_style: PromptStyle,
}

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
    kind: Kind,
    fingerprint: FileFingerprint,
    /// The index after its last document.
    end: usize,
}

impl Documents {
    /// Scans all files. The first object of each JSON file is parsed, so that a
    /// file in another format is found before the run starts.
    pub(super) fn new(
        paths: &[String],
        separator: Option<&str>,
        format: &SelectedFormat,
    ) -> Result<Self, DataError> {
        if let Some(separator) = separator.filter(|separator| separator.contains(['\n', '\r'])) {
            return Err(DataError::Separator { separator: separator.to_owned() });
        }
        let FoundFiles { files: found, skipped_files } = FoundFiles::new(paths, &format.kind)?;
        let (mut files, mut entries) = (Vec::with_capacity(found.len()), Vec::new());
        for file in found {
            let whole = scan(&file, separator, &mut entries)?;
            let fingerprint =
                FileFingerprint { name: file.name, bytes: whole.bytes, checksum: whole.checksum };
            files.push(Scanned { path: file.path, kind: file.kind, fingerprint, end: entries.len() });
        }
        entries.shrink_to_fit();
        let prompt_style = PromptStyle::Plain;
        let mut documents = Self { files, entries, format: format.clone(), skipped_files, prompt_style };
        let mut first = 0;
        for file in &documents.files {
            if file.kind != Kind::Text && documents.read(first)?.1.kind() == DataKind::Chat {
                documents.prompt_style = PromptStyle::Chat;
            }
            first = file.end;
        }
        Ok(documents)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn size(&self) -> DataSize {
        DataSize {
            files: self.files.len(),
            skipped_files: self.skipped_files.clone(),
            documents: self.len(),
            bytes: self.fingerprints().map(|file| file.bytes).sum(),
        }
    }

    /// The fingerprints of all files.
    pub(super) fn fingerprints(&self) -> impl Iterator<Item = &FileFingerprint> + Clone {
        self.files.iter().map(|file| &file.fingerprint)
    }

    /// The files with documents, each with the kind of its first.
    pub(super) fn data_files(&self) -> Result<Vec<DataFile>, DataError> {
        let mut first = 0;
        let mut found = Vec::with_capacity(self.files.len());
        for file in &self.files {
            if first < file.end {
                let kind = match file.kind {
                    // A text file may be one large document.
                    Kind::Text => DataKind::Text,
                    Kind::Jsonl | Kind::JsonArray => self.read(first)?.1.kind(),
                };
                let FileFingerprint { name, bytes, .. } = file.fingerprint.clone();
                found.push(DataFile { name, bytes, kind });
            }
            first = file.end;
        }
        Ok(found)
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

    /// Reads the document with this index.
    pub(super) fn read(&self, number: usize) -> Result<(Origin, Content), DataError> {
        let (origin, text) = (self.origin(number), self.text(number)?);
        let content = match self.file_of(number).kind {
            Kind::Text => Content::Text(text),
            Kind::Jsonl | Kind::JsonArray => self.format.format.read(&text, &origin)?,
        };
        Ok((origin, content))
    }
}

fn bytes(file: &Scanned, entry: Entry, origin: &Origin) -> Result<Vec<u8>, DataError> {
    let name = || origin.file.clone();
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => DataError::Deleted { file: name() },
        _ => FileError::new("read", &file.path, &error).into(),
    };
    // Opened for each document, so that a replaced file is noticed and no file
    // stays open.
    let mut open = File::open(&file.path).map_err(failed)?;
    let found = open.metadata().map_err(failed)?.len();
    if found != file.fingerprint.bytes {
        return Err(DataError::Changed { file: name(), scanned: file.fingerprint.bytes, found });
    }
    open.seek(SeekFrom::Start(entry.start)).map_err(failed)?;
    let mut bytes = vec![0; entry.bytes as usize];
    open.read_exact(&mut bytes).map_err(failed)?;
    Ok(bytes)
}
