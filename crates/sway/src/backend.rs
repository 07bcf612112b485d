//! Backends: what answers questions about a model.

pub mod adapter_noise;
pub mod api;
pub mod build;
pub mod custom;
mod distinct;
pub mod dummy;
mod guarded;
mod kind;
pub mod live;
pub mod local;
pub mod model_pair;
mod preflight;
pub mod ranks;
mod registry;
pub mod sentence_encoder;
mod standard;
mod subset;
#[cfg(test)]
pub(crate) mod testing;
mod tokenizer_match;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

pub use kind::{BackendKind, BackendRequest, NoOptions};
pub use registry::{
    Backends, RegisterBackendError, RegisterBackendProblem, RegisteredBackend, UnknownBackend,
};

use crate::answer::Answer;
use crate::chat::ChatSupport;
use crate::error::{BackendError, QueryError};
use crate::question::Question;

/// An optional feature of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    /// Answers for both the base and the tuned model.
    Differential,
    /// Answers for [`View::Scaled`](crate::View::Scaled).
    Scalable,
    /// Answers for [`View::Noise`](crate::View::Noise).
    NullCalibrated,
    /// Checks before the first question whether it works.
    Preflight,
    /// Has an identity by which answers can be cached.
    CacheIdentity,
    /// Compares distributions over the whole vocabulary.
    FullVocabulary,
    /// Embeds texts.
    Embedding,
    /// Has a tokenizer, and so answers [`Query::Filler`](crate::Query::Filler).
    Tokenizer,
    /// Answers for [`View::Without`](crate::View::Without).
    Attributable,
    /// Answers for [`View::Matched`](crate::View::Matched).
    MatchedNoise,
    /// Accepts [`Prompt::Messages`](crate::Prompt::Messages).
    Chat,
}

/// The set of optional features of a backend.
pub type Capabilities = BTreeSet<Capability>;

/// What a backend compares, and how it can be queried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The kind of backend, as in a suite file.
    pub kind: String,
    /// Name of the base model.
    pub base: String,
    /// Name of the adapter or tuned model; `None` for a base alone.
    pub adapter: Option<String>,
    /// The optional features.
    pub capabilities: Capabilities,
    /// Limitations that a reader of the report should know.
    pub notes: Vec<String>,
    /// Identifies the weights of both models and the precision; answers are
    /// cached under it. `None` disables caching.
    pub identity: Option<String>,
}

/// Receives answers as a backend produces them.
pub trait AnswerSink {
    /// Called once per question, in any order; `index` is that of the question.
    fn answered(&mut self, index: usize, answer: Result<Answer, QueryError>);

    /// Whether the caller no longer wants answers. A backend that sees this
    /// returns `Ok` early; the questions left are not asked again.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Answers questions about a base model and its tuned version.
pub trait Backend: Send {
    /// Describes the backend.
    fn description(&self) -> &Description;

    /// Answers a batch of questions and passes each answer to `sink` as it
    /// becomes available.
    ///
    /// # Errors
    ///
    /// A question that cannot be answered is reported to `sink`. An error is
    /// returned only if the backend cannot answer any further question.
    fn answer(&mut self, questions: &[Question], sink: &mut dyn AnswerSink) -> Result<(), BackendError>;

    /// Identifies the base alone, so that its cached answers can be shared by
    /// all of its tuned versions.
    fn base_identity(&self) -> Option<String> {
        None
    }

    /// Names of the layers that [`View::Without`](crate::View::Without)
    /// accepts, first to last; empty if unknown.
    fn layers(&self) -> Vec<String> {
        Vec::new()
    }

    /// What is known about chats with the model. By default there is no chat
    /// template.
    fn chat_support(&self) -> ChatSupport {
        ChatSupport::default()
    }

    /// Checks that the backend returns finite numbers.
    fn preflight(&mut self) -> Result<(), BackendError>;
}
