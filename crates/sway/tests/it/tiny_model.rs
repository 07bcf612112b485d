//! The tiny model of the fixtures.

use std::path::{Path, PathBuf};

use weightloom_hub::cards::StoreSettings;
use weightloom_hub::fetch::FetchSettings;
use weightloom_hub::{Families, Hub, Model};
use weightloom_sway::backend::Backend;
use weightloom_sway::{Answer, AnswerSink, QueryError, Question};

use crate::device::package_folder;

/// The folder with `model` and `adapter`.
pub fn fixtures() -> PathBuf {
    package_folder(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny")
}

/// A hub that downloads nothing.
pub fn hub() -> Hub {
    let mut families = Families::new();
    weightloom_models::register(&mut families).unwrap();
    Hub::new(
        StoreSettings::default().store(weightloom_models::CARDS),
        families,
        Ok(FetchSettings::in_folders("none", "none")),
    )
}

/// Opens the model in a folder.
pub fn open(folder: &Path) -> Model {
    hub().open(folder.to_str().unwrap(), &()).unwrap()
}

/// Collects answers, at most one per question.
pub struct Answers(pub Vec<Option<Result<Answer, QueryError>>>);

impl AnswerSink for Answers {
    fn answered(&mut self, index: usize, answer: Result<Answer, QueryError>) {
        assert!(self.0[index].is_none(), "question {index} was answered twice");
        self.0[index] = Some(answer);
    }
}

/// Asks a backend, which must answer every question once.
pub fn ask(backend: &mut dyn Backend, questions: &[Question]) -> Vec<Result<Answer, QueryError>> {
    let mut answers = Answers(questions.iter().map(|_| None).collect());
    backend.answer(questions, &mut answers).unwrap();
    answers.0.into_iter().map(|answer| answer.expect("every question is answered")).collect()
}
