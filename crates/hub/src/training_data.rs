//! The record of how training data were formatted.
//!
//! A training run saves it beside the weights of every checkpoint, so that
//! programs that use the model or the adapter can format prompts the same way.

use std::fmt;
use std::path::Path;

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use weightloom_errors::{FileError, Hint};

/// How the data of a training run were formatted.
///
/// ```
/// use weightloom_hub::{DataKind, TrainingData};
///
/// let record = TrainingData { kinds: vec![DataKind::Chat], ..TrainingData::default() };
/// let read = TrainingData::from_json(&record.to_json())?;
/// assert!(read.has_chats());
/// # Ok::<(), weightloom_hub::TrainingDataError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainingData {
    /// Version of this format.
    pub version: u32,
    /// The kinds of documents, without duplicates.
    pub kinds: Vec<DataKind>,
    /// The chat template that conversations were rendered with.
    pub chat_template: Option<TemplateRecord>,
    /// Where the system prompts of conversations came from.
    pub system_prompt: Option<SystemPrompt>,
    /// The tokens that contributed to the loss, as in `data.train_on`.
    pub train_on: String,
    /// Tokens per row.
    pub max_seq_len: usize,
    /// Whether rows hold several documents.
    pub packing: bool,
    /// The training files.
    pub files: Vec<DataFile>,
    /// The evaluation files, which were not trained on.
    pub eval_files: Vec<DataFile>,
}

/// A kind of document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataKind {
    /// Conversations, rendered with a chat template.
    Chat,
    /// Prompts with completions, as plain text.
    PromptCompletion,
    /// Plain text.
    Text,
}

impl fmt::Display for DataKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Chat => "chats",
            Self::PromptCompletion => "prompts with completions",
            Self::Text => "plain text",
        })
    }
}

/// The chat template of a training run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateRecord {
    /// Where it came from.
    pub source: TemplateSource,
    /// SHA-256 of its text, in hexadecimal.
    pub sha256: String,
}

impl TemplateRecord {
    /// The record of a template.
    pub fn new(source: TemplateSource, template: &str) -> Self {
        let hash = digest(&SHA256, template.as_bytes());
        Self { source, sha256: hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect() }
    }
}

/// Where a chat template came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TemplateSource {
    /// The tokenizer of the model.
    Tokenizer,
    /// A file that the config names.
    File(String),
}

/// Where the system prompts of conversations came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SystemPrompt {
    /// The conversations. For one without a system message, the template decides.
    Messages,
}

/// A data file of a training run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataFile {
    /// The file, as the run found it.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// The kind of its first document.
    pub kind: DataKind,
}

/// Whether a file was trained on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrainedOn {
    /// It was.
    Yes,
    /// It was not: the record names other files.
    No,
    /// The record has a file of that name and another size.
    Unknown,
}

impl TrainingData {
    /// The name of the file.
    pub const FILE: &'static str = "training_data.json";

    /// The version that this program writes.
    pub const VERSION: u32 = 1;

    /// The record in a folder; none if the folder has none.
    pub fn from_folder(folder: &Path) -> Result<Option<Self>, TrainingDataError> {
        let path = folder.join(Self::FILE);
        match std::fs::read(&path) {
            Ok(bytes) => Self::from_json(&bytes).map(Some),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(FileError::new("read", &path, &error).into()),
        }
    }

    /// Parses a record.
    pub fn from_json(bytes: &[u8]) -> Result<Self, TrainingDataError> {
        let record: Self = serde_json::from_slice(bytes)
            .map_err(|error| TrainingDataError::Syntax { message: error.to_string() })?;
        if record.version > Self::VERSION {
            return Err(TrainingDataError::Version { found: record.version });
        }
        Ok(record)
    }

    /// The record as the bytes of its file.
    pub fn to_json(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// Whether some of the data were conversations.
    pub fn has_chats(&self) -> bool {
        self.kinds.contains(&DataKind::Chat)
    }

    /// Whether a file was trained on, by its name without folders and its size.
    pub fn trained_on(&self, file: &Path, bytes: u64) -> TrainedOn {
        let same_name = |known: &&DataFile| Path::new(&known.name).file_name() == file.file_name();
        let same_size = |known: &&DataFile| known.bytes == bytes;
        let mut named = self.files.iter().filter(same_name).peekable();
        match (named.peek().is_some(), named.any(|known| same_size(&known))) {
            (_, true) => TrainedOn::Yes,
            (true, false) => TrainedOn::Unknown,
            (false, false) if self.eval_files.iter().any(|known| same_name(&known) && same_size(&known)) => {
                TrainedOn::No
            }
            // A renamed copy has the same size.
            (false, false) if self.files.iter().any(|known| same_size(&known)) => TrainedOn::Unknown,
            (false, false) => TrainedOn::No,
        }
    }
}

/// A record that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum TrainingDataError {
    #[error("cannot parse `{}`: {message}", TrainingData::FILE)]
    Syntax { message: String },
    #[error(
        "cannot read version {found} of `{}`: this program reads up to version {}",
        TrainingData::FILE,
        TrainingData::VERSION
    )]
    Version { found: u32 },
    #[error(transparent)]
    File(#[from] FileError),
}

impl Hint for TrainingDataError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Syntax { .. } => Some("delete the file; prompts are then not formatted by it".to_owned()),
            Self::Version { .. } => Some("use a newer version of weightloom".to_owned()),
            Self::File(error) => error.hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> TrainingData {
        let file = |name: &str, bytes| DataFile { name: name.to_owned(), bytes, kind: DataKind::Chat };
        TrainingData {
            version: TrainingData::VERSION,
            kinds: vec![DataKind::Chat],
            chat_template: Some(TemplateRecord::new(TemplateSource::Tokenizer, "{{ messages }}")),
            system_prompt: Some(SystemPrompt::Messages),
            train_on: "completions".to_owned(),
            max_seq_len: 512,
            packing: true,
            files: vec![file("data/chats.jsonl", 100)],
            eval_files: vec![file("data/held.jsonl", 30)],
        }
    }

    #[test]
    fn a_record_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(TrainingData::from_folder(folder.path()), Ok(None));
        std::fs::write(folder.path().join(TrainingData::FILE), record().to_json()).unwrap();
        assert_eq!(TrainingData::from_folder(folder.path()), Ok(Some(record())));
        let text = String::from_utf8(record().to_json()).unwrap();
        for part in [r#""kinds": ["#, r#""chat""#, r#""source": "tokenizer""#, r#""sha256": ""#] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn broken_and_newer_records_are_errors() {
        let broken = TrainingData::from_json(b"{").unwrap_err();
        let newer = TrainingData::from_json(br#"{"version": 99}"#).unwrap_err();
        assert!(matches!(broken, TrainingDataError::Syntax { .. }) && broken.hint().is_some());
        assert!(newer == TrainingDataError::Version { found: 99 } && newer.hint().is_some());
    }

    #[test]
    fn files_are_recognised_by_name_and_size() {
        let of = |name: &str, bytes| record().trained_on(Path::new(name), bytes);
        assert_eq!(of("elsewhere/chats.jsonl", 100), TrainedOn::Yes);
        assert_eq!(of("chats.jsonl", 101), TrainedOn::Unknown);
        assert_eq!(of("copy.jsonl", 100), TrainedOn::Unknown);
        assert_eq!(of("held.jsonl", 30), TrainedOn::No);
    }
}
