//! The local backend, compared with numbers of dlm-sway, and with itself in
//! other batches.

use std::path::Path;

use serde_json::Value;
use weightloom_sway::backend::local::{LocalBackend, LocalOptions, Tuned};
use weightloom_sway::backend::{Backend, Capability};
use weightloom_sway::{Answer, BackendError, Query, QueryError, Question, Real, TokenNames, View};

use crate::tiny_model::{Answers, ask, fixtures, open};

use crate::device::device;

const PROMPTS: [&str; 4] = ["The capital of", "Once upon a time", "naïve — ünïcode ✓", "x"];
const PAIRS: [(&str, &str); 3] =
    [("The capital of France is", " Paris"), ("Two plus two equals", " four"), ("ab", "cdefgh")];

/// Tolerance of log-probabilities.
const TOLERANCE: f64 = 1e-4;

fn backend(tuned: Tuned, options: LocalOptions) -> LocalBackend {
    let options = LocalOptions { device: device(), ..options };
    LocalBackend::new("hf", open(&fixtures().join("model")), tuned, options).unwrap()
}

fn with_adapter() -> LocalBackend {
    backend(Tuned::Adapter(fixtures().join("adapter")), LocalOptions::default())
}

fn ask_one(backend: &mut LocalBackend, view: &View, ask_for: Query) -> Result<Answer, QueryError> {
    ask(backend, &[Question::new(view, ask_for)]).remove(0)
}

fn next(prompt: &str, top: usize) -> Query {
    Query::Next { prompt: prompt.into(), top_k: top }
}

fn noise(seed: u64, rank_scale: f64) -> View {
    View::Noise { seed, init_scale: Real(0.02), rank_scale: Real(rank_scale) }
}

fn views() -> Vec<(&'static str, View)> {
    vec![
        ("base", View::Base),
        ("ft", View::Tuned),
        ("scaled_0.0", View::Scaled(Real(0.0))),
        ("scaled_0.5", View::Scaled(Real(0.5))),
        ("scaled_1.25", View::Scaled(Real(1.25))),
        ("null_1000", noise(1000, 1.0)),
        ("null_1001", noise(1001, 1.0)),
        ("null_1000_r0.5", noise(1000, 0.5)),
    ]
}

