//! Why data cannot be trained on.

use shardloom_hub::text::{ChatError, TextError};
use shardloom_layout::{Hint, nearest};

/// The keys that make a line of a JSONL file a document.
const KEYS: [&str; 4] = ["text", "prompt", "completion", "messages"];

/// Why data cannot be trained on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// No files are named.
    #[error("`data.paths` names no files")]
    NoPaths,
    /// Something that is not there.
    #[error("there is no `{path}`")]
    NotFound {
        /// As it was given.
        path: String,
    },
    /// A folder, or a pattern, without any file to read.
    #[error("there are no text, Markdown or JSONL files in `{path}`")]
    NoFiles {
        /// As it was given.
        path: String,
    },
    /// A pattern that is not written correctly.
    #[error("`{pattern}` is no pattern of paths: {message}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        message: String,
    },
    /// A file or folder cannot be read.
    #[error("`{file}` cannot be read: {message}")]
    Read {
        /// The file.
        file: String,
        /// What the system says.
        message: String,
    },
    /// A JSON file that has not one document in each line.
    #[error("`{file}` is a JSON file, which may be anything")]
    Json {
        /// The file.
        file: String,
    },
    /// A file without documents.
    #[error("`{file}` has no documents")]
    Empty {
        /// The file.
        file: String,
    },
    /// A document, or the number of a line, that is absurdly large.
    #[error("{file}:{line}: {what} is larger than {limit}")]
    TooLarge {
        /// The file.
        file: String,
        /// The line where it begins.
        line: usize,
        /// What is too large.
        what: &'static str,
        /// The most that is accepted.
        limit: u64,
    },
    /// A separator that is more than a line.
    #[error("the separator {separator:?} is more than one line")]
    Separator {
        /// The separator.
        separator: String,
    },
    /// A line of a JSONL file that is no JSON.
    #[error("{file}:{line}:{column}: {message}")]
    Syntax {
        /// The file.
        file: String,
        /// The line.
        line: usize,
        /// The byte in the line, from one.
        column: usize,
        /// What is wrong.
        message: String,
    },
    /// A line of a JSONL file with other keys than those of a document.
    #[error("{file}:{line}: no kind of document has the keys {}", listed(.keys))]
    Shape {
        /// The file.
        file: String,
        /// The line.
        line: usize,
        /// The keys it has.
        keys: Vec<String>,
    },
    /// A line of a JSONL file that may be several kinds of document.
    #[error("{file}:{line}: the keys {} are those of several kinds of document", listed(.keys))]
    Ambiguous {
        /// The file.
        file: String,
        /// The line.
        line: usize,
        /// Those of its keys that documents have.
        keys: Vec<String>,
    },
    /// A document without one of its parts.
    #[error("{file}:{line}: `{key}` is missing; there are {}", listed(.keys))]
    MissingKey {
        /// The file.
        file: String,
        /// The line.
        line: usize,
        /// What is missing.
        key: &'static str,
        /// The keys that are there.
        keys: Vec<String>,
    },
    /// A part of a document that is something else.
    #[error("{file}:{line}: `{key}` should be {expected}, but is {found}")]
    WrongType {
        /// The file.
        file: String,
        /// The line.
        line: usize,
        /// Which part.
        key: String,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// Bytes that are no text.
    #[error("{file}:{line}: bytes that are not UTF-8")]
    NotUtf8 {
        /// The file.
        file: String,
        /// The line.
        line: usize,
    },
    /// A file has been changed since it was scanned.
    #[error("`{file}` had {scanned} bytes when the run began, and has {found} now")]
    Changed {
        /// The file.
        file: String,
        /// Its length when it was scanned.
        scanned: u64,
        /// Its length now.
        found: u64,
    },
    /// A file is no longer there.
    #[error("`{file}` was there when the run began, and is not any more")]
    Vanished {
        /// The file.
        file: String,
    },
    /// Texts, but nothing to make tokens of them.
    #[error("there is no tokenizer to make tokens of `data.paths`")]
    NoTokenizer,
    /// The tokenizer cannot be written down, to recognise it later.
    #[error("the tokenizer cannot be recorded: {error}")]
    Tokenizer {
        /// Why.
        error: TextError,
    },
    /// A conversation, but no template for it.
    #[error("{file}:{line}: a conversation, but the model has no chat template")]
    NoTemplate {
        /// The file.
        file: String,
        /// The line.
        line: usize,
    },
    /// The file of `data.chat_template` is no template.
    #[error("`{file}` cannot be used: {error}")]
    TemplateFile {
        /// The file.
        file: String,
        /// Why.
        error: ChatError,
    },
    /// A conversation that the template does not render.
    #[error("{file}:{line}: {error}")]
    Chat {
        /// The file.
        file: String,
        /// The line.
        line: usize,
        /// Why.
        error: ChatError,
    },
    /// A conversation in whose text an answer cannot be told from the rest.
    #[error("{file}:{line}: where message {message} is in the rendered conversation cannot be told")]
    Untold {
        /// The file.
        file: String,
        /// The line.
        line: usize,
        /// Which message, from one.
        message: usize,
    },
    /// A text that cannot be encoded.
    #[error("{file}:{line}: {error}")]
    Encode {
        /// The file.
        file: String,
        /// The line.
        line: usize,
        /// Why.
        error: TextError,
    },
    /// A token that the model does not have.
    #[error("{file}:{line}: token {token} is beyond the model's {vocabulary}")]
    Token {
        /// The file.
        file: String,
        /// The line.
        line: usize,
        /// The token.
        token: u32,
        /// How many tokens the model has.
        vocabulary: usize,
    },
    /// Rows without tokens.
    #[error("`data.max_seq_len` is 0")]
    NoLength,
    /// A model without tokens.
    #[error("there are no random tokens of a vocabulary of 0")]
    NoVocabulary,
    /// No document has anything to learn.
    #[error("none of {documents} documents has a token that counts")]
    NothingCounts {
        /// How many there are.
        documents: usize,
    },
    /// Random tokens have no epochs.
    #[error("random tokens never end, so they have no epochs")]
    NoEpochs,
    /// A batch without rows.
    #[error("a batch of 0 rows")]
    NoRows,
    /// Rows that a batch does not have, or twice the same.
    #[error("rows {start}..{end} are not in a batch of {rows}, or not behind those before them")]
    Mine {
        /// The first of them.
        start: usize,
        /// One behind the last.
        end: usize,
        /// How many rows a batch has.
        rows: usize,
    },
    /// A setting is not what it was when a state was saved.
    #[error("`{setting}` is {found}, but was {saved} when the run was saved")]
    OtherSetting {
        /// Which.
        setting: String,
        /// What it was.
        saved: String,
        /// What it is.
        found: String,
    },
    /// Files are not what they were when a state was saved.
    #[error("since the run was saved, {change}")]
    OtherFiles {
        /// What has changed.
        change: FileChange,
    },
    /// A saved place that does not exist.
    #[error("the saved place does not exist: {what} {number} of {limit}")]
    Place {
        /// What is counted.
        what: &'static str,
        /// The number that was saved.
        number: u64,
        /// How many there are.
        limit: u64,
    },
    /// No thread could be started.
    #[error("no thread can be started to prepare batches: {message}")]
    Thread {
        /// What the system says.
        message: String,
    },
    /// The thread that prepared batches has ended.
    #[error("the thread that prepares batches broke off")]
    BrokeOff,
}

/// How files differ from what they were.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileChange {
    /// One is missing.
    #[error("`{file}` has gone")]
    Gone {
        /// Which.
        file: String,
    },
    /// One is new.
    #[error("`{file}` has been added")]
    New {
        /// Which.
        file: String,
    },
    /// One has other content.
    #[error("`{file}` has been changed, from {saved} bytes to {found}")]
    Content {
        /// Which.
        file: String,
        /// Its length then.
        saved: u64,
        /// Its length now.
        found: u64,
    },
    /// The same files come in another order.
    #[error("the order of files has changed, first at `{file}`")]
    Order {
        /// The first that is in another place.
        file: String,
    },
    /// A file has changed that is not among those that are listed by name.
    #[error("files behind the first {listed} have changed")]
    Unlisted {
        /// How many are listed.
        listed: usize,
    },
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
            Self::Ambiguous { .. } => "say which in `data.form`: text, prompt_completion or chat",
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
                "use a simpler template in `data.chat_template`, or `data.masking: none`, with which all counts"
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
