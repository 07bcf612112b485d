//! A document as sections.

use std::io::Read;
use std::path::Path;

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use weightloom_errors::Hint;

use super::{Section, SectionKind, dlm, markdown};

/// The longest document that is taken.
const MOST_BYTES: u64 = 64 << 20;

/// A document that a model was tuned on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// The name that a `.dlm` file gives it.
    pub id: Option<String>,
    /// The model that a `.dlm` file names.
    pub base_model: Option<String>,
    /// Its sections, in order. Blank ones are not among them.
    pub sections: Vec<Section>,
    /// What was left out, and why.
    pub warnings: Vec<DocumentWarning>,
}

/// Why a file is no document.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum DocumentError {
    /// It cannot be read.
    #[error("{file}: cannot be read: {message}")]
    Unreadable { file: String, message: String },
    /// It is longer than documents are.
    #[error("{file}: has more than {most} bytes")]
    TooLong { file: String, most: u64 },
    /// A `.dlm` file that does not begin with its head.
    #[error("{file}:1: a .dlm document begins with a line `---`")]
    NoHead { file: String },
    /// A `.dlm` file whose head has no end.
    #[error("{file}:1: the head that begins here has no end")]
    OpenHead { file: String },
    /// A head that is no YAML.
    #[error("{file}:{line}: the head is not YAML: {message}")]
    Head { file: String, line: u64, message: String },
    /// A key that a head must have.
    #[error("{file}:1: the head has no `{key}`")]
    HeadKey { file: String, key: &'static str },
    /// A key of a head that is no text.
    #[error("{file}:{line}: `{key}` is {found}, not a text")]
    HeadValue { file: String, line: u64, key: &'static str, found: String },
}

impl Hint for DocumentError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Unreadable { .. } => "`dlm_source` names a .dlm document or a Markdown file, from the \
                                        folder of the suite"
                .to_owned(),
            Self::TooLong { .. } => "give the document, not all of its data".to_owned(),
            Self::NoHead { .. } => {
                "write the head between two lines `---`, or call the file .md if it is Markdown".to_owned()
            }
            Self::OpenHead { .. } => "end the head with a line `---`".to_owned(),
            Self::Head { .. } => "a head is lines like `dlm_id: notes`".to_owned(),
            Self::HeadKey { key, .. } => format!("add a line `{key}: …` to the head"),
            Self::HeadValue { key, .. } => format!("put the value of `{key}` in quotes"),
        })
    }
}

/// A part of a document that was left out, or read with doubt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum DocumentWarning {
    /// Text in front of the first header of a section.
    #[error("line {line}: text before the first `### {wanted}` is left out")]
    BeforeHeader { line: usize, wanted: String },
    /// A header that nobody knows.
    #[error("line {line}: `### {found}` is no header here, and is left out with what follows")]
    UnknownHeader { line: usize, found: String },
    /// A header that stands where another must.
    #[error("line {line}: `### {found}` stands where `### {wanted}` must; the block is left out")]
    WrongHeader { line: usize, found: String, wanted: String },
    /// A block that ends too early.
    #[error("line {line}: the block that begins here has no `### {wanted}`, and is left out")]
    Unfinished { line: usize, wanted: String },
    /// A header with nothing below.
    #[error("line {line}: nothing stands below `### {header}`; the block is left out")]
    EmptyField { line: usize, header: String },
    /// A field with blank lines in it. dlm-sway leaves out the whole section.
    #[error("line {line}: `### {header}` has several paragraphs; all are taken")]
    SeveralParagraphs { line: usize, header: String },
    /// A kind of section that nobody knows.
    #[error("line {line}: `{found}` is no kind of section; what follows is taken as prose")]
    UnknownKind { line: usize, found: String },
    /// A block of code without an end, in which nothing opens a section.
    #[error("line {line}: the block of code that begins here has no end, so all that follows is part of it")]
    OpenCode { line: usize },
    /// A section of questions or preferences without any.
    #[error("line {line}: the {kind} section that begins here has nothing in it")]
    EmptySection { line: usize, kind: SectionKind },
}

impl Document {
    /// Reads a document from its file: `.dlm`, or else Markdown.
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
        let is_dlm = file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("dlm"));
        if is_dlm { Self::from_dlm(&text, &name) } else { Ok(Self::from_markdown(&text)) }
    }

    /// Reads a `.dlm` document. `file` is what the text is called.
    pub fn from_dlm(text: &str, file: &str) -> Result<Self, DocumentError> {
        dlm::read(&unified(text), file)
    }

    /// Reads Markdown.
    pub fn from_markdown(text: &str) -> Self {
        markdown::read(&unified(text))
    }

    /// All of its text: the contents of sections, with blank lines between.
    pub fn text(&self) -> String {
        let contents: Vec<&str> = self.sections.iter().map(|section| section.content.as_str()).collect();
        contents.join("\n\n")
    }

    /// A document of sections, each of which gets a name of its own.
    pub(super) fn of(mut sections: Vec<Section>, warnings: Vec<DocumentWarning>) -> Self {
        for index in 0..sections.len() {
            let own = name_of(sections[index].kind, &sections[index].content);
            let alike = |section: &&Section| section.id.split('-').next() == Some(own.as_str());
            let earlier = sections[..index].iter().filter(alike).count();
            // The same text twice is two sections still.
            sections[index].id = if earlier == 0 { own } else { format!("{own}-{}", earlier + 1) };
        }
        Self { id: None, base_model: None, sections, warnings }
    }
}

/// The first 16 digits of the hash of a kind and a text.
fn name_of(kind: SectionKind, content: &str) -> String {
    let hash = digest(&SHA256, format!("{kind}\n{content}").as_bytes());
    hash.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// A text whose lines all end in the same way.
fn unified(text: &str) -> String {
    text.trim_start_matches('\u{feff}').replace("\r\n", "\n").replace('\r', "\n")
}
