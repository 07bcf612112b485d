//! Programs that follow the protocol, and programs that do not.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde_json::json;
use weightloom_errors::Hint as _;

use super::*;
use crate::answer::Answer;
use crate::answer::{CompletionScore, Distribution, Divergence, Rolling, TokenNames};
use crate::backend::testing::{Collected, ask, ask_one};
use crate::prompt::{ChatMessage, Role};
use crate::suite::{ModelKind, ModelSpec, Precision};
use crate::view::Real;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/custom")
}

fn model(entry: EntryPoint, base: &str) -> CustomModel {
    let spec = ModelSpec {
        kind: ModelKind::Custom,
        base: base.to_owned(),
        adapter: Some("/runs/adapter".to_owned()),
        dtype: Precision::Fp32,
        device: "auto".to_owned(),
        trust_remote_code: false,
        entry_point: None,
        endpoint: None,
        timeout_s: None,
        options: None,
    };
    CustomModel { entry, folder: fixtures(), spec: Box::new(spec) }
}

fn program(behaviour: &str) -> CustomModel {
    model(EntryPoint::Program { path: fixtures().join("speaker.sh") }, behaviour)
}

fn start(behaviour: &str) -> Result<CustomBackend, CustomError> {
    CustomBackend::start(&program(behaviour), &CustomOptions::default())
}

/// The error of a program that fails to start.
fn start_error(behaviour: &str) -> CustomError {
    let error = start(behaviour).err().unwrap();
    assert!(error.hint().is_some(), "{error}");
    error
}

fn next(prompt: &str) -> Query {
    Query::Next { prompt: prompt.into(), top_k: 4 }
}

fn two() -> [Question; 2] {
    [Question::new(&View::Base, next("x")), Question::new(&View::Tuned, next("x"))]
}

/// The answers and the error of a program that fails when queried.
fn failure(behaviour: &str, options: &CustomOptions) -> (Collected, String) {
    let mut backend = CustomBackend::start(&program(behaviour), options).unwrap();
    let (answers, result) = ask(&mut backend, &two());
    let error = result.unwrap_err();
    assert!(error.hint().is_some(), "{error}");
    // The backend stays stopped.
    let (_, again) = ask(&mut backend, &two());
    assert!(again.unwrap_err().to_string().contains("stopped by an earlier error"));
    (answers, error.to_string())
}

#[test]
fn a_program_answers_within_its_capabilities() {
    let mut backend = start("all").unwrap();
    let description = backend.description().clone();
    let path = fixtures().join("speaker.sh");
    assert_eq!(description.identity, Some(format!("custom:{}:v1", path.display())));
    assert_eq!(description.notes, ["made up"]);
    assert_eq!(description.base, "all");
    for capability in
        [Capability::CacheIdentity, Capability::Scalable, Capability::Embedding, Capability::FullVocabulary]
    {
        assert!(description.capabilities.contains(&capability), "{capability:?}");
    }
    let text = |text: &str| text.to_owned();
    let found = Distribution {
        tokens: TokenNames::Ids(vec![1, 2]),
        logprobs: vec![-0.1, -3.5],
        vocabulary: Some(9),
        tail: Some(-3.25),
    };
    let score = CompletionScore { total: -0.5, tokens: 2 };
    let rolling = Rolling { logprobs: vec![-0.5, -2.0], tokens: 3, total: -2.5 };
    let cases = [
        (View::Tuned, next("x"), Answer::Distribution(found)),
        (
            View::Base,
            Query::Completion { prompt: text("a").into(), completion: text("b") },
            Answer::Completion(score),
        ),
        (View::Base, Query::Text { text: text("a") }, Answer::Rolling(rolling)),
        (
            View::Scaled(Real(0.5)),
            Query::Generate { prompt: text("a").into(), max_new_tokens: 3 },
            Answer::Text(text("and so on")),
        ),
        (
            View::Tuned,
            Query::Divergence { prompt: text("a").into(), from: View::Base },
            Answer::Divergence(Divergence { js: 0.25, kl: 0.5 }),
        ),
        (View::Base, Query::Embedding { text: text("a") }, Answer::Embedding(vec![0.6, 0.8])),
        (View::Base, Query::Filler { tokens: 3 }, Answer::Text(text("..."))),
    ];
    let questions: Vec<Question> =
        cases.iter().map(|(view, ask, _)| Question::new(view, ask.clone())).collect();
    let (answers, result) = ask(&mut backend, &questions);
    result.unwrap();
    for ((_, asked, expected), found) in cases.iter().zip(answers) {
        assert_eq!(found, Some(Ok(expected.clone())), "{asked:?}");
    }
    // Many more than the limit in flight.
    let many: Vec<Question> =
        (0..100).map(|number| Question::new(&View::Base, next(&number.to_string()))).collect();
    let (answers, result) = ask(&mut backend, &many);
    result.unwrap();
    assert!(answers.iter().all(|answer| matches!(answer, Some(Ok(_)))));
}

