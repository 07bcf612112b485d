//! Any backend, with what texts mean from an encoder of sentences.

use std::path::Path;

use weightloom_checkpoint::{Observer, Source};
use weightloom_errors::Hint;
use weightloom_hub::SentenceEncoder;

use super::local::identity;
use super::subset::answer_subset;
use super::{AnswerSink, Backend, Capability, Description};
use crate::answer::Answer;
use crate::error::{QueryError, SwayError};
use crate::question::{Query, Question};

/// A backend whose [`Query::Embedding`] is answered by an encoder of sentences.
pub struct WithSentenceEncoder {
    inner: Box<dyn Backend>,
    encoder: SentenceEncoder,
    description: Description,
    sum: u128,
}

impl WithSentenceEncoder {
    /// A backend with the encoder in a folder.
    pub fn open(inner: Box<dyn Backend>, folder: &Path, observer: &dyn Observer) -> Result<Self, SwayError> {
        let failed = |message: String, hint: Option<String>| SwayError::Backend {
            backend: "embedding".to_owned(),
            message: format!("{}: {message}", folder.display()),
            hint,
        };
        let encoder = SentenceEncoder::open(folder, observer)
            .map_err(|error| failed(error.to_string(), error.hint()))?;
        let source = Source::open(folder).map_err(|error| failed(error.to_string(), error.hint()))?;
        let sum = identity::of_source(&source).map_err(|error| failed(error.to_string(), error.hint()))?;
        let mut description = inner.description().clone();
        description.capabilities.insert(Capability::Embedding);
        description.identity =
            description.identity.map(|identity| format!("{identity}:sentences:{sum:032x}"));
        description.notes.push(format!("meanings of texts are those of {}", folder.display()));
        Ok(Self { inner, encoder, description, sum })
    }
}

impl Backend for WithSentenceEncoder {
    fn description(&self) -> &Description {
        &self.description
    }

    fn answer(&mut self, questions: &[Question], sink: &mut dyn AnswerSink) -> Result<(), SwayError> {
        let (mut others, mut places) = (Vec::new(), Vec::new());
        for (place, question) in questions.iter().enumerate() {
            match &question.query {
                Query::Embedding { text } => {
                    let refused =
                        |error: weightloom_hub::HubError| QueryError::Failed { message: error.to_string() };
                    sink.answered(place, self.encoder.encode(text).map(Answer::Embedding).map_err(refused));
                }
                _ => {
                    others.push(question.clone());
                    places.push(place);
                }
            }
        }
        answer_subset(&mut *self.inner, &others, &places, sink)
    }

    fn base_identity(&self) -> Option<String> {
        self.inner.base_identity().map(|identity| format!("{identity}:sentences:{:032x}", self.sum))
    }

    fn layers(&self) -> Vec<String> {
        self.inner.layers()
    }

    fn preflight(&mut self) -> Result<(), SwayError> {
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
    struct Heard(Vec<(usize, Result<Answer, QueryError>)>);

    impl AnswerSink for Heard {
        fn answered(&mut self, place: usize, answer: Result<Answer, QueryError>) {
            self.0.push((place, answer));
        }
    }

    #[test]
    fn meanings_come_from_the_encoder_and_the_rest_from_the_backend() {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../hub/tests/sentence");
        let mut backend = WithSentenceEncoder::open(Box::new(Dummy::default()), &folder, &()).unwrap();
        assert!(backend.description().capabilities.contains(&Capability::Embedding));
        let ask = |ask| Question::new(&View::Base, ask);
        let questions = [
            ask(Query::Text { text: "a b c".to_owned() }),
            ask(Query::Embedding { text: "a green lamp".to_owned() }),
            ask(Query::Completion { prompt: "a".to_owned(), completion: " b".to_owned() }),
        ];
        let mut heard = Heard::default();
        backend.answer(&questions, &mut heard).unwrap();
        heard.0.sort_by_key(|(place, _)| *place);
        let kinds: Vec<bool> =
            heard.0.iter().map(|(_, answer)| matches!(answer, Ok(Answer::Embedding(_)))).collect();
        assert_eq!(kinds, [false, true, false]);
        assert!(heard.0.iter().all(|(_, answer)| answer.is_ok()));
        let none = WithSentenceEncoder::open(Box::new(Dummy::default()), &folder.join("none"), &());
        assert!(none.map(|_| ()).unwrap_err().to_string().contains("none"));
    }
}
