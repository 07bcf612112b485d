//! Documents.

use std::io::Read;
use std::path::Path;

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use weightloom_errors::Hint;

use super::{Section, SectionKind, data_file, dlm, markdown};

/// The longest document that is accepted.
const MOST_BYTES: u64 = 64 << 20;

/// A document that a model was fine-tuned on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// The identifier in a `.dlm` file.
    pub id: Option<String>,
    /// The base model that a `.dlm` file names.
    pub base_model: Option<String>,
    /// The sections, in order, without blank ones.
    pub sections: Vec<Section>,
    /// What was omitted, and why.
    pub warnings: Vec<DocumentWarning>,
}

/// Why a file cannot be read as a document.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum DocumentError {
    #[error("cannot read `{file}`: {message}")]
    Unreadable { file: String, message: String },
    #[error("cannot read `{file}`: it has more than {most} bytes")]
    TooLong { file: String, most: u64 },
    #[error("cannot parse `{file}`: line {line}: {message}")]
    Json { file: String, line: usize, message: String },
    #[error("cannot use `{file}`: it has no chats, prompts with completions, preferences or texts")]
    NoRecords { file: String },
    #[error("{file}:1: a .dlm document starts with a line `---`")]
    NoHead { file: String },
    #[error("{file}:1: the front matter has no end")]
    OpenHead { file: String },
    #[error("{file}:{line}: the front matter is not valid YAML: {message}")]
    Head { file: String, line: u64, message: String },
    #[error("{file}:1: the front matter lacks `{key}`")]
    HeadKey { file: String, key: &'static str },
    #[error("{file}:{line}: `{key}` is {found}, not a string")]
    HeadValue { file: String, line: u64, key: &'static str, found: String },
}

impl Hint for DocumentError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Unreadable { .. } => {
                "name a .dlm, Markdown or JSON file; `dlm_source` is relative to the suite".to_owned()
            }
            Self::TooLong { .. } => "use a shorter document".to_owned(),
            Self::Json { .. } => "write a list of JSON objects, or one object per line".to_owned(),
            Self::NoRecords { .. } => {
                "use records with `messages`, `conversations`, `prompt` and `completion`, `chosen` and \
                 `rejected`, or `text`"
                    .to_owned()
            }
            Self::NoHead { .. } => {
                "write the front matter between two lines `---`, or rename a Markdown file to .md".to_owned()
            }
            Self::OpenHead { .. } => "end the front matter with a line `---`".to_owned(),
            Self::Head { .. } => "write lines such as `dlm_id: notes`".to_owned(),
            Self::HeadKey { key, .. } => format!("add a line `{key}: …` to the front matter"),
            Self::HeadValue { key, .. } => format!("quote the value of `{key}`"),
        })
    }
}

/// A part of a document that was omitted, or may be misread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum DocumentWarning {
    #[error("line {line}: text before the first `### {wanted}` is omitted")]
    BeforeHeader { line: usize, wanted: String },
    #[error("line {line}: unknown header `### {found}` is omitted with the text below it")]
    UnknownHeader { line: usize, found: String },
    #[error("line {line}: expected `### {wanted}`, found `### {found}`; the block is omitted")]
    WrongHeader { line: usize, found: String, wanted: String },
    #[error("line {line}: the block that starts here lacks `### {wanted}` and is omitted")]
    Unfinished { line: usize, wanted: String },
    #[error("line {line}: `### {header}` has no text; the block is omitted")]
    EmptyField { line: usize, header: String },
    /// dlm-sway omits the whole section.
    #[error("line {line}: `### {header}` has several paragraphs; all are used")]
    SeveralParagraphs { line: usize, header: String },
    #[error("line {line}: unknown section kind `{found}`; its text is read as prose")]
    UnknownKind { line: usize, found: String },
    #[error(
        "line {line}: the code block that starts here has no end, so it contains the rest of the document"
    )]
    OpenCode { line: usize },
    #[error("line {line}: the {kind} section that starts here is empty")]
    EmptySection { line: usize, kind: SectionKind },
    #[error("line {line}: the record is omitted: {problem}")]
    Record { line: usize, problem: String },
    #[error("{used} of {found} records are used, evenly spread")]
    SomeRecords { used: usize, found: usize },
}

impl Document {
    /// Reads a `.dlm` file, training data in `.jsonl`, `.ndjson` or `.json`, or any
    /// other file as Markdown.
    pub fn read_file(file: &Path) -> Result<Self, DocumentError> {
        let name = file.display().to_string();
        let unreadable = |error: std::io::Error| DocumentError::Unreadable {
            file: name.clone(),
            message: error.to_string(),
        };
        let mut text = String::new();
        let opened = std::fs::File::open(file).map_err(unreadable)?;
        opened.take(MOST_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
        if text.len() as u64 > MOST_BYTES {
            return Err(DocumentError::TooLong { file: name, most: MOST_BYTES });
        }
        if is_data(file) {
            return Self::from_json(&text, &name);
        }
        if has_ending(file, "dlm") { Self::from_dlm(&text, &name) } else { Ok(Self::from_markdown(&text)) }
    }

    /// Parses training data: one JSON object per line, or a list of them. `file`
    /// names the text in errors.
    pub fn from_json(text: &str, file: &str) -> Result<Self, DocumentError> {
        data_file::read(&normalize_newlines(text), file)
    }

    /// Parses a `.dlm` document. `file` names the text in errors.
    pub fn from_dlm(text: &str, file: &str) -> Result<Self, DocumentError> {
        dlm::read(&normalize_newlines(text), file)
    }

    /// Parses Markdown.
    pub fn from_markdown(text: &str) -> Self {
        markdown::read(&normalize_newlines(text))
    }

    /// The text of all sections, separated by blank lines.
    pub fn text(&self) -> String {
        let contents: Vec<&str> = self.sections.iter().map(|section| section.content.as_str()).collect();
        contents.join("\n\n")
    }

    /// A document of sections, each of which gets a unique identifier.
    pub(super) fn of(mut sections: Vec<Section>, warnings: Vec<DocumentWarning>) -> Self {
        for index in 0..sections.len() {
            let own = hash_of(sections[index].kind, &sections[index].content);
            let alike = |section: &&Section| section.id.split('-').next() == Some(own.as_str());
            let earlier = sections[..index].iter().filter(alike).count();
            // Equal texts are still two sections.
            sections[index].id = if earlier == 0 { own } else { format!("{own}-{}", earlier + 1) };
        }
        Self { id: None, base_model: None, sections, warnings }
    }
}

/// Whether a file has training data in JSON.
pub(crate) fn is_data(file: &Path) -> bool {
    ["jsonl", "ndjson", "json"].into_iter().any(|ending| has_ending(file, ending))
}

fn has_ending(file: &Path, wanted: &str) -> bool {
    file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case(wanted))
}

/// The first 16 digits of the hash of a kind and a text.
fn hash_of(kind: SectionKind, content: &str) -> String {
    let hash = digest(&SHA256, format!("{kind}\n{content}").as_bytes());
    hash.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Replaces all line ends by `\n`.
fn normalize_newlines(text: &str) -> String {
    text.trim_start_matches('\u{feff}').replace("\r\n", "\n").replace('\r', "\n")
}