/// All questions of the reference to one view.
fn asks() -> Vec<Query> {
    let mut asks: Vec<Query> = PROMPTS.iter().map(|prompt| next(prompt, 16)).collect();
    asks.extend(PAIRS.iter().map(|(prompt, completion)| Query::Completion {
        prompt: (*prompt).into(),
        completion: (*completion).to_owned(),
    }));
    asks.extend(PROMPTS.iter().map(|text| Query::Text { text: (*text).to_owned() }));
    asks.extend(
        PROMPTS[..2].iter().map(|prompt| Query::Generate { prompt: (*prompt).into(), max_new_tokens: 12 }),
    );
    asks
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn assert_near(found: f64, expected: f64, what: &str) {
    assert!((found - expected).abs() <= TOLERANCE, "{what}: {found} instead of {expected}");
}

#[test]
fn every_view_answers_as_in_the_reference() {
    let expected: Value =
        serde_json::from_slice(&std::fs::read(fixtures().join("views.json")).unwrap()).unwrap();
    let questions: Vec<Question> = views()
        .iter()
        .flat_map(|(_, view)| asks().into_iter().map(|ask| Question::new(view, ask)).collect::<Vec<_>>())
        .collect();
    // Chunks so small that most texts are apart, and so large that all are
    // together.
    for max_batch_tokens in [1, 50, 4096] {
        let options = LocalOptions { max_batch_tokens, max_batch_size: 5, ..LocalOptions::default() };
        let mut backend = backend(Tuned::Adapter(fixtures().join("adapter")), options);
        let answers = ask(&mut backend, &questions);
        for ((name, _), answers) in views().iter().zip(answers.chunks_exact(asks().len())) {
            let expected = &expected[name];
            for (prompt, answer) in PROMPTS.iter().zip(&answers[..4]) {
                let Ok(Answer::Distribution(found)) = answer else { panic!("{answer:?}") };
                let expected = &expected["dist"][prompt];
                let ids: Vec<u32> = numbers(&expected["ids"]).iter().map(|id| *id as u32).collect();
                assert_eq!(found.tokens, TokenNames::Ids(ids), "{name} {prompt}");
                for (found, expected) in found.logprobs.iter().zip(numbers(&expected["lp"])) {
                    assert_near(f64::from(*found), expected, &format!("{name} behind {prompt}"));
                }
                assert_eq!(found.vocabulary, expected["vocab"].as_u64().map(|size| size as usize));
                assert_near(found.tail.unwrap(), expected["tail"].as_f64().unwrap(), name);
            }
            for (answer, expected) in answers[4..7].iter().zip(numbers(&expected["lp"])) {
                let Ok(Answer::Completion(found)) = answer else { panic!("{answer:?}") };
                assert_near(found.total, expected, &format!("{name}, completions"));
            }
            for (answer, expected) in answers[7..11].iter().zip(expected["roll"].as_array().unwrap()) {
                let Ok(Answer::Rolling(found)) = answer else { panic!("{answer:?}") };
                assert_eq!(found.tokens as u64, expected["n"].as_u64().unwrap());
                assert_near(found.total, expected["total"].as_f64().unwrap(), &format!("{name}, totals"));
                assert_eq!(found.logprobs.len(), numbers(&expected["lp"]).len());
                for (found, expected) in found.logprobs.iter().zip(numbers(&expected["lp"])) {
                    assert_near(f64::from(*found), expected, &format!("{name}, tokens"));
                }
            }
            for (answer, expected) in answers[11..].iter().zip(expected["gen"].as_array().unwrap()) {
                assert_eq!(answer, &Ok(Answer::Text(expected.as_str().unwrap().to_owned())), "{name}");
            }
        }
    }
}

/// Answers that can be compared bit by bit.
fn bits(answer: &Result<Answer, QueryError>) -> String {
    format!("{answer:?}")
}

#[test]
fn answers_do_not_depend_on_what_else_is_asked() {
    let mut views: Vec<View> = views().into_iter().map(|(_, view)| view).collect();
    views.extend([View::Matched { seed: 3 }, View::Without { modules: vec!["model.layers.0".to_owned()] }]);
    let mut questions: Vec<Question> = Vec::new();
    for view in &views {
        questions.extend(asks().into_iter().map(|ask| Question::new(view, ask)));
        for prompt in PROMPTS {
            let (prompt, from) = (prompt.into(), View::Base);
            questions.push(Question::new(view, Query::Divergence { prompt, from }));
        }
    }
    questions.push(Question::new(&View::Base, Query::Embedding { text: "Once upon a time".to_owned() }));
    let mut backend = with_adapter();
    let together = ask(&mut backend, &questions);
    for (question, together) in questions.iter().zip(&together) {
        let alone = ask(&mut backend, std::slice::from_ref(question)).remove(0);
        assert_eq!(bits(&alone), bits(together), "{question:?}");
    }
    // Backwards, every question twice, one adapter of noise at a time.
    let options = LocalOptions { max_adapter_bytes: 1, max_batch_tokens: 64, ..LocalOptions::default() };
    let mut small = self::backend(Tuned::Adapter(fixtures().join("adapter")), options);
    let backwards: Vec<Question> = questions.iter().rev().chain(&questions).cloned().collect();
    let found = ask(&mut small, &backwards);
    for (found, expected) in found.iter().zip(together.iter().rev().chain(&together)) {
        assert_eq!(bits(found), bits(expected));
    }
}

#[test]
fn divergences_are_those_of_whole_distributions() {
    let mut backend = with_adapter();
    for prompt in PROMPTS {
        let mut row = |view: &View| {
            let Ok(Answer::Distribution(found)) = ask_one(&mut backend, view, next(prompt, 4096)) else {
                panic!("no distribution")
            };
            let TokenNames::Ids(ids) = found.tokens else { panic!("no numbers") };
            assert_eq!((ids.len(), found.tail), (257, None));
            let mut all = vec![0.0; ids.len()];
            ids.iter().zip(&found.logprobs).for_each(|(id, lp)| all[*id as usize] = f64::from(*lp));
            all
        };
        let (tuned, base) = (row(&View::Tuned), row(&View::Base));
        let kl = |p: &[f64], q: &[f64]| p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
        let middle: Vec<f64> =
            tuned.iter().zip(&base).map(|(p, q)| ((p.exp() + q.exp()) / 2.0).ln()).collect();
        let js = (kl(&tuned, &middle) + kl(&base, &middle)) / 2.0;
        let divergence = Query::Divergence { prompt: prompt.into(), from: View::Base };
        let Ok(Answer::Divergence(found)) = ask_one(&mut backend, &View::Tuned, divergence) else {
            panic!("no divergence")
        };
        // Distributions are told in single precision.
        assert!((found.js - js).abs() < 1e-6 && (found.kl - kl(&tuned, &base)).abs() < 1e-6);
        assert!(found.js > 1e-3, "the adapter changes something");
        let itself = Query::Divergence { prompt: prompt.into(), from: View::Scaled(Real(0.0)) };
        let Ok(Answer::Divergence(found)) = ask_one(&mut backend, &View::Base, itself) else {
            panic!("no divergence")
        };
        assert!(found.js < 1e-15 && found.kl < 1e-15);
    }
}

#[test]
fn modules_can_be_left_out() {
    let mut backend = with_adapter();
    let mut distance = |modules: &[&str], from: &View| {
        let view = View::Without { modules: modules.iter().map(|name| (*name).to_owned()).collect() };
        let ask = Query::Divergence { prompt: "Once upon a time".into(), from: from.clone() };
        match ask_one(&mut backend, &view, ask) {
            Ok(Answer::Divergence(found)) => found.js,
            other => panic!("{other:?}"),
        }
    };
    assert!(distance(&[], &View::Tuned) < 1e-15);
    assert!(distance(&["model"], &View::Base) < 1e-15);
    assert!(distance(&["model.layers.0", "model.layers.1"], &View::Base) < 1e-15);
    assert!(distance(&["model.layers.0"], &View::Base) > 1e-6);
    assert!(distance(&["model.layers.0"], &View::Tuned) > 1e-6);
}

#[test]
fn matched_noise_changes_as_much_in_another_direction() {
    let mut backend = with_adapter();
    let mut js = |view: &View, from: &View| {
        let ask = Query::Divergence { prompt: "Once upon a time".into(), from: from.clone() };
        match ask_one(&mut backend, view, ask) {
            Ok(Answer::Divergence(found)) => found.js,
            other => panic!("{other:?}"),
        }
    };
    let matched = |seed| View::Matched { seed };
    let mean = (0..20).map(|seed| js(&matched(seed), &View::Base)).sum::<f64>() / 20.0;
    let own = js(&View::Tuned, &View::Base);
    assert!(mean > own / 30.0 && mean < own * 30.0, "{mean} is not of the size of {own}");
    assert!(js(&matched(1), &matched(2)) > 1e-6);
    assert!(js(&matched(1), &View::Tuned) > 1e-6);
}

#[test]
fn vectors_have_the_length_one_and_say_something() {
    let mut backend = with_adapter();
    let mut vector =
        |text: &str| match ask_one(&mut backend, &View::Base, Query::Embedding { text: text.to_owned() }) {
            Ok(Answer::Embedding(vector)) => vector,
            other => panic!("{other:?}"),
        };
    let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
    let (a, b) = (vector("The capital of"), vector("x"));
    assert!((product(&a, &a) - 1.0).abs() < 1e-6);
    assert!(product(&a, &b) < 0.9999);
}

#[test]
fn fillers_have_the_tokens_asked_for() {
    let mut backend = with_adapter();
    let filler = |tokens| Query::Filler { tokens };
    assert_eq!(ask_one(&mut backend, &View::Base, filler(0)), Ok(Answer::Text(String::new())));
    assert_eq!(ask_one(&mut backend, &View::Base, filler(3)), Ok(Answer::Text("<|end|>".repeat(3))));
}

#[test]
fn what_has_no_answer_is_told_for_itself() {
    let mut backend = with_adapter();
    let completion = |prompt: &str, completion: &str| Query::Completion {
        prompt: prompt.into(),
        completion: completion.to_owned(),
    };
    let questions = [
        Question::new(&View::Base, next("", 4)),
        Question::new(&View::Base, completion("", "abc")),
        Question::new(&View::Base, completion("abc", "")),
        Question::new(&View::Tuned, Query::Text { text: "x".to_owned() }),
        Question::new(&View::Tuned, Query::Generate { prompt: "x".into(), max_new_tokens: 0 }),
        Question::new(&noise(1, -1.0), next("x", 4)),
        Question::new(&View::Scaled(Real(f64::NAN)), next("x", 4)),
        Question::new(&View::Base, next("x", 1)),
    ];
    let found = ask(&mut backend, &questions);
    assert_eq!(found[0], Err(QueryError::EmptyText));
    assert_eq!(found[1], Err(QueryError::EmptyText));
    assert_eq!(found[2], Err(QueryError::NoTokens { prompt: "abc".to_owned(), completion: String::new() }));
    let Ok(Answer::Rolling(one)) = &found[3] else { panic!("{:?}", found[3]) };
    assert_eq!((one.tokens, one.total, one.mean(), one.logprobs.len()), (1, 0.0, 0.0, 0));
    assert_eq!(found[4], Ok(Answer::Text(String::new())));
    assert!(matches!(&found[5], Err(QueryError::Failed { .. })));
    assert!(matches!(&found[6], Err(QueryError::Failed { .. })));
    assert!(matches!(&found[7], Ok(Answer::Distribution(_))));
}

/// The adapter with nothing but what is no number.
fn broken_adapter() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    let own = fixtures().join("adapter");
    std::fs::copy(own.join("adapter_config.json"), place.path().join("adapter_config.json")).unwrap();
    let mut bytes = std::fs::read(own.join("adapter_model.safetensors")).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[header..].chunks_exact_mut(4).for_each(|x| x.copy_from_slice(&f32::NAN.to_le_bytes()));
    std::fs::write(place.path().join("adapter_model.safetensors"), bytes).unwrap();
    place
}

