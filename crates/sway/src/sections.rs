//! Sections of the document that a model was fine-tuned on.
//!
//! A [`Document`] is read from a `.dlm` file, from Markdown, or from training
//! data in JSON. Parts that cannot
//! be parsed are omitted with a warning; only a file that cannot be a document
//! is an error.

mod block;
mod data_file;
mod dlm;
mod document;
mod fences;
mod markdown;
mod turns;

#[cfg(test)]
mod tests;

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::prompt::Prompt;

pub(crate) use data_file::spread;
pub use dlm::dlm_adapter;
pub(crate) use document::is_data;
pub use document::{Document, DocumentError, DocumentWarning};

/// What a section teaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SectionKind {
    /// Plain text.
    Prose,
    /// Questions with answers.
    Instruction,
    /// Questions with a better and a worse answer.
    Preference,
}

impl fmt::Display for SectionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prose => "prose",
            Self::Instruction => "instruction",
            Self::Preference => "preference",
        })
    }
}

/// A section of the document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    /// A unique identifier.
    pub id: String,
    /// What it teaches.
    pub kind: SectionKind,
    /// The text.
    pub content: String,
    /// Questions with answers.
    pub questions: Vec<SectionQuestion>,
    /// Preferences.
    pub preferences: Vec<SectionPreference>,
    /// Questions that a tool answers.
    #[serde(default)]
    pub tool_calls: Vec<SectionToolCall>,
    /// The heading or tag that the author gave it.
    pub tag: Option<String>,
}

/// A question with its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SectionQuestion {
    /// The question.
    pub prompt: Prompt,
    /// The answer.
    pub gold: String,
}

/// A question with a better and a worse answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SectionPreference {
    /// The question.
    pub prompt: Prompt,
    /// The better answer.
    pub chosen: String,
    /// The worse answer.
    pub rejected: String,
}

/// A question that is answered with a call of a tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SectionToolCall {
    /// The question.
    pub prompt: Prompt,
    /// The tool: `name`, `description` and `parameters`.
    pub tool_spec: Map<String, Value>,
}
