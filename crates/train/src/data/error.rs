//! Why data cannot be trained on.

use weightloom_errors::{Hint, nearest};
use weightloom_hub::text::{ChatError, TextError};

/// The keys that make a line of a JSONL file a document.
const KEYS: [&str; 4] = ["text", "prompt", "completion", "messages"];

/// Why data cannot be trained on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum DataError {
    /// No files are named.
    #[error("`data.paths` names no files")]
    NoPaths,
    /// Something that is not there.
    #[error("there is no `{path}`")]
    NotFound { path: String },
    /// A folder, or a pattern, without any file to read.
    #[error("there are no text, Markdown or JSONL files in `{path}`")]
    NoFiles { path: String },
    /// A pattern that is not written correctly.
    #[error("`{pattern}` is no pattern of paths: {message}")]
    Pattern { pattern: String, message: String },
    /// A file or folder cannot be read.
    #[error("`{file}` cannot be read: {message}")]
    Read { file: String, message: String },
    /// A JSON file that has not one document in each line.
    #[error("`{file}` is a JSON file, which may be anything")]
    Json { file: String },
    /// A file without documents.
    #[error("`{file}` has no documents")]
    Empty { file: String },
    /// A document, or the number of a line, that is absurdly large.
    #[error("{file}:{line}: {what} is larger than {limit}")]
    TooLarge { file: String, line: usize, what: &'static str, limit: u64 },
    /// A separator that is more than a line.
    #[error("the separator {separator:?} is more than one line")]
    Separator { separator: String },
    /// A line of a JSONL file that is no JSON.
    #[error("{file}:{line}:{column}: {message}")]
    Syntax { file: String, line: usize, column: usize, message: String },
    /// A line of a JSONL file with other keys than those of a document.
    #[error("{file}:{line}: no kind of document has the keys {}", listed(.keys))]
    Shape { file: String, line: usize, keys: Vec<String> },
    /// A line of a JSONL file that may be several kinds of document.
    #[error("{file}:{line}: the keys {} are those of several kinds of document", listed(.keys))]
    Ambiguous { file: String, line: usize, keys: Vec<String> },
    /// A document without one of its parts.
    #[error("{file}:{line}: `{key}` is missing; there are {}", listed(.keys))]
    MissingKey { file: String, line: usize, key: &'static str, keys: Vec<String> },
    /// A part of a document that is something else.
    #[error("{file}:{line}: `{key}` should be {expected}, but is {found}")]
    WrongType { file: String, line: usize, key: String, expected: &'static str, found: &'static str },
    /// Bytes that are no text.
    #[error("{file}:{line}: bytes that are not UTF-8")]
    NotUtf8 { file: String, line: usize },
    /// A file has been changed since it was scanned.
    #[error("`{file}` had {scanned} bytes when the run began, and has {found} now")]
    Changed { file: String, scanned: u64, found: u64 },
    /// A file is no longer there.
    #[error("`{file}` was there when the run began, and is not any more")]
    Vanished { file: String },
    /// Texts, but nothing to make tokens of them.
    #[error("there is no tokenizer to make tokens of `data.paths`")]
    NoTokenizer,
    /// The tokenizer cannot be written down, to recognise it later.
    #[error("the tokenizer cannot be recorded: {error}")]
    Tokenizer { error: TextError },
    /// A conversation, but no template for it.
    #[error("{file}:{line}: a conversation, but the model has no chat template")]
    NoTemplate { file: String, line: usize },
    /// The file of `data.chat_template` is no template.
    #[error("`{file}` cannot be used: {error}")]
    TemplateFile { file: String, error: ChatError },
    /// A conversation that the template does not render.
    #[error("{file}:{line}: {error}")]
    Chat { file: String, line: usize, error: ChatError },
    /// A conversation in whose text an answer cannot be told from the rest.
    #[error("{file}:{line}: where message {message} is in the rendered conversation cannot be told")]
    Untold { file: String, line: usize, message: usize },
    /// A text that cannot be encoded.
    #[error("{file}:{line}: {error}")]
    Encode { file: String, line: usize, error: TextError },
    /// A token that the model does not have.
    #[error("{file}:{line}: token {token} is beyond the model's {vocabulary}")]
    Token { file: String, line: usize, token: u32, vocabulary: usize },
    /// Rows without tokens.
    #[error("`data.max_seq_len` is 0")]
    NoLength,
    /// A model without tokens.
    #[error("there are no random tokens of a vocabulary of 0")]
    NoVocabulary,
    /// No document has anything to learn.
    #[error("none of {documents} documents has a token that counts")]
    NothingCounts { documents: usize },
    /// Random tokens have no epochs.
    #[error("random tokens never end, so they have no epochs")]
    NoEpochs,
    /// A batch without rows.
    #[error("a batch of 0 rows")]
    NoRows,
    /// Rows that a batch does not have, or twice the same.
    #[error("rows {start}..{end} are not in a batch of {rows}, or not behind those before them")]
    Mine { start: usize, end: usize, rows: usize },
    /// A setting is not what it was when a state was saved.
    #[error("`{setting}` is {found}, but was {saved} when the run was saved")]
    OtherSetting { setting: String, saved: String, found: String },
    /// Files are not what they were when a state was saved.
    #[error("since the run was saved, {change}")]
    OtherFiles { change: FileChange },
    /// A saved place that does not exist.
    #[error("the saved place does not exist: {what} {number} of {limit}")]
    Place { what: &'static str, number: u64, limit: u64 },
    /// No thread could be started.
    #[error("no thread can be started to prepare batches: {message}")]
    Thread { message: String },
    /// The thread that prepared batches has ended.
    #[error("the thread that prepares batches broke off")]
    BrokeOff,
}

/// How files differ from what they were.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum FileChange {
    /// One is missing.
    #[error("`{file}` has gone")]
    Gone { file: String },
    /// One is new.
    #[error("`{file}` has been added")]
    New { file: String },
    /// One has other content.
    #[error("`{file}` has been changed, from {saved} bytes to {found}")]
    Content { file: String, saved: u64, found: u64 },
    /// The same files come in another order.
    #[error("the order of files has changed, first at `{file}`")]
    Order { file: String },
    /// A file has changed that is not among those that are listed by name.
    #[error("files behind the first {listed} have changed")]
    Unlisted { listed: usize },
}

impl Hint for DataError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NoPaths => "name files, folders or patterns in `data.paths`",
            Self::NotFound { .. } => "check the path; `*` stands for any part of a name",
            Self::NoFiles { .. } => {
                "in folders, files that end in .txt, .text, .md, .markdown, .jsonl or .ndjson are read"
            }
            Self::Json { .. } => "write one object on each line, in a file that ends in .jsonl",
            Self::Empty { .. } => "remove it, or take it out of `data.paths`",
            Self::TooLarge { .. } => {
                "cut the file, or name what stands between documents in `data.separator`"
            }
            Self::Separator { .. } => "`data.separator` is a line as it stands in the file",
            Self::Shape { keys, .. } => return Some(shape_hint(keys)),
            Self::Ambiguous { .. } => "say which in `data.format`: text, prompt_completion or chat",
            Self::MissingKey { key, keys, .. } => {
                return nearest(key, keys.iter().map(String::as_str))
                    .map(|near| format!("rename `{near}` to `{key}`"));
            }
            Self::WrongType { key, .. } if key.starts_with("messages") => {
                "write messages as {\"role\": \"user\", \"content\": \"…\"}"
            }
            Self::NotUtf8 { .. } => "write the file in UTF-8",
            Self::Changed { .. } | Self::Vanished { .. } => {
                "leave files alone during a run; resume once it is as it was"
            }
            Self::NoTokenizer => "use a model that has one, or set `data.type: dummy`",
            Self::NoTemplate { .. } => "name a file with one in `data.chat_template`",
            Self::TemplateFile { error, .. } | Self::Chat { error, .. } => return error.hint(),
            Self::Untold { .. } => {
                "use a simpler template in `data.chat_template`, or `data.train_on: all`, with which all counts"
            }
            Self::Encode { error, .. } | Self::Tokenizer { error } => return error.hint(),
            Self::Token { .. } => "the tokenizer belongs to another model; use the model's own",
            Self::NoLength => "512 is a start",
            Self::NothingCounts { .. } => {
                "raise `data.max_seq_len` so that answers fit, or check that conversations have answers"
            }
            Self::NoEpochs => "set `train.max_steps`",
            Self::OtherSetting { .. } => "set it back, or begin a new run",
            Self::OtherFiles { .. } => "put files back as they were, or begin a new run",
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

fn shape_hint(keys: &[String]) -> String {
    let near = keys.iter().find_map(|key| nearest(key, KEYS).map(|near| (key, near)));
    match near {
        Some((key, near)) => format!("rename `{key}` to `{near}`"),
        None => "a line has `text`, or `prompt` and `completion`, or `messages`".to_owned(),
    }
}

fn listed(keys: &[String]) -> String {
    const MOST: usize = 12;
    if keys.is_empty() {
        return "(none)".to_owned();
    }
    let mut list: Vec<String> = keys.iter().take(MOST).map(|key| format!("`{key}`")).collect();
    if keys.len() > MOST {
        list.push("…".to_owned());
    }
    list.join(", ")
}
