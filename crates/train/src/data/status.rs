//! What becomes of a document, and counts of it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How a document is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DocumentStatus {
    /// As a whole.
    Whole,
    /// Truncated to a row.
    Truncated,
    /// Not at all.
    Dropped(DropReason),
}

/// Why a document is not trained on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// A conversation without assistant messages that has roles such as `human`
    /// and `gpt`.
    UnknownRoles,
    /// A conversation without assistant messages.
    NoAssistantMessage,
    /// Every token that contributes to the loss lies beyond `data.max_seq_len`.
    AnswerCutOff,
    /// No token contributes to the loss: the document is empty or a single token.
    NothingToTrain,
    /// The record cannot be read, and `data.bad_lines` is `drop`.
    BadLine,
}

impl DropReason {
    /// All reasons.
    pub const ALL: [Self; 5] = [
        Self::UnknownRoles,
        Self::NoAssistantMessage,
        Self::AnswerCutOff,
        Self::NothingToTrain,
        Self::BadLine,
    ];
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownRoles => "unknown roles",
            Self::NoAssistantMessage => "no assistant message",
            Self::AnswerCutOff => "answer cut off by `data.max_seq_len`",
            Self::NothingToTrain => "nothing to train on",
            Self::BadLine => "a bad line",
        })
    }
}

/// Numbers of dropped documents by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct DropCounts {
    pub unknown_roles: u64,
    pub no_assistant_message: u64,
    pub answer_cut_off: u64,
    pub nothing_to_train: u64,
    pub bad_line: u64,
}

impl DropCounts {
    fn entry(&mut self, reason: DropReason) -> &mut u64 {
        match reason {
            DropReason::UnknownRoles => &mut self.unknown_roles,
            DropReason::NoAssistantMessage => &mut self.no_assistant_message,
            DropReason::AnswerCutOff => &mut self.answer_cut_off,
            DropReason::NothingToTrain => &mut self.nothing_to_train,
            DropReason::BadLine => &mut self.bad_line,
        }
    }

    /// Counts one document.
    pub(super) fn add(&mut self, reason: DropReason) {
        let entry = self.entry(reason);
        *entry = entry.saturating_add(1);
    }

    /// The number of documents with this reason.
    pub fn of(mut self, reason: DropReason) -> u64 {
        *self.entry(reason)
    }

    /// The number of dropped documents.
    pub fn total(self) -> u64 {
        DropReason::ALL.into_iter().fold(0, |sum, reason| sum.saturating_add(self.of(reason)))
    }
}