#[test]
fn questions_beyond_the_capabilities_are_not_sent() {
    let mut backend = start("plain").unwrap();
    assert_eq!(backend.description().identity, None);
    assert!(!backend.description().capabilities.contains(&Capability::CacheIdentity));
    let noise = View::Noise { seed: 1, init_scale: Real(0.02), rank_scale: Real(1.0) };
    for view in [View::Scaled(Real(0.5)), noise, View::Matched { seed: 1 }, View::Without { modules: vec![] }]
    {
        let answer = ask_one(&mut backend, &view, next("x"));
        assert!(matches!(answer, Err(QueryError::Unsupported { .. })), "{view}: {answer:?}");
    }
    for asked in [
        Query::Embedding { text: "x".to_owned() },
        Query::Filler { tokens: 2 },
        Query::Divergence { prompt: "x".into(), from: View::Base },
    ] {
        let answer = ask_one(&mut backend, &View::Tuned, asked);
        assert!(matches!(answer, Err(QueryError::Unsupported { .. })), "{answer:?}");
    }
    backend.preflight().unwrap();
}

#[test]
fn messages_are_sent_to_programs_that_accept_them() {
    let chat = || Prompt::Messages(vec![ChatMessage::new(Role::User, "Hi")]);
    let asked = Query::Generate { prompt: chat(), max_new_tokens: 3 };
    let line = protocol::request(7, &Question::new(&View::Base, asked.clone()));
    let sent: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(sent["query"]["messages"], json!([{"role": "user", "content": "Hi"}]));
    assert_eq!(sent["query"].get("prompt"), None);
    let mut chatty = start("chatty").unwrap();
    assert_eq!(chatty.chat_support().usage, ChatUsage::Chat);
    assert_eq!(ask_one(&mut chatty, &View::Base, asked.clone()), Ok(Answer::Text("and so on".to_owned())));
    // Version 1 has no messages, whatever the program lists.
    for behaviour in ["old", "plain"] {
        let mut backend = start(behaviour).unwrap();
        assert_eq!(backend.chat_support(), ChatSupport::default(), "{behaviour}");
        let answer = ask_one(&mut backend, &View::Base, asked.clone());
        assert!(matches!(answer, Err(QueryError::Unsupported { .. })), "{behaviour}: {answer:?}");
    }
}

#[test]
fn answers_come_in_any_order() {
    let mut backend = start("backwards").unwrap();
    let (answers, result) = ask(&mut backend, &two());
    result.unwrap();
    let first = |place: usize| match &answers[place] {
        Some(Ok(Answer::Distribution(found))) => found.logprobs[0],
        other => panic!("{other:?}"),
    };
    assert_eq!((first(0), first(1)), (-0.5, -0.1));
}

#[test]
fn errors_and_invalid_answers_fail_their_question_only() {
    let answers =
        |behaviour: &str| ask_one(&mut start(behaviour).unwrap(), &View::Tuned, next("x")).unwrap_err();
    assert!(
        matches!(answers("nan"), QueryError::NotFinite { view, found, .. } if view == "ft" && found == "nan")
    );
    assert_eq!(answers("odd"), QueryError::WrongKind { expected: "next".to_owned() });
    assert_eq!(answers("unwilling"), QueryError::Failed { message: "not today".to_owned() });
}

#[test]
fn preflight_uses_the_programs_own_check_or_two_questions() {
    let error = start("checked").unwrap().preflight().unwrap_err();
    assert!(error.to_string().contains("the tuned model gives nan"), "{error}");
    let error = start("nan").unwrap().preflight().unwrap_err();
    assert!(error.to_string().contains("returned nan"), "{error}");
}

#[test]
fn a_program_with_a_wrong_greeting_fails_to_start() {
    assert!(matches!(start_error("single"), CustomError::NotDifferential { .. }));
    assert!(matches!(start_error("later"), CustomError::Version { found: 3, .. }));
    let CustomError::Capability { found, near, .. } = start_error("eager") else { panic!() };
    assert_eq!((found.as_str(), near.as_deref()), ("scaleable", Some("scalable")));
    let CustomError::Refused { message, .. } = start_error("refusing") else { panic!() };
    assert_eq!(message, "there is no such model");
}