#[test]
fn a_view_that_breaks_does_not_break_the_others() {
    let place = broken_adapter();
    let mut backend = backend(Tuned::Adapter(place.path().to_owned()), LocalOptions::default());
    let text = || "Once upon".to_owned();
    let asks = || {
        [
            next("Once upon", 4),
            Query::Text { text: text() },
            Query::Generate { prompt: text().into(), max_new_tokens: 4 },
            Query::Divergence { prompt: text().into(), from: View::Base },
            Query::Embedding { text: text() },
        ]
    };
    let questions: Vec<Question> = [&View::Base, &View::Tuned, &noise(7, 1.0)]
        .into_iter()
        .flat_map(|view| asks().map(|ask| Question::new(view, ask)))
        .collect();
    let found = ask(&mut backend, &questions);
    for (question, answer) in questions.iter().zip(&found) {
        if question.view == View::Tuned {
            let Err(QueryError::NotFinite { view, text, .. }) = answer else {
                panic!("{question:?} {answer:?}")
            };
            assert_eq!((&view[..], &text[..]), ("ft", "Once upon"));
        } else {
            assert!(answer.is_ok(), "{question:?} {answer:?}");
        }
    }
    assert!(backend.preflight().is_err());
}

#[test]
fn two_models_are_compared_as_well() {
    let other = open(&fixtures().join("model"));
    let mut backend = backend(Tuned::Model(Box::new(other)), LocalOptions::default());
    assert!(backend.description().capabilities.contains(&Capability::Differential));
    assert!(!backend.description().capabilities.contains(&Capability::Scalable));
    backend.preflight().unwrap();
    let from_base = Query::Divergence { prompt: "Once upon a time".into(), from: View::Base };
    let Ok(Answer::Divergence(found)) = ask_one(&mut backend, &View::Tuned, from_base) else {
        panic!("no divergence")
    };
    assert_eq!((found.js, found.kl), (0.0, 0.0));
    let refused = ask_one(&mut backend, &View::Scaled(Real(0.5)), next("x", 1));
    let expected = QueryError::Unsupported {
        backend: "hf".to_owned(),
        query: "queries of the view `scaled_0.50`".to_owned(),
    };
    assert_eq!(refused, Err(expected));
}

