//! What answers questions.

pub mod api;
#[cfg(test)]
mod asked;
pub mod build;
pub mod custom;
pub mod dummy;
pub mod local;
mod placed;
pub mod sentences;
mod trial;
pub mod two_model;
mod words;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::answer::Answer;
use crate::error::{AskError, SwayError};
use crate::question::Question;

/// What a backend can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// It answers for the base and for the tuned model.
    Differential,
    /// It answers for any part of the change.
    Scalable,
    /// It answers for noise in place of the change.
    NullCalibrated,
    /// It can tell beforehand whether it works.
    Preflight,
    /// Its answers can be kept for later.
    CacheIdentity,
    /// It compares distributions over the whole vocabulary.
    FullVocabulary,
    /// It makes vectors of texts.
    Meaning,
    /// It has a tokenizer, and so fillers.
    Tokenizer,
    /// It can switch modules of the change off.
    Attributable,
    /// It answers for noise that is as large as the change, module by module.
    MatchedNoise,
}

/// All that a backend can do.
pub type Capabilities = BTreeSet<Capability>;

/// What a backend is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// Its kind, as in a suite file.
    pub kind: String,
    /// The base model.
    pub base: String,
    /// What changed it; nothing if nothing did.
    pub adapter: Option<String>,
    /// What it can do.
    pub capabilities: Capabilities,
    /// What its reader should know: limits of its answers.
    pub notes: Vec<String>,
    /// A name of exactly this base and this change, in this precision, by
    /// which answers can be kept; none if it has none.
    pub identity: Option<String>,
}

/// Hears what a backend does while it does it.
pub trait Watch {
    /// The answer to one question, in any order.
    fn answered(&mut self, place: usize, answer: Result<Answer, AskError>);
}

/// Answers questions.
pub trait Backend: Send {
    /// What it is.
    fn description(&self) -> &Description;

    /// Answers questions; each answer is told as it comes. What one question
    /// lacks is told as its answer; an error is returned if none could be
    /// answered any more.
    fn answer(&mut self, questions: &[Question], watch: &mut dyn Watch) -> Result<(), SwayError>;

    /// A name of exactly the base alone, by which its answers can be kept for
    /// other changes of the same base; none if it has none.
    fn base_identity(&self) -> Option<String> {
        None
    }

    /// The names of the layers that the change can be switched off in, from the
    /// first to the last; none if that cannot be told.
    fn layers(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether its answers are numbers at all.
    fn preflight(&mut self) -> Result<(), SwayError>;
}