#[test]
fn a_missing_or_misbehaving_program_fails_to_start() {
    let nowhere = model(EntryPoint::Program { path: "/nowhere/program".into() }, "x");
    let error = CustomBackend::start(&nowhere, &CustomOptions::default()).unwrap_err();
    assert!(matches!(error, CustomError::Start { .. }), "{error}");
    let CustomError::NotProtocol { line, .. } = start_error("garbage") else { panic!() };
    assert_eq!(line, "Loading the model…");
    assert!(matches!(start_error("bytes"), CustomError::NotProtocol { .. }));
    let error = start_error("dead");
    assert!(matches!(error, CustomError::Exited { .. }), "{error}");
    assert!(error.to_string().contains("exit status: 7"), "{error}");
    assert!(error.to_string().contains("no memory left"), "{error}");
    assert_eq!(error.hint().unwrap(), "check its standard error");
}

#[test]
fn a_program_that_exceeds_its_time_limit_is_killed() {
    let limit = Duration::from_millis(100);
    let options = CustomOptions { start_timeout: limit, ..CustomOptions::default() };
    let error = CustomBackend::start(&program("silent"), &options).unwrap_err();
    assert!(matches!(error, CustomError::TimedOut { after, .. } if after == limit), "{error}");
    assert_eq!(error.hint().unwrap(), "increase `timeout_s`");
    let options = CustomOptions { answer_timeout: limit, ..CustomOptions::default() };
    let (answers, message) = failure("stuck", &options);
    assert_eq!(answers, [None, None]);
    assert!(message.contains("did not answer within 100ms"), "{message}");
    // The suite can set the limit.
    let mut slow = program("stuck");
    slow.spec.timeout_s = Some(1);
    let mut backend = CustomBackend::start(&slow, &CustomOptions::default()).unwrap();
    let error = ask(&mut backend, &two()).1.unwrap_err();
    assert!(error.to_string().contains("did not answer within 1s"), "{error}");
}

#[test]
fn earlier_answers_survive_a_program_that_exits_or_violates_the_protocol() {
    let options = CustomOptions { max_in_flight: 1, ..CustomOptions::default() };
    let (answers, message) = failure("leaving", &options);
    assert!(matches!(answers[0], Some(Ok(_))) && answers[1].is_none(), "{answers:?}");
    assert!(message.contains("exit status: 3") && message.contains("gone for good"), "{message}");
    let (answers, message) = failure("orphaning", &CustomOptions::default());
    assert_eq!(answers, [None, None]);
    assert!(message.contains("exit status: 4"), "{message}");
    let (_, message) = failure("babbling", &CustomOptions::default());
    assert!(message.contains("invalid answer: progress: 10 %"), "{message}");
    let (_, message) = failure("twice", &options);
    assert!(message.contains("answered question 1, which is not pending"), "{message}");
}

#[test]
fn standard_error_is_logged() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let lines = Arc::clone(&heard);
    let log = move |line: &str| lines.lock().unwrap().push(line.to_owned());
    let options = CustomOptions { log: Arc::new(log), ..CustomOptions::default() };
    let mut backend = CustomBackend::start(&program("plain"), &options).unwrap();
    ask_one(&mut backend, &View::Base, next("x")).unwrap();
    drop(backend);
    // The thread that reads it may lag.
    for _ in 0..200 {
        if !heard.lock().unwrap().is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(*heard.lock().unwrap(), ["about plain"]);
}

/// Starts a class in a temporary folder, because Python writes cache files
/// beside modules.
fn class(module: &str, name: &str) -> (tempfile::TempDir, Result<CustomBackend, CustomError>) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(fixtures().join("classes.py"), folder.path().join("classes.py")).unwrap();
    std::fs::write(folder.path().join("broken.py"), "import nothing_of_that_name\n").unwrap();
    let entry = EntryPoint::Python { module: module.to_owned(), class: name.to_owned() };
    let mut model = model(entry, "tiny");
    model.folder = folder.path().to_owned();
    let backend = CustomBackend::start(&model, &CustomOptions::default());
    (folder, backend)
}

