//! Parts of the document that a model was tuned on.
//!
//! A [`Document`] is read from a `.dlm` file or from Markdown. Parts of it that
//! cannot be understood are left out and told as warnings; only what makes the
//! whole file no document is an error.

mod block;
mod dlm;
mod document;
mod fences;
mod markdown;

#[cfg(test)]
mod tests;

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use dlm::dlm_adapter;
pub use document::{Document, DocumentError, DocumentWarning};

/// What a section teaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SectionKind {
    /// A text.
    Prose,
    /// Answers to questions.
    Instruction,
    /// Which of two answers is better.
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

/// A part of the document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    /// Its name among the others.
    pub id: String,
    /// What it teaches.
    pub kind: SectionKind,
    /// Its text.
    pub content: String,
    /// Its questions with their answers.
    pub questions: Vec<SectionQuestion>,
    /// Its preferences.
    pub preferences: Vec<SectionPreference>,
    /// What its author calls it.
    pub tag: Option<String>,
}

/// A question and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SectionQuestion {
    /// The question.
    pub prompt: String,
    /// The answer.
    pub gold: String,
}

/// A question, a good and a bad answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SectionPreference {
    /// The question.
    pub prompt: String,
    /// The better answer.
    pub chosen: String,
    /// The worse answer.
    pub rejected: String,
}
