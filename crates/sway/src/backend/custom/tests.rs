//! Programs that answer, and programs that do not.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use weightloom_errors::Hint as _;

use super::*;
use crate::answer::Answer;
use crate::answer::{CompletionScore, Distribution, Divergence, Rolling, TokenNames};
use crate::backend::testing::{Collected, ask, ask_one};
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
    };
    CustomModel { entry, folder: fixtures(), spec: Box::new(spec) }
}

fn program(behaviour: &str) -> CustomModel {
    model(EntryPoint::Program { path: fixtures().join("speaker.sh") }, behaviour)
}

fn start(behaviour: &str) -> Result<CustomBackend, CustomError> {
    CustomBackend::start(&program(behaviour), &CustomOptions::default())
}

/// What is wrong with a program from the beginning.
fn refused(behaviour: &str) -> CustomError {
    let error = start(behaviour).err().unwrap();
    assert!(error.hint().is_some(), "{error}");
    error
}

fn next(prompt: &str) -> Query {
    Query::Next { prompt: prompt.to_owned(), top_k: 4 }
}

fn two() -> [Question; 2] {
    [Question::new(&View::Base, next("x")), Question::new(&View::Tuned, next("x"))]
}

/// The end that a program came to once it was asked.
fn end(behaviour: &str, options: &CustomOptions) -> (Collected, String) {
    let mut backend = CustomBackend::start(&program(behaviour), options).unwrap();
    let (told, ended) = ask(&mut backend, &two());
    let error = ended.unwrap_err();
    assert!(error.hint().is_some(), "{error}");
    // It stays ended.
    let (_, again) = ask(&mut backend, &two());
    assert!(again.unwrap_err().to_string().contains("ended before"));
    (told, error.to_string())
}

#[test]
fn a_program_answers_what_it_said_it_can() {
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
            Query::Completion { prompt: text("a"), completion: text("b") },
            Answer::Completion(score),
        ),
        (View::Base, Query::Text { text: text("a") }, Answer::Rolling(rolling)),
        (
            View::Scaled(Real(0.5)),
            Query::Generate { prompt: text("a"), max_new_tokens: 3 },
            Answer::Text(text("and so on")),
        ),
        (
            View::Tuned,
            Query::Divergence { prompt: text("a"), from: View::Base },
            Answer::Divergence(Divergence { js: 0.25, kl: 0.5 }),
        ),
        (View::Base, Query::Embedding { text: text("a") }, Answer::Embedding(vec![0.6, 0.8])),
        (View::Base, Query::Filler { tokens: 3 }, Answer::Text(text("..."))),
    ];
    let questions: Vec<Question> =
        cases.iter().map(|(view, ask, _)| Question::new(view, ask.clone())).collect();
    let (told, ended) = ask(&mut backend, &questions);
    ended.unwrap();
    for ((_, asked, expected), found) in cases.iter().zip(told) {
        assert_eq!(found, Some(Ok(expected.clone())), "{asked:?}");
    }
    // Many more than wait at once.
    let many: Vec<Question> = (0..100).map(|at| Question::new(&View::Base, next(&at.to_string()))).collect();
    let (told, ended) = ask(&mut backend, &many);
    ended.unwrap();
    assert!(told.iter().all(|answer| matches!(answer, Some(Ok(_)))));
}

#[test]
fn what_a_program_did_not_say_is_not_asked() {
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
        Query::Divergence { prompt: "x".to_owned(), from: View::Base },
    ] {
        let answer = ask_one(&mut backend, &View::Tuned, asked);
        assert!(matches!(answer, Err(QueryError::Unsupported { .. })), "{answer:?}");
    }
    backend.preflight().unwrap();
}

#[test]
fn answers_come_in_any_order() {
    let mut backend = start("backwards").unwrap();
    let (told, ended) = ask(&mut backend, &two());
    ended.unwrap();
    let first = |place: usize| match &told[place] {
        Some(Ok(Answer::Distribution(found))) => found.logprobs[0],
        other => panic!("{other:?}"),
    };
    assert_eq!((first(0), first(1)), (-0.5, -0.1));
}

#[test]
fn errors_and_odd_answers_are_those_of_their_question() {
    let told =
        |behaviour: &str| ask_one(&mut start(behaviour).unwrap(), &View::Tuned, next("x")).unwrap_err();
    assert!(
        matches!(told("nan"), QueryError::NotFinite { view, found, .. } if view == "ft" && found == "nan")
    );
    assert_eq!(told("odd"), QueryError::WrongKind { expected: "next".to_owned() });
    assert_eq!(told("unwilling"), QueryError::Failed { message: "not today".to_owned() });
}

#[test]
fn a_preflight_is_the_programs_own_or_two_questions() {
    let error = start("checked").unwrap().preflight().unwrap_err();
    assert!(error.to_string().contains("the tuned model gives nan"), "{error}");
    let error = start("nan").unwrap().preflight().unwrap_err();
    assert!(error.to_string().contains("returned nan"), "{error}");
}

#[test]
fn a_program_that_declares_too_little_fails_at_once() {
    assert!(matches!(refused("single"), CustomError::NotDifferential { .. }));
    assert!(matches!(refused("later"), CustomError::Version { found: 2, .. }));
    let CustomError::Capability { found, near, .. } = refused("eager") else { panic!() };
    assert_eq!((found.as_str(), near.as_deref()), ("scaleable", Some("scalable")));
    let CustomError::Refused { message, .. } = refused("refusing") else { panic!() };
    assert_eq!(message, "there is no such model");
}