#[test]
fn a_python_class_written_for_dlm_sway_answers() {
    let (_folder, backend) = class("classes", "Complete");
    let mut backend = backend.unwrap();
    let description = backend.description().clone();
    assert_eq!(description.identity.as_deref(), Some("custom:classes:Complete:tiny+adapter:fp32"));
    for capability in [Capability::Scalable, Capability::NullCalibrated, Capability::Preflight] {
        assert!(description.capabilities.contains(&capability), "{capability:?}");
    }
    assert!(!description.capabilities.contains(&Capability::MatchedNoise));
    backend.preflight().unwrap();
    let text = |text: &str| text.to_owned();
    let noise = View::Noise { seed: 10, init_scale: Real(0.5), rank_scale: Real(1.0) };
    let views = [View::Base, View::Tuned, View::Scaled(Real(0.5)), noise];
    let asks = [
        next("é"),
        Query::Completion { prompt: text("ab").into(), completion: text("cde") },
        Query::Text { text: text("four") },
        Query::Generate { prompt: text("go").into(), max_new_tokens: 2 },
        next("nan"),
        next("fail"),
    ];
    // The questions of a view are not adjacent.
    let questions: Vec<Question> =
        asks.iter().flat_map(|ask| views.each_ref().map(|view| Question::new(view, ask.clone()))).collect();
    let (answers, result) = ask(&mut backend, &questions);
    result.unwrap();
    for (question, found) in questions.iter().zip(answers) {
        let log: f64 = match question.view {
            View::Base => -2.0,
            View::Tuned => -1.0,
            View::Scaled(_) => -1.5,
            _ => -7.0,
        };
        let expected = match &question.query {
            Query::Next { prompt, .. } if *prompt == "nan".into() => {
                assert!(matches!(found, Some(Err(QueryError::NotFinite { .. }))), "{found:?}");
                continue;
            }
            Query::Next { prompt, .. } if *prompt == "fail".into() => {
                let message = text("RuntimeError: there is nothing behind it");
                assert_eq!(found, Some(Err(QueryError::Failed { message })));
                continue;
            }
            Query::Next { .. } => Answer::Distribution(Distribution {
                tokens: TokenNames::Ids(vec![0, 1, 2]),
                logprobs: [0.0, 1.0, 2.0].map(|less| (log - less) as f32).to_vec(),
                vocabulary: Some(3),
                tail: None,
            }),
            Query::Completion { .. } => Answer::Completion(CompletionScore { total: log * 3.0, tokens: 0 }),
            Query::Text { .. } => {
                Answer::Rolling(Rolling { logprobs: vec![log as f32; 3], tokens: 4, total: log * 3.0 })
            }
            _ => Answer::Text(text("go!!")),
        };
        assert_eq!(found, Some(Ok(expected)), "{question:?}");
    }
    let (_folder, plain) = class("classes", "Good");
    let capabilities = plain.unwrap().description().capabilities.clone();
    assert_eq!(capabilities, [Capability::Differential].into());
    let (_folder, sick) = class("classes", "Sick");
    let error = sick.unwrap().preflight().unwrap_err();
    assert!(error.to_string().contains("nan in the tuned model"), "{error}");
}

#[test]
fn an_unusable_python_class_is_reported_with_pythons_message() {
    let cases = [
        ("broken", "Good", PythonProblem::Import, "nothing_of_that_name"),
        ("no_such_module", "Good", PythonProblem::Import, "no_such_module"),
        ("classes", "Better", PythonProblem::Attribute, "Better"),
        ("classes", "Greedy", PythonProblem::Signature, "adapter_path"),
        ("classes", "NOTHING", PythonProblem::Signature, "5"),
        ("classes", "Failing", PythonProblem::Constructor, "the weights are not there"),
        ("classes", "Single", PythonProblem::NotDifferential, "as_finetuned"),
    ];
    for (module, name, expected, words) in cases {
        let (_folder, backend) = class(module, name);
        let error = backend.err().unwrap();
        assert!(error.hint().is_some());
        let CustomError::Python { entry, problem, message } = error else { panic!("{error}") };
        assert_eq!((entry, problem), (format!("{module}:{name}"), expected));
        assert!(message.contains(words), "{message}");
    }
    let entry = EntryPoint::Python { module: "classes".to_owned(), class: "Good".to_owned() };
    let options = CustomOptions { python: "/nowhere/python".to_owned(), ..CustomOptions::default() };
    let error = CustomBackend::start(&model(entry, "x"), &options).unwrap_err();
    assert!(error.hint().unwrap().contains("WEIGHTLOOM_PYTHON"), "{error}");
}
