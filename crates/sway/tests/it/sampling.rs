//! Seeded sampling: the same seed gives the same text, whatever else is asked.

use serde_json::{Value, json};
use weightloom_sway::backend::local::{LocalBackend, LocalOptions, Tuned};
use weightloom_sway::packs::Packs;
use weightloom_sway::paired::PairedSettings;
use weightloom_sway::probe::Probes;
use weightloom_sway::runner::{Entry, SuiteRun, run};
use weightloom_sway::{Answer, Query, Question, Real, Record, Statistics, View};

use crate::tiny_model::{ask, fixtures, open};

fn backend(options: LocalOptions) -> LocalBackend {
    let adapter = Tuned::Adapter(fixtures().join("adapter"));
    LocalBackend::new("hf", open(&fixtures().join("model")), adapter, options).unwrap()
}

fn sample(prompt: &str, seed: u64) -> Query {
    Query::Sample {
        prompt: prompt.into(),
        max_new_tokens: 12,
        temperature: Real(0.9),
        top_p: Real(0.95),
        seed,
    }
}

fn texts(backend: &mut LocalBackend, questions: &[Question]) -> Vec<String> {
    ask(backend, questions)
        .into_iter()
        .map(|answer| match answer {
            Ok(Answer::Text(text)) => text,
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn a_seed_gives_one_text_in_every_batch() {
    let prompts = ["The capital of", "Once upon a time", "x"];
    let mut questions = Vec::new();
    for view in [View::Base, View::Tuned, View::Scaled(Real(0.0))] {
        for (prompt, seed) in prompts.iter().flat_map(|prompt| [1, 2].map(|seed| (prompt, seed))) {
            questions.push(Question::new(&view, sample(prompt, seed)));
        }
        questions
            .push(Question::new(&view, Query::Generate { prompt: prompts[0].into(), max_new_tokens: 12 }));
    }
    let together = texts(&mut backend(LocalOptions::default()), &questions);
    let mut alone = backend(LocalOptions { max_batch_size: 1, ..LocalOptions::default() });
    assert_eq!(texts(&mut alone, &questions), together);
    for (question, text) in questions.iter().zip(&together).rev() {
        assert_eq!(texts(&mut alone, std::slice::from_ref(question)).as_slice(), std::slice::from_ref(text));
    }
    let (base, rest) = together.split_at(7);
    let (tuned, unchanged) = rest.split_at(7);
    // The same random numbers: without the adapter, the same texts.
    assert_eq!(base, unchanged);
    assert_ne!(base, tuned);
    assert_ne!(base[0], base[1], "another seed draws another text");
    assert_ne!(base[0], base[6], "a sample is not the greedy text");
}

#[test]
fn impossible_parameters_fail_their_question_only() {
    let wrong = Query::Sample {
        prompt: "x".into(),
        max_new_tokens: 4,
        temperature: Real(-1.0),
        top_p: Real(1.0),
        seed: 0,
    };
    let questions = [Question::new(&View::Base, wrong), Question::new(&View::Base, sample("x", 0))];
    let answers = ask(&mut backend(LocalOptions::default()), &questions);
    assert!(answers[0].as_ref().unwrap_err().to_string().contains("temperature"));
    assert!(answers[1].is_ok());
}

fn records(entries: &[Value], options: LocalOptions, seed: u64) -> Vec<Record> {
    let entries: Vec<Entry> =
        entries.iter().map(|entry| Entry::from_json(entry.as_object().unwrap()).unwrap()).collect();
    let sections = weightloom_sway::sections::Document::from_markdown(
        "# A\n\nWater is wet, and fire is hot, and the horse counts to ten.\n",
    )
    .sections;
    let job = SuiteRun {
        entries: &entries,
        seed,
        top_k: 256,
        sections: &sections,
        document: Some("Water is wet. Fire is hot."),
        packs: Packs::builtin(),
        probes: &Probes::standard(),
        chat: Default::default(),
        only: &[],
        statistics: Statistics::Paired,
        paired: PairedSettings::default(),
        cancel: None,
    };
    let mut records = run(&job, &mut backend(options), None, &mut ()).unwrap().records;
    records.iter_mut().for_each(|record| record.duration_s = 0.0);
    records
}

#[test]
fn probes_with_a_temperature_are_reproducible() {
    let entries = |temperature: f64, samples: usize| {
        [
            json!({"name": "style", "kind": "style_fingerprint", "prompts": ["Write.", "Say."],
                   "max_new_tokens": 12, "temperature": temperature, "top_p": 0.9, "samples": samples}),
            json!({"name": "leak", "kind": "leakage", "prefix_chars": 8, "max_new_tokens": 12,
                   "temperature": temperature, "samples": samples, "perturbations": ["typo"]}),
            json!({"name": "revert", "kind": "adapter_revert", "max_new_tokens": 8, "temperature": temperature,
                   "cases": [{"prompt": "p", "gold": "g", "paraphrases": ["q", "r"]}]}),
        ]
    };
    let one = LocalOptions { max_batch_size: 1, ..LocalOptions::default() };
    let warm = records(&entries(0.8, 3), LocalOptions::default(), 0);
    assert_eq!(warm, records(&entries(0.8, 3), one, 0));
    let raws = |records: &[Record]| -> Vec<Option<f64>> { records.iter().map(|record| record.raw).collect() };
    assert!(raws(&warm)[..2].iter().all(Option::is_some), "{warm:?}");
    // Another seed of the suite, more samples, and no temperature give other texts.
    let shown =
        |records: &[Record]| serde_json::to_value(records).unwrap()[0]["evidence"]["generations"].clone();
    for other in [
        records(&entries(0.8, 3), LocalOptions::default(), 1),
        records(&entries(0.8, 2), LocalOptions::default(), 0),
        records(&entries(0.0, 1), LocalOptions::default(), 0),
    ] {
        assert_ne!(shown(&warm), shown(&other));
    }
}