#[test]
fn a_program_that_is_none_or_speaks_otherwise_fails_at_once() {
    let nowhere = model(EntryPoint::Program { path: "/nowhere/program".into() }, "x");
    let error = CustomBackend::start(&nowhere, &CustomOptions::default()).unwrap_err();
    assert!(matches!(error, CustomError::Start { .. }), "{error}");
    let CustomError::NotProtocol { line, .. } = refused("garbage") else { panic!() };
    assert_eq!(line, "Loading the model…");
    assert!(matches!(refused("bytes"), CustomError::NotProtocol { .. }));
    let error = refused("dead");
    assert!(matches!(error, CustomError::Gone { .. }), "{error}");
    assert!(error.to_string().contains("exit status: 7"), "{error}");
    assert!(error.to_string().contains("no memory left"), "{error}");
    // Whether answers are kept, it does not know.
    assert_eq!(error.hint().unwrap(), "see its error output");
}

#[test]
fn a_program_that_keeps_silent_is_ended() {
    let limit = Duration::from_millis(100);
    let options = CustomOptions { start_limit: limit, ..CustomOptions::default() };
    let error = CustomBackend::start(&program("silent"), &options).unwrap_err();
    assert!(matches!(error, CustomError::Hanging { after, .. } if after == limit), "{error}");
    assert_eq!(error.hint().unwrap(), "give it more time by `timeout_s`");
    let options = CustomOptions { answer_limit: limit, ..CustomOptions::default() };
    let (told, message) = end("stuck", &options);
    assert_eq!(told, [None, None]);
    assert!(message.contains("said nothing for 100ms"), "{message}");
    // The suite may say how long.
    let mut slow = program("stuck");
    slow.spec.timeout_s = Some(1);
    let mut backend = CustomBackend::start(&slow, &CustomOptions::default()).unwrap();
    let error = ask(&mut backend, &two()).1.unwrap_err();
    assert!(error.to_string().contains("said nothing for 1s"), "{error}");
}

#[test]
fn a_program_that_goes_or_babbles_is_the_end_and_what_came_before_is_kept() {
    let options = CustomOptions { window: 1, ..CustomOptions::default() };
    let (told, message) = end("leaving", &options);
    assert!(matches!(told[0], Some(Ok(_))) && told[1].is_none(), "{told:?}");
    assert!(message.contains("exit status: 3") && message.contains("gone for good"), "{message}");
    let (told, message) = end("orphaning", &CustomOptions::default());
    assert_eq!(told, [None, None]);
    assert!(message.contains("exit status: 4"), "{message}");
    let (_, message) = end("babbling", &CustomOptions::default());
    assert!(message.contains("no answer: progress: 10 %"), "{message}");
    let (_, message) = end("twice", &options);
    assert!(message.contains("answered question 1, which does not wait"), "{message}");
}

#[test]
fn its_error_output_is_passed_on() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let lines = Arc::clone(&heard);
    let log = move |line: &str| lines.lock().unwrap().push(line.to_owned());
    let options = CustomOptions { log: Arc::new(log), ..CustomOptions::default() };
    let mut backend = CustomBackend::start(&program("plain"), &options).unwrap();
    ask_one(&mut backend, &View::Base, next("x")).unwrap();
    drop(backend);
    // The thread that hears it may be a moment behind.
    for _ in 0..200 {
        if !heard.lock().unwrap().is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(*heard.lock().unwrap(), ["about plain"]);
}

/// A class in a folder of its own, for Python leaves files beside modules.
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
fn a_python_class_for_dlm_sway_answers() {
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
        Query::Completion { prompt: text("ab"), completion: text("cde") },
        Query::Text { text: text("four") },
        Query::Generate { prompt: text("go"), max_new_tokens: 2 },
        next("nan"),
        next("fail"),
    ];
    // The questions of one view are not next to one another.
    let questions: Vec<Question> =
        asks.iter().flat_map(|ask| views.each_ref().map(|view| Question::new(view, ask.clone()))).collect();
    let (told, ended) = ask(&mut backend, &questions);
    ended.unwrap();
    for (question, found) in questions.iter().zip(told) {
        let log: f64 = match question.view {
            View::Base => -2.0,
            View::Tuned => -1.0,
            View::Scaled(_) => -1.5,
            _ => -7.0,
        };
        let expected = match &question.query {
            Query::Next { prompt, .. } if prompt == "nan" => {
                assert!(matches!(found, Some(Err(QueryError::NotFinite { .. }))), "{found:?}");
                continue;
            }
            Query::Next { prompt, .. } if prompt == "fail" => {
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
fn a_python_class_that_cannot_be_used_is_told_with_pythons_words() {
    let cases = [
        ("broken", "Good", PythonFault::Import, "nothing_of_that_name"),
        ("no_such_module", "Good", PythonFault::Import, "no_such_module"),
        ("classes", "Better", PythonFault::Attribute, "Better"),
        ("classes", "Greedy", PythonFault::Signature, "adapter_path"),
        ("classes", "NOTHING", PythonFault::Signature, "5"),
        ("classes", "Failing", PythonFault::Constructor, "the weights are not there"),
        ("classes", "Single", PythonFault::NotDifferential, "as_finetuned"),
    ];
    for (module, name, expected, words) in cases {
        let (_folder, backend) = class(module, name);
        let error = backend.err().unwrap();
        assert!(error.hint().is_some());
        let CustomError::Python { entry, fault, message } = error else { panic!("{error}") };
        assert_eq!((entry, fault), (format!("{module}:{name}"), expected));
        assert!(message.contains(words), "{message}");
    }
    let entry = EntryPoint::Python { module: "classes".to_owned(), class: "Good".to_owned() };
    let options = CustomOptions { python: "/nowhere/python".to_owned(), ..CustomOptions::default() };
    let error = CustomBackend::start(&model(entry, "x"), &options).unwrap_err();
    assert!(error.hint().unwrap().contains("WEIGHTLOOM_PYTHON"), "{error}");
}