#[test]
fn a_base_alone_answers_for_itself() {
    let mut backend = backend(Tuned::None, LocalOptions::default());
    backend.preflight().unwrap();
    assert!(ask_one(&mut backend, &View::Base, next("x", 1)).is_ok());
    assert!(matches!(ask_one(&mut backend, &View::Tuned, next("x", 1)), Err(QueryError::Unsupported { .. })));
}

#[test]
fn identities_are_those_of_contents() {
    let name = |tuned: Tuned, options: LocalOptions| backend(tuned, options).description().identity.clone();
    let adapter = || Tuned::Adapter(fixtures().join("adapter"));
    let own = name(adapter(), LocalOptions::default());
    assert!(own.is_some());
    assert_eq!(name(adapter(), LocalOptions::default()), own);
    let half = LocalOptions { dtype: weightloom_layout::DType::Bf16, ..LocalOptions::default() };
    assert_ne!(name(adapter(), half), own);
    assert_ne!(name(Tuned::None, LocalOptions::default()), own);
    // Elsewhere, it is the same; with one number changed, it is not.
    let place = tempfile::tempdir().unwrap();
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        std::fs::copy(fixtures().join("adapter").join(file), place.path().join(file)).unwrap();
    }
    let copy = || Tuned::Adapter(place.path().to_owned());
    assert_eq!(name(copy(), LocalOptions::default()), own);
    let weights = place.path().join("adapter_model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    assert_ne!(name(copy(), LocalOptions::default()), own);
}

#[test]
fn an_adapter_that_does_not_fit_is_an_error_with_a_reason() {
    let place = tempfile::tempdir().unwrap();
    let refused = LocalBackend::new(
        "hf",
        open(&fixtures().join("model")),
        Tuned::Adapter(place.path().to_owned()),
        LocalOptions::default(),
    );
    assert!(matches!(refused.map(|_| ()), Err(BackendError { .. })));
    let other = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures/adapters/lora");
    let mut backend = backend(Tuned::Adapter(other), LocalOptions::default());
    let mut answers = Answers(vec![None]);
    let failed = backend.answer(&[Question::new(&View::Base, next("x", 1))], &mut answers);
    let Err(BackendError { message, .. }) = failed else { panic!("{failed:?}") };
    assert!(message.contains("expected 4x64"), "{message}");
    assert!(backend.preflight().is_err());
}
