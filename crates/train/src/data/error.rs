//! Errors of training data.

use weightloom_errors::{FileError, Hint, name_list, nearest};
use weightloom_hub::text::{ChatError, TextError};

use super::parquet::ParquetError;
use super::status::DropReason;
use super::summary::DroppedDocuments;
use crate::extensions::UnknownName;

/// The keys that identify the format of a JSONL line.
const KEYS: [&str; 9] = [
    "text",
    "prompt",
    "completion",
    "messages",
    "instruction",
    "output",
    "conversations",
    "chosen",
    "rejected",
];

/// Training data that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum DataError {
    #[error("`data.paths` is empty")]
    NoPaths,
    #[error("cannot find `{path}`")]
    NotFound { path: String },
    #[error("`{path}` contains no files of a type that can be read")]
    NoFiles { path: String },
    #[error("cannot read the dataset card `{file}`: {reason}")]
    DatasetCard { file: String, reason: String },
    #[error("`{folder}` has several datasets: {}", listed(.configs))]
    DatasetConfigs { folder: String, configs: Vec<String> },
    #[error("`{folder}` has no split for {wanted}; found {}", listed(.splits))]
    NoSplit { folder: String, wanted: &'static str, splits: Vec<String> },
    #[error("invalid glob pattern `{pattern}`: {message}")]
    Pattern { pattern: String, message: String },
    #[error(transparent)]
    File(#[from] FileError),
    #[error("cannot train on `{path}`: it is {kind}, not a file")]
    NotAFile { path: String, kind: &'static str },
    #[error("cannot read `{file}`: {}", file_type(.extension.as_deref()))]
    FileType { file: String, extension: Option<String> },
    #[error("{file}:{line}: cannot read a JSON array of objects: {reason}")]
    NotAnArray { file: String, line: usize, reason: &'static str },
    #[error("cannot decompress `{file}`: {reason}")]
    Compressed { file: String, reason: String },
    #[error("cannot read `{file}`")]
    Parquet { file: String, source: ParquetError },
    #[error("{file}:{line}: the record has no end: a quote is not closed")]
    OpenQuote { file: String, line: usize },
    #[error("{file}:{line}: the record has {found} fields, and the header {expected}")]
    Fields { file: String, line: usize, expected: usize, found: usize },
    #[error("`{file}` contains no documents")]
    Empty { file: String },
    #[error("{file}:{line}: {what} exceeds {limit}")]
    TooLarge { file: String, line: usize, what: &'static str, limit: u64 },
    #[error("`data.separator` {separator:?} is longer than one line")]
    Separator { separator: String },
    #[error("`data.format`: {0}")]
    Format(#[from] UnknownName),
    /// A record that a format of a user rejects.
    #[error("{file}:{line}: cannot read the record as `{format}`: {reason}")]
    Record { file: String, line: usize, format: String, reason: String },
    #[error("{file}:{line}:{column}: {message}")]
    Syntax { file: String, line: usize, column: usize, message: String },
    #[error("{file}:{line}: cannot detect the format from the keys {}", listed(.keys))]
    UnknownFormat { file: String, line: usize, keys: Vec<String> },
    #[error("{file}:{line}: the keys {} belong to several formats", listed(.keys))]
    Ambiguous { file: String, line: usize, keys: Vec<String> },
    #[error("{file}:{line}: missing key `{key}`; found {}", listed(.keys))]
    MissingKey { file: String, line: usize, key: &'static str, keys: Vec<String> },
    #[error("{file}:{line}: `{key}` must be {expected}, not {found}")]
    WrongType { file: String, line: usize, key: String, expected: &'static str, found: &'static str },
    #[error("{file}:{line}: invalid UTF-8")]
    NotUtf8 { file: String, line: usize },
    #[error("`{file}` changed during the run, from {scanned} to {found} bytes")]
    Changed { file: String, scanned: u64, found: u64 },
    #[error("`{file}` was deleted during the run")]
    Deleted { file: String },
    #[error("no tokenizer for `data.paths`")]
    NoTokenizer,
    #[error("cannot serialize the tokenizer")]
    Tokenizer { source: TextError },
    #[error("{file}:{line}: the tokenizer has no chat template to render this conversation with")]
    NoTemplate { file: String, line: usize },
    #[error("cannot use the chat template `{file}`")]
    TemplateFile { file: String, source: ChatError },
    #[error("{file}:{line}: cannot render the conversation")]
    Chat { file: String, line: usize, source: ChatError },
    #[error("{file}:{line}: cannot locate message {message} in the rendered chat template")]
    UnlocatedMessage { file: String, line: usize, message: usize },
    #[error("{file}:{line}: cannot tokenize the document")]
    Encode { file: String, line: usize, source: TextError },
    #[error("cannot tokenize the sample prompt {prompt:?}")]
    SamplePrompt { prompt: String, source: TextError },
    #[error("cannot render the sample prompt {prompt:?} with the chat template")]
    SampleChat { prompt: String, source: ChatError },
    #[error("{file}:{line}: token {token} exceeds the model's vocabulary of {vocabulary}")]
    Token { file: String, line: usize, token: u32, vocabulary: usize },
    #[error("`data.max_seq_len` is 0")]
    NoLength,
    #[error("cannot generate dummy data for an empty vocabulary")]
    NoVocabulary,
    #[error("none of {documents} documents has a token that contributes to the loss")]
    NoTargets { documents: usize },
    #[error(
        "cannot train on {dropped} of {read} documents, a larger share than `data.max_dropped` ({limit}): {}",
        dropped_list(.reasons)
    )]
    TooManyDropped { dropped: u64, read: u64, limit: String, reasons: Vec<DroppedDocuments> },
    #[error("{file}:{line}: the loss trains on {needed}, but the document belongs to {found}")]
    OtherDocuments { file: String, line: usize, found: &'static str, needed: &'static str },
    #[error("dummy data has no preferences")]
    DummyPreferences,
    #[error("dummy data has no epochs")]
    NoEpochs,
    #[error("a batch must have at least one row")]
    NoRows,
    #[error("invalid rows {start}..{end} of a batch of {rows}")]
    RowRange { start: usize, end: usize, rows: usize },
    #[error("`{setting}` is {found}, but was {saved} in the checkpoint")]
    OtherSetting { setting: String, saved: String, found: String },
    #[error("the data changed since the checkpoint: {change}")]
    OtherFiles { change: FileChange },
    #[error("invalid data position: {what} {number} of {limit}")]
    Position { what: &'static str, number: u64, limit: u64 },
    #[error("cannot start the data thread: {message}")]
    Thread { message: String },
    #[error("the data thread stopped unexpectedly")]
    ThreadStopped,
}

/// How files differ from those of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum FileChange {
    #[error("`{file}` is missing")]
    Missing { file: String },
    #[error("`{file}` is new")]
    New { file: String },
    #[error("`{file}` has changed, from {saved} bytes to {found}")]
    Content { file: String, saved: u64, found: u64 },
    #[error("the order of files has changed, first at `{file}`")]
    Order { file: String },
    #[error("files after the first {listed} have changed")]
    Unlisted { listed: usize },
}

impl DataError {
    /// Whether it is about a single record, which a run can do without.
    pub(super) fn is_bad_record(&self) -> bool {
        matches!(
            self,
            Self::Record { .. }
                | Self::Syntax { .. }
                | Self::UnknownFormat { .. }
                | Self::Ambiguous { .. }
                | Self::MissingKey { .. }
                | Self::WrongType { .. }
                | Self::NotUtf8 { .. }
                | Self::Fields { .. }
                | Self::Chat { .. }
                | Self::UnlocatedMessage { .. }
        )
    }
}

impl Hint for DataError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NoPaths => "list files, folders or glob patterns in `data.paths`",
            Self::NotFound { .. } => "check the path; `*` matches any part of a name",
            Self::NoFiles { .. } => "use text, Markdown, JSONL, JSON, CSV, TSV or Parquet files",
            Self::NotAFile { .. } => "write the data to a file first: it is read more than once",
            Self::FileType { .. } => {
                "set `data.format: text` to train on it as plain text, or convert it to JSONL"
            }
            Self::NotAnArray { .. } => {
                "write [{…}, {…}], or one object per line in a file that ends in .jsonl"
            }
            Self::TooManyDropped { dropped, read, reasons, .. } => {
                return Some(dropped_hint(*dropped as f64 / *read as f64, reasons));
            }
            Self::Empty { .. } => "delete it, or remove it from `data.paths`",
            Self::Compressed { .. } => "check that the file is complete, or compress it again",
            Self::Parquet { source: ParquetError::Unsupported(_), .. } => {
                "write the file again with Snappy, gzip or Zstandard, or as JSONL"
            }
            Self::DatasetCard { .. } => "correct the card, or name the files, as in `folder/data/train-*`",
            Self::DatasetConfigs { .. } | Self::NoSplit { .. } => {
                "name the files that you want, as in `folder/data/train-*`"
            }
            Self::OpenQuote { .. } => "close the quote, and write a quote in a quoted field twice",
            Self::Fields { .. } => "put fields that contain the delimiter in double quotes",
            Self::TooLarge { .. } => "split the file, or set `data.separator`",
            Self::Separator { .. } => "set `data.separator` to a single line",
            Self::UnknownFormat { keys, .. } => return Some(format_hint(keys)),
            Self::Ambiguous { .. } => {
                "set `data.format` to text, prompt_completion, chat, alpaca or sharegpt"
            }
            Self::MissingKey { key, keys, .. } => {
                return nearest(key, keys.iter().map(String::as_str))
                    .map(|near| format!("rename `{near}` to `{key}`"));
            }
            Self::WrongType { key, .. } if key.starts_with("messages") => {
                "write messages as {\"role\": \"user\", \"content\": \"…\"}"
            }
            Self::WrongType { key, .. } if key.starts_with("conversations") => {
                "write turns as {\"from\": \"human\", \"value\": \"…\"}"
            }
            Self::NotUtf8 { .. } => "convert the file to UTF-8",
            Self::Changed { .. } | Self::Deleted { .. } => {
                "do not change files during a run; restore the file and resume"
            }
            Self::NoTokenizer => "use a model with a tokenizer, or set `data.type: dummy`",
            Self::NoTemplate { .. } => {
                "set `data.chat_template` to a file with a Jinja template, or `model.tokenizer_path` to the \
                 tokenizer of a chat model"
            }
            Self::File(error) => return error.hint(),
            Self::TemplateFile { source, .. }
            | Self::Chat { source, .. }
            | Self::SampleChat { source, .. } => return source.hint(),
            Self::UnlocatedMessage { .. } => {
                "use a simpler template in `data.chat_template`, or set `data.train_on: all`"
            }
            Self::Encode { source, .. } | Self::Tokenizer { source } | Self::SamplePrompt { source, .. } => {
                return source.hint();
            }
            Self::Token { .. } => "use the model's own tokenizer",
            Self::NoLength => "set `data.max_seq_len`, for example to 512",
            Self::NoTargets { .. } => {
                "raise `data.max_seq_len` so that completions fit, or check that conversations have assistant \
                 messages"
            }
            Self::OtherDocuments { .. } => {
                "set `train.loss.kind` to dpo, orpo or simpo for {\"prompt\", \"chosen\", \"rejected\"}, to kto for \
                 {\"prompt\", \"completion\", \"label\": true}, else to cross_entropy"
            }
            Self::DummyPreferences => "list files with preferences in `data.paths`",
            Self::NoEpochs => "set `train.max_steps`",
            Self::OtherSetting { .. } => {
                "restore the setting, start a new run, or start the data again with --force-resume"
            }
            Self::OtherFiles { .. } => {
                "restore the files, start a new run, or start the data again with --force-resume"
            }
            Self::Format(error) => return error.hint(),
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

fn format_hint(keys: &[String]) -> String {
    match keys.iter().find_map(|key| Some((key, nearest(key, KEYS).filter(|near| near != key)?))) {
        Some((key, near)) => format!("rename `{key}` to `{near}`"),
        None => {
            "use the key `text`, or `prompt` and `completion`, `instruction` and `output`, `messages`, or \
                 `conversations`"
                .to_owned()
        }
    }
}

fn file_type(extension: Option<&str>) -> String {
    match extension {
        Some(extension) => format!("unsupported file type `{extension}`"),
        None => "a file without an extension may contain anything".to_owned(),
    }
}

fn dropped_list(reasons: &[DroppedDocuments]) -> String {
    reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

fn dropped_hint(share: f64, reasons: &[DroppedDocuments]) -> String {
    let fix = match reasons.first().map(|dropped| dropped.reason) {
        Some(DropReason::UnknownRoles) => "rename the roles to `user` and `assistant`",
        Some(DropReason::NoAssistantMessage) => "add assistant messages, or set `data.train_on: all`",
        Some(DropReason::AnswerCutOff) => "raise `data.max_seq_len` so that answers fit",
        Some(DropReason::BadLine) => "correct the lines",
        Some(DropReason::NothingToTrain) | None => "remove the documents",
    };
    // Rounded up, so that setting it is enough.
    format!("{fix}; to train without them set `data.max_dropped: {}`", (share * 100.0).ceil() / 100.0)
}

fn listed(keys: &[String]) -> String {
    if keys.is_empty() { "(none)".to_owned() } else { name_list(keys, 12) }
}
