//! Backends of a user: by name in a suite, with options, and what happens if they
//! misbehave.

use std::path::Path;

use schemars::JsonSchema;
use serde::Deserialize;
use weightloom_errors::Hint as _;
use weightloom_sway::backend::build::{BackendBuilder, BuildError};
use weightloom_sway::backend::dummy::Dummy;
use weightloom_sway::backend::{BackendKind, BackendRequest, Backends, RegisterBackendProblem};
use weightloom_sway::probe::FieldProblem;
use weightloom_sway::suite::{SuiteErrors, SuiteReader};
use weightloom_sway::{
    AnswerSink, Backend, BackendError, Description, Extensions, JudgeError, JudgeOptions, PreparedSuite,
    Question, Suite, judge,
};

use crate::tiny_model::hub;

/// Options of [`Engine`].
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct EngineOptions {
    /// Questions after which it panics.
    panic_after: Option<usize>,
    /// Threads to use.
    threads: u32,
}

/// An inference engine of a user.
#[derive(Debug)]
struct Engine {
    name: &'static str,
}

struct Running {
    inner: Dummy,
    description: Description,
    panic_after: Option<usize>,
}

impl BackendKind for Engine {
    type Options = EngineOptions;

    fn name(&self) -> &'static str {
        self.name
    }

    fn summary(&self) -> &'static str {
        "an inference engine"
    }

    fn problems(&self, options: &EngineOptions) -> Vec<FieldProblem> {
        FieldProblem::of_broken_rules([(options.threads < 64, "threads", "must be below 64")])
    }

    fn build(
        &self,
        options: EngineOptions,
        request: &BackendRequest<'_>,
    ) -> Result<Box<dyn Backend>, BuildError> {
        assert_ne!(request.base(), "explosive");
        let inner = Dummy::default();
        let description = Description {
            kind: self.name.to_owned(),
            base: request.base().to_owned(),
            adapter: request.adapter().map(|path| path.display().to_string()),
            ..inner.description().clone()
        };
        Ok(Box::new(Running { inner, description, panic_after: options.panic_after }))
    }
}

impl Backend for Running {
    fn description(&self) -> &Description {
        &self.description
    }

    fn answer(&mut self, questions: &[Question], sink: &mut dyn AnswerSink) -> Result<(), BackendError> {
        let most = self.panic_after.unwrap_or(questions.len()).min(questions.len());
        self.inner.answer(&questions[..most], sink)?;
        assert!(self.panic_after.is_none(), "engine lost");
        Ok(())
    }

    fn preflight(&mut self) -> Result<(), BackendError> {
        self.inner.preflight()
    }
}

fn extensions() -> Extensions {
    let backends = Backends::standard().with(Engine { name: "my_engine" }).unwrap();
    Extensions { backends, ..Extensions::standard() }
}

fn read(base: &str, tuned: &str, rest: &str) -> Result<Suite, SuiteErrors> {
    let text = format!("models:\n  base: {base}\n  ft: {tuned}\n{rest}");
    SuiteReader::new(&extensions(), &|_| None).read(&text, Path::new("/suites/sway.yaml"))
}

fn build(suite: &Suite) -> Result<Box<dyn Backend>, BuildError> {
    let hub = hub();
    let mut builder = BackendBuilder::new(&hub, &(), &|_| None);
    builder.backends = extensions().backends;
    builder.check(&suite.plan)?;
    builder.build(&suite.plan)
}

const SUITE: &str = "suite: [{name: change, kind: delta_kl, prompts: [Once, Twice]}]\n";

#[test]
fn a_suite_names_a_users_backend() {
    let suite =
        read("{base: m}", "{kind: my_engine, base: m, adapter: out, options: {threads: 8}}", SUITE).unwrap();
    let mut backend = build(&suite).unwrap();
    assert_eq!(backend.description().adapter.as_deref(), Some("/suites/out"));
    let prepared = PreparedSuite::new(suite, None).unwrap();
    let report = judge(&prepared, &mut *backend, &JudgeOptions::default(), &mut ()).unwrap();
    assert!(report.probes[0].raw > Some(0.4));
    assert_eq!(report.backend.unwrap().kind, "my_engine");
}

#[test]
fn two_models_may_have_different_backends() {
    let two = "defaults: {differential: false}\n";
    let suite = read("{kind: my_engine, base: a}", "{kind: my_engine, base: b}", two).unwrap();
    let backend = build(&suite).unwrap();
    assert!(backend.description().base.contains('a'), "{:?}", backend.description());
}

#[test]
fn kinds_and_options_are_checked_when_a_suite_is_read() {
    let errors = read("{base: m}", "{kind: my_engin, base: m}", "").unwrap_err();
    assert_eq!(errors.errors[0].path, "models.ft.kind");
    assert!(errors.errors[0].hint().unwrap().contains("my_engine"), "{errors}");
    let errors = read("{base: m}", "{kind: my_engine, base: m, options: {thread: 8}}", "").unwrap_err();
    assert_eq!(errors.errors[0].path, "models.ft.options.thread");
    assert_eq!(errors.errors[0].origin.line(), Some(3));
    assert!(errors.errors[0].hint().unwrap().contains("threads"), "{errors}");
    let errors = read("{base: m}", "{kind: my_engine, base: m, options: {threads: 64}}", "").unwrap_err();
    assert_eq!(errors.errors[0].path, "models.ft.options.threads");
    assert!(errors.to_string().contains("must be below 64"), "{errors}");
    // Built-in kinds have no options.
    let errors = read("{base: m}", "{base: m, adapter: a, options: {threads: 1}}", "").unwrap_err();
    assert_eq!(errors.errors[0].path, "models.ft.options.threads");
}

#[test]
fn a_program_without_the_backend_says_so() {
    let suite = read("{base: m}", "{kind: my_engine, base: m}", SUITE).unwrap();
    let hub = hub();
    let error = BackendBuilder::new(&hub, &(), &|_| None).build(&suite.plan).err().unwrap();
    assert_eq!(error.to_string(), "`models.ft.kind`: unknown kind of backend `my_engine`");
    assert!(error.hint().unwrap().contains("hf, mlx"), "{error}");
}

#[test]
fn a_backend_that_panics_is_an_error_that_names_it_and_its_answers_are_kept() {
    let error = build(&read("{base: m}", "{kind: my_engine, base: explosive}", "").unwrap()).err().unwrap();
    assert!(error.to_string().contains("`my_engine`") || error.to_string().contains("my_engine"), "{error}");
    assert!(error.to_string().contains("it panicked"), "{error}");
    let suite = read("{base: m}", "{kind: my_engine, base: m, options: {panic_after: 1}}", SUITE).unwrap();
    let mut backend = build(&suite).unwrap();
    let prepared = PreparedSuite::new(suite, None).unwrap();
    let error = judge(&prepared, &mut *backend, &JudgeOptions::default(), &mut ()).unwrap_err();
    let JudgeError::Backend { error, .. } = error else { panic!("{error:?}") };
    assert_eq!((error.backend.as_str(), error.message.as_str()), ("my_engine", "it panicked: engine lost"));
}

#[test]
fn a_name_is_registered_once() {
    let error = Backends::standard().with(Engine { name: "hf" }).unwrap_err();
    assert_eq!(error.problem, RegisterBackendProblem::Taken);
    assert!(error.hint().is_some());
    let error = Backends::standard().with(Engine { name: "My Engine" }).unwrap_err();
    assert_eq!(error.problem, RegisterBackendProblem::Name);
}
