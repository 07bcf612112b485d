//! Any backend, with what texts mean from an encoder of sentences.

use std::path::Path;

use weightloom_checkpoint::{Observer, Source};
use weightloom_errors::Hint;
use weightloom_hub::SentenceEncoder;

use super::local::identity;
use super::placed::ask_some;
use super::{Backend, Capability, Description, Watch};
use crate::answer::Answer;
use crate::error::{AskError, SwayError};
use crate::question::{Ask, Question};

/// A backend whose [`Ask::Meaning`] is answered by an encoder of sentences.
pub struct WithSentences {
    inner: Box<dyn Backend>,
    encoder: SentenceEncoder,
    description: Description,
    sum: u128,
}

impl WithSentences {
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
        description.capabilities.insert(Capability::Meaning);
        description.identity =
            description.identity.map(|identity| format!("{identity}:sentences:{sum:032x}"));
        description.notes.push(format!("meanings of texts are those of {}", folder.display()));
        Ok(Self { inner, encoder, description, sum })
    }
}

impl Backend for WithSentences {
    fn description(&self) -> &Description {
        &self.description
    }

    fn answer(&mut self, questions: &[Question], watch: &mut dyn Watch) -> Result<(), SwayError> {
        let (mut others, mut places) = (Vec::new(), Vec::new());
        for (place, question) in questions.iter().enumerate() {
            match &question.ask {
                Ask::Meaning { text } => {
                    let refused =
                        |error: weightloom_hub::HubError| AskError::Refused { message: error.to_string() };
                    watch.answered(place, self.encoder.encode(text).map(Answer::Meaning).map_err(refused));
                }
                _ => {
                    others.push(question.clone());
                    places.push(place);
                }
            }
        }
        ask_some(&mut *self.inner, &others, &places, watch)
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
    struct Heard(Vec<(usize, Result<Answer, AskError>)>);

    impl Watch for Heard {
        fn answered(&mut self, place: usize, answer: Result<Answer, AskError>) {
            self.0.push((place, answer));
        }
    }

    #[test]
    fn meanings_come_from_the_encoder_and_the_rest_from_the_backend() {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../hub/tests/sentence");
        let mut backend = WithSentences::open(Box::new(Dummy::default()), &folder, &()).unwrap();
        assert!(backend.description().capabilities.contains(&Capability::Meaning));
        let ask = |ask| Question::new(&View::Base, ask);
        let questions = [
            ask(Ask::Text { text: "a b c".to_owned() }),
            ask(Ask::Meaning { text: "a green lamp".to_owned() }),
            ask(Ask::Completion { prompt: "a".to_owned(), completion: " b".to_owned() }),
        ];
        let mut heard = Heard::default();
        backend.answer(&questions, &mut heard).unwrap();
        heard.0.sort_by_key(|(place, _)| *place);
        let kinds: Vec<bool> =
            heard.0.iter().map(|(_, answer)| matches!(answer, Ok(Answer::Meaning(_)))).collect();
        assert_eq!(kinds, [false, true, false]);
        assert!(heard.0.iter().all(|(_, answer)| answer.is_ok()));
        let none = WithSentences::open(Box::new(Dummy::default()), &folder.join("none"), &());
        assert!(none.map(|_| ()).unwrap_err().to_string().contains("none"));
    }
}
