//! A backend whose embeddings come from a sentence encoder.

use std::fmt;
use std::path::Path;

use weightloom_checkpoint::{Observer, Source};
use weightloom_errors::Hint;
use weightloom_hub::{HubError, SentenceEncoder};

use super::local::identity;
use super::subset::answer_subset;
use super::{AnswerSink, Backend, Capability, Description};
use crate::answer::Answer;
use crate::chat::ChatSupport;
use crate::error::{BackendError, QueryError};
use crate::question::{Query, Question};

/// Wraps a backend and answers [`Query::Embedding`] with a sentence encoder.
pub struct WithSentenceEncoder {
    inner: Box<dyn Backend>,
    encoder: SentenceEncoder,
    description: Description,
    hash: u128,
}

impl WithSentenceEncoder {
    /// Wraps `inner` with the sentence encoder in `folder`.
    pub fn open(
        inner: Box<dyn Backend>,
        folder: &Path,
        observer: &dyn Observer,
    ) -> Result<Self, BackendError> {
        let encoder = SentenceEncoder::open(folder, observer).map_err(|error| failed(folder, &error))?;
        let source = Source::open(folder).map_err(|error| failed(folder, &error))?;
        let hash = identity::of_source(&source).map_err(|error| failed(folder, &error))?;
        let mut description = inner.description().clone();
        description.capabilities.insert(Capability::Embedding);
        description.identity =
            description.identity.map(|identity| format!("{identity}:sentences:{hash:032x}"));
        description.notes.push(format!("embeddings come from {}", folder.display()));
        Ok(Self { inner, encoder, description, hash })
    }
}

fn failed(folder: &Path, error: &(impl fmt::Display + Hint)) -> BackendError {
    let message = format!("cannot open the sentence encoder `{}`: {error}", folder.display());
    BackendError { backend: "embedding".to_owned(), message, hint: error.hint() }
}

impl Backend for WithSentenceEncoder {
    fn description(&self) -> &Description {
        &self.description
    }

    fn answer(&mut self, questions: &[Question], sink: &mut dyn AnswerSink) -> Result<(), BackendError> {
        let (mut others, mut indices) = (Vec::new(), Vec::new());
        for (index, question) in questions.iter().enumerate() {
            match &question.query {
                Query::Embedding { text } => {
                    let failed = |error: HubError| QueryError::Failed { message: error.to_string() };
                    sink.answered(index, self.encoder.encode(text).map(Answer::Embedding).map_err(failed));
                }
                _ => {
                    others.push(question.clone());
                    indices.push(index);
                }
            }
        }
        answer_subset(&mut *self.inner, &others, &indices, sink)
    }

    fn base_identity(&self) -> Option<String> {
        self.inner.base_identity().map(|identity| format!("{identity}:sentences:{:032x}", self.hash))
    }

    fn layers(&self) -> Vec<String> {
        self.inner.layers()
    }

    fn chat_support(&self) -> ChatSupport {
        self.inner.chat_support()
    }

    fn preflight(&mut self) -> Result<(), BackendError> {
        self.inner.preflight()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use std::path::PathBuf;

    use super::*;
    use crate::backend::dummy::Dummy;
    use crate::view::View;

    #[derive(Default)]
    struct Collector(Vec<(usize, Result<Answer, QueryError>)>);

    impl AnswerSink for Collector {
        fn answered(&mut self, index: usize, answer: Result<Answer, QueryError>) {
            self.0.push((index, answer));
        }
    }

    #[test]
    fn embeddings_come_from_the_encoder_and_other_answers_from_the_backend() {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../hub/tests/fixtures/sentence");
        let mut backend = WithSentenceEncoder::open(Box::new(Dummy::default()), &folder, &()).unwrap();
        assert!(backend.description().capabilities.contains(&Capability::Embedding));
        let question = |query| Question::new(&View::Base, query);
        let questions = [
            question(Query::Text { text: "a b c".to_owned() }),
            question(Query::Embedding { text: "a green lamp".to_owned() }),
            question(Query::Completion { prompt: "a".into(), completion: " b".to_owned() }),
        ];
        let mut collected = Collector::default();
        backend.answer(&questions, &mut collected).unwrap();
        collected.0.sort_by_key(|(index, _)| *index);
        let kinds: Vec<bool> =
            collected.0.iter().map(|(_, answer)| matches!(answer, Ok(Answer::Embedding(_)))).collect();
        assert_eq!(kinds, [false, true, false]);
        assert!(collected.0.iter().all(|(_, answer)| answer.is_ok()));
        let none = WithSentenceEncoder::open(Box::new(Dummy::default()), &folder.join("none"), &());
        assert!(none.map(|_| ()).unwrap_err().to_string().contains("none"));
    }
}
