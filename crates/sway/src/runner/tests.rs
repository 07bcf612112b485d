//! Suites on the dummy backend.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use serde_json::{Value, json};

use super::*;
use crate::answer::{Answer, Distribution, TokenNames};
use crate::backend::dummy::{Canned, Dummy, over_eight};
use crate::backend::model_pair::ModelPair;
use crate::backend::{AnswerSink, Capability, Description};
use crate::probe::tests::packs;
use crate::question::{Query, Question};
use crate::record::ProbeVerdict;
use crate::sections::{SectionKind, SectionPreference, SectionQuestion};

fn entries(suite: Value) -> Vec<Entry> {
    suite
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| Entry::from_json(entry.as_object().unwrap()).unwrap())
        .collect()
}

struct Suite {
    entries: Vec<Entry>,
    sections: Vec<Section>,
    document: Option<&'static str>,
    only: Vec<String>,
    packs: Packs,
    statistics: Statistics,
}

impl Suite {
    fn new(suite: Value) -> Self {
        Self {
            entries: entries(suite),
            sections: Vec::new(),
            document: None,
            only: Vec::new(),
            packs: packs(),
            statistics: Statistics::Reference,
        }
    }

    fn run_on(&self, backend: &mut dyn Backend) -> Result<RunOutcome, RunError> {
        self.run_with(backend, None, &mut ())
    }

    fn run_with(
        &self,
        backend: &mut dyn Backend,
        cache: Option<&mut Cache>,
        observer: &mut dyn Observer,
    ) -> Result<RunOutcome, RunError> {
        let job = SuiteRun {
            entries: &self.entries,
            seed: 0,
            top_k: 256,
            sections: &self.sections,
            document: self.document,
            packs: &self.packs,
            probes: &Probes::standard(),
            only: &self.only,
            statistics: self.statistics,
            paired: PairedSettings::default(),
            chat: Default::default(),
            cancel: None,
        };
        run(&job, backend, cache, observer)
    }
}

fn one(suite: Value, backend: &mut dyn Backend) -> Record {
    Suite::new(json!([suite])).run_on(backend).unwrap().records.remove(0)
}

fn near(found: Option<f64>, wanted: f64) {
    let found = found.unwrap();
    assert!((found - wanted).abs() < 1e-9, "{found} is not {wanted}");
}

fn section(id: &str, kind: SectionKind, content: &str) -> Section {
    Section {
        id: id.to_owned(),
        kind,
        content: content.to_owned(),
        questions: Vec::new(),
        preferences: Vec::new(),
        tool_calls: Vec::new(),
        tag: None,
    }
}

#[test]
fn delta_kl_with_defaults_matches_dlm_sway() {
    let found = one(json!({"name": "d", "kind": "delta_kl", "prompts": ["a", "b"]}), &mut Dummy::default());
    near(found.raw, 0.4033410931915198);
    near(found.score, 0.4033410931915198 / std::f64::consts::LN_2);
    assert_eq!(found.verdict, ProbeVerdict::Pass);
    assert_eq!(found.evidence["weight"], json!(1.0));
    assert_eq!(found.evidence["z_by_rank"], Value::Null);
    assert!(found.message.ends_with("(no calibration for delta_kl)"));
    let found = one(
        json!({"name": "d", "kind": "delta_kl", "prompts": ["a"], "divergence": "kl"}),
        &mut Dummy::default(),
    );
    near(found.raw, 2.258932601102509);
    assert_eq!(found.score, Some(1.0));
}

#[test]
fn a_failed_probe_does_not_stop_the_suite() {
    let mut backend = Dummy::default();
    backend.tuned.distributions.insert("flat".to_owned(), over_eight([-2.0; 8]));
    let suite = Suite::new(json!([
        {"name": "a", "kind": "delta_kl", "prompts": ["flat"]},
        {"name": "b", "kind": "delta_kl"},
        {"name": "c", "kind": "delta_kl", "prompts": ["x"], "enabled": false},
        {"name": "d", "kind": "delta_kl", "prompts": ["x"]},
    ]));
    let found = suite.run_on(&mut backend).unwrap().records;
    let verdicts: Vec<ProbeVerdict> = found.iter().map(|record| record.verdict).collect();
    assert_eq!(verdicts, [ProbeVerdict::Error, ProbeVerdict::Error, ProbeVerdict::Skip, ProbeVerdict::Pass]);
    assert!(found[0].message.contains("equally likely"), "{}", found[0].message);
}

#[test]
fn nulls_calibrate_later_entries_only() {
    let suite = Suite::new(json!([
        {"name": "before", "kind": "delta_kl", "prompts": ["a"]},
        {"name": "n", "kind": "null_adapter", "rank_multipliers": [0.5, 1.0]},
        {"name": "after", "kind": "delta_kl", "prompts": ["a"]},
        {"name": "pc", "kind": "prompt_collapse", "prompts": ["a"]},
    ]));
    let outcome = suite.run_on(&mut Dummy::default()).unwrap();
    let [before, null, after, _] = outcome.records.as_slice() else { panic!("four records") };
    assert_eq!(before.z_score, None);
    assert!(after.z_score.unwrap() > 3.0);
    assert_eq!(after.verdict, ProbeVerdict::Pass);
    let ranks: Vec<&String> = after.evidence["z_by_rank"].as_object().unwrap().keys().collect();
    assert_eq!(ranks, ["rank_0.50", "rank_1.00"]);
    assert_eq!(null.evidence["calibrated_kinds"], json!(["delta_kl"]));
    assert_eq!(null.evidence["skipped_kinds"][0]["kind"], json!("prompt_collapse"));
    assert_eq!((null.score, null.verdict), (Some(1.0), ProbeVerdict::Pass));
    let samples = null.evidence["per_kind_raw_samples"]["delta_kl"].as_array().unwrap();
    assert_eq!(samples.len(), 3);
    let nulls = outcome.nulls.unwrap();
    let of = |rank: usize| nulls.by_rank[rank].1["delta_kl"].mean;
    assert!(of(0) < of(1), "more noise, more divergence");
    assert_eq!(nulls.by_kind["delta_kl"], nulls.by_rank[1].1["delta_kl"]);
    let z = (after.raw.unwrap() - of(1)) / nulls.by_kind["delta_kl"].std;
    near(after.z_score, z);
}

#[test]
fn invalid_or_unsupported_nulls_are_reported() {
    let negative =
        one(json!({"name": "n", "kind": "null_adapter", "rank_multipliers": [-1.0]}), &mut Dummy::default());
    assert_eq!(negative.verdict, ProbeVerdict::Error);
    let mut without = Dummy::default().without(Capability::NullCalibrated);
    assert_eq!(one(json!({"name": "n", "kind": "null_adapter"}), &mut without).verdict, ProbeVerdict::Skip);
}

#[test]
fn questions_of_all_probes_are_batched_and_asked_once() {
    let suite = Suite::new(json!([
        {"name": "n", "kind": "null_adapter"},
        {"name": "a", "kind": "delta_kl", "prompts": ["x", "y"]},
        {"name": "b", "kind": "delta_kl", "prompts": ["y", "z"]},
        {"name": "c", "kind": "calibration_drift"},
    ]));
    let mut backend = Dummy::default();
    let outcome = suite.run_on(&mut backend).unwrap();
    assert_eq!(outcome.counters.rounds, 1);
    assert_eq!(outcome.counters.questions as usize, backend.answered);
    // Three prompts for two views; three items for two views and three nulls; two
    // prompts for the base and three nulls.
    assert_eq!(backend.answered, 6 + 15 + 8);
    assert_eq!(outcome.counters.cache_hits, 2 + 3);
    assert_eq!(outcome.counters.forward_passes as usize, backend.answered);
}

#[test]
fn a_second_run_uses_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let suite = Suite::new(json!([
        {"name": "n", "kind": "null_adapter"},
        {"name": "a", "kind": "delta_kl", "prompts": ["x", "y"]},
        {"name": "c", "kind": "calibration_drift"},
    ]));
    let mut records = Vec::new();
    for run in 0..2 {
        let mut cache = Cache::open(folder.path(), "dummy").unwrap();
        let mut backend = Dummy::default();
        let mut outcome = suite.run_with(&mut backend, Some(&mut cache), &mut ()).unwrap();
        assert_eq!(backend.answered == 0, run == 1);
        assert_eq!(outcome.counters.kept == outcome.counters.questions, run == 1);
        for record in &mut outcome.records {
            record.duration_s = 0.0;
        }
        records.push(outcome.records);
    }
    assert_eq!(records[0], records[1]);
}

#[test]
fn a_run_resumes_after_a_backend_failure() {
    let folder = tempfile::tempdir().unwrap();
    let suite = Suite::new(json!([{"name": "c", "kind": "calibration_drift"}]));
    let mut cache = Cache::open(folder.path(), "dummy").unwrap();
    let mut backend = Dummy { fail_after: Some(4), ..Dummy::default() };
    let error = suite.run_with(&mut backend, Some(&mut cache), &mut ()).unwrap_err();
    assert!(matches!(error, RunError::Backend(BackendError { .. })), "{error}");
    drop(cache);
    let mut cache = Cache::open(folder.path(), "dummy").unwrap();
    assert_eq!(cache.len(), 4);
    let mut backend = Dummy::default();
    suite.run_with(&mut backend, Some(&mut cache), &mut ()).unwrap();
    assert_eq!(backend.answered, 2);
}

#[test]
fn a_failed_preflight_is_a_single_record() {
    let mut backend = Dummy::default();
    backend.tuned.distributions.insert("preflight".to_owned(), over_eight([f32::NAN; 8]));
    let suite = Suite::new(
        json!([{"name": "a", "kind": "delta_kl", "prompts": ["x"]}, {"name": "b", "kind": "delta_kl"}]),
    );
    let found = suite.run_on(&mut backend).unwrap().records;
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].name.as_str(), found[0].kind.as_str(), found[0].verdict),
        ("__preflight__", "preflight", ProbeVerdict::Error)
    );
    assert_eq!(backend.answered, 0);
}

#[test]
fn selected_entries_run_with_their_nulls() {
    let mut suite = Suite::new(json!([
        {"name": "n", "kind": "null_adapter"},
        {"name": "a", "kind": "delta_kl", "prompts": ["x"]},
        {"name": "b", "kind": "calibration_drift"},
        {"name": "later", "kind": "null_adapter"},
    ]));
    suite.only = vec!["a".to_owned()];
    let outcome = suite.run_on(&mut Dummy::default()).unwrap();
    let names: Vec<&str> = outcome.records.iter().map(|record| record.name.as_str()).collect();
    assert_eq!(names, ["n", "a"]);
    assert!(outcome.records[1].z_score.is_some());
    assert_eq!(outcome.records[0].evidence["calibrated_kinds"], json!(["delta_kl"]));
    suite.only = vec!["latr".to_owned()];
    let error = suite.run_on(&mut Dummy::default()).unwrap_err();
    let known = ["n", "a", "b", "later"].map(str::to_owned).to_vec();
    let near = Some("later".to_owned());
    assert_eq!(error, RunError::UnknownEntry { name: "latr".to_owned(), near, known });
    assert_eq!(error.hint().unwrap(), "did you mean `later`?");
    suite.only = vec!["quite another".to_owned()];
    let error = suite.run_on(&mut Dummy::default()).unwrap_err();
    assert_eq!(error.hint().unwrap(), "the suite has `n`, `a`, `b`, `later`");
}

#[derive(Default)]
struct Listener {
    events: Vec<TraceEvent>,
    phases: Vec<Phase>,
    judged: Vec<String>,
    last: (usize, usize),
}

impl Observer for Listener {
    fn phase(&mut self, phase: Phase) {
        self.phases.push(phase);
    }
    fn answered(&mut self, done: usize, of: usize) {
        self.last = (done, of);
    }
    fn event(&mut self, event: &TraceEvent) {
        self.events.push(event.clone());
    }
    fn judged(&mut self, record: &Record) {
        self.judged.push(record.name.clone());
    }
}

#[test]
fn an_observer_receives_all_progress() {
    let suite = Suite::new(json!([
        {"name": "a", "kind": "delta_kl", "prompts": ["hello"], "top_k": 8},
        {"name": "b", "kind": "delta_kl", "prompts": ["hello"], "top_k": 8},
    ]));
    let mut listener = Listener::default();
    suite.run_with(&mut Dummy::default(), None, &mut listener).unwrap();
    assert_eq!(listener.last, (2, 2));
    assert_eq!(listener.judged, ["a", "b"]);
    assert!(listener.phases.contains(&Phase::Preflight));
    assert!(listener.phases.contains(&Phase::Asking { round: 0, questions: 2, cached: 0 }));
    let seen: Vec<(&str, &str, bool)> = listener
        .events
        .iter()
        .map(|event| (event.probe.as_deref().unwrap(), event.view_id.as_str(), event.hit))
        .collect();
    assert_eq!(seen, [("a", "base", false), ("b", "base", true), ("a", "ft", false), ("b", "ft", true)]);
    assert!(listener.events.iter().all(|event| event.prompt_hash == "aaf4c61ddcc5" && event.top_k == 8));
    assert!(listener.events.iter().all(|event| event.op == "next_token_dist"));
}

/// Never answers.
struct Silent(Description);

impl Backend for Silent {
    fn description(&self) -> &Description {
        &self.0
    }
    fn answer(&mut self, _: &[Question], _: &mut dyn AnswerSink) -> Result<(), BackendError> {
        Ok(())
    }
    fn preflight(&mut self) -> Result<(), BackendError> {
        Ok(())
    }
}

#[test]
fn a_silent_backend_does_not_hang_the_run() {
    let mut backend = Silent(Dummy::default().description().clone());
    let found = one(json!({"name": "a", "kind": "delta_kl", "prompts": ["x"]}), &mut backend);
    assert_eq!(found.verdict, ProbeVerdict::Error);
    assert!(found.message.contains("did not answer a question"), "{}", found.message);
}

#[test]
fn a_model_pair_answers_for_both_sides() {
    let base = Dummy::default();
    let tuned = Dummy::default();
    let mut both = ModelPair::new(Box::new(base), Box::new(tuned));
    let suite = Suite::new(json!([
        {"name": "d", "kind": "delta_kl", "prompts": ["x"]},
        {"name": "a", "kind": "adapter_ablation", "prompts": ["x"]},
        {"name": "n", "kind": "null_adapter"},
    ]));
    let found = suite.run_on(&mut both).unwrap().records;
    near(found[0].raw, 0.4033410931915198);
    assert_eq!((found[1].verdict, found[2].verdict), (ProbeVerdict::Skip, ProbeVerdict::Skip));
    let mut collected = Vec::new();
    struct Collector<'a>(&'a mut Vec<(usize, bool)>);
    impl AnswerSink for Collector<'_> {
        fn answered(&mut self, index: usize, answer: Result<Answer, crate::error::QueryError>) {
            self.0.push((index, answer.is_ok()));
        }
    }
    let text = |view: &View| Question::new(view, Query::Text { text: "a b".to_owned() });
    let asked = [text(&View::Tuned), text(&View::Matched { seed: 1 }), text(&View::Base)];
    both.answer(&asked, &mut Collector(&mut collected)).unwrap();
    collected.sort();
    assert_eq!(collected, [(0, true), (1, false), (2, true)]);
}

#[test]
fn section_gains_are_relative_to_other_sections() {
    let mut suite = Suite::new(json!([{"name": "s", "kind": "section_internalization"}]));
    suite.sections = vec![
        section("a", SectionKind::Prose, "one two three"),
        Section {
            questions: vec![SectionQuestion { prompt: "q".into(), gold: "eight ch".to_owned() }],
            ..section("b", SectionKind::Instruction, "")
        },
    ];
    let mut backend = Dummy::default();
    backend.tuned.completions.insert(("q".to_owned(), "eight ch".to_owned()), -9.0);
    let found = suite.run_on(&mut backend).unwrap().records.remove(0);
    // Prose: from 2 to 1.5, a gain of 1/4. Completion: from 10/2 to 9/2, a gain of 1/10.
    near(found.raw, 0.0);
    let sections = found.evidence["per_section"].as_array().unwrap();
    assert_eq!(sections[0]["own_lift"], json!(0.25));
    assert_eq!(sections[0]["effective_sis"], json!(0.25 - 0.1));
    assert_eq!(sections[1]["base_nll"], json!(5.0));
    assert_eq!(sections[1]["passed"], json!(false));
    assert_eq!((found.score, found.verdict), (Some(0.5), ProbeVerdict::Pass));
    suite.sections.truncate(1);
    assert_eq!(suite.run_on(&mut Dummy::default()).unwrap().records[0].verdict, ProbeVerdict::Skip);
}

#[test]
fn paraphrase_gains_are_compared_with_the_prompt() {
    let mut backend = Dummy::default();
    let mut say = |prompt: &str, score: f64| {
        backend.tuned.completions.insert((prompt.to_owned(), " gold gold".to_owned()), score)
    };
    say("p", -8.0);
    say("q", -9.0);
    let mut case = json!({"name": "p", "kind": "paraphrase_invariance",
        "cases": [{"prompt": "p", "gold": " gold gold", "paraphrases": ["q", "r"]}]});
    let found = one(case.clone(), &mut backend);
    // Ten characters are two tokens: 2/2, and (1/2 + 0)/2.
    near(found.raw, 1.0);
    near(found.ft_value, 0.25);
    near(found.score, 0.75);
    assert_eq!(found.verdict, ProbeVerdict::Fail);
    case["intent"] = json!("memorize");
    let found = one(case, &mut backend);
    assert_eq!((found.verdict, found.score), (ProbeVerdict::Pass, Some(1.0)));
}

#[test]
fn flipped_preferences_are_counted() {
    let triple = |i: usize| json!({"prompt": format!("p{i}"), "chosen": "a", "rejected": "b"});
    let suite = json!({"name": "p", "kind": "preference_flip", "triples": [triple(0), triple(1), triple(2), triple(3)]});
    let mut backend = Dummy::default();
    for i in 0..4 {
        let key = |text: &str| (format!("p{i}"), text.to_owned());
        backend.base.completions.insert(key("a"), -12.0);
        backend.tuned.completions.insert(key("a"), if i < 3 { -9.0 } else { -11.0 });
    }
    let found = one(suite.clone(), &mut backend);
    near(found.raw, 0.75);
    assert_eq!((found.score, found.verdict, found.ci_95), (Some(1.0), ProbeVerdict::Pass, None));
    assert_eq!(found.evidence["flipped"], json!(3));
    // Too few wrong choices for a verdict: reports margins instead.
    let found = one(
        json!({"name": "p", "kind": "preference_flip", "triples": [triple(9),
        {"prompt": "p9", "chosen": "", "rejected": "b"}]}),
        &mut Dummy::default(),
    );
    assert_eq!((found.verdict, found.raw, found.score), (ProbeVerdict::Warn, Some(0.0), Some(0.5)));
    assert_eq!(found.evidence["dropped_triples"], json!(1));
    assert!(found.evidence.contains_key("mean_margin_delta"));
    assert_eq!(
        one(json!({"name": "p", "kind": "preference_flip"}), &mut Dummy::default()).verdict,
        ProbeVerdict::Skip
    );
    // Preferences of the document are the default.
    let mut suite = Suite::new(json!([{"name": "p", "kind": "preference_flip"}]));
    suite.sections = vec![Section {
        preferences: vec![SectionPreference {
            prompt: "p".into(),
            chosen: "".to_owned(),
            rejected: "b".to_owned(),
        }],
        ..section("a", SectionKind::Preference, "")
    }];
    assert_eq!(suite.run_on(&mut Dummy::default()).unwrap().records[0].verdict, ProbeVerdict::Error);
}

#[test]
fn lost_knowledge_is_listed() {
    let mut backend = Dummy::default();
    backend.tuned.completions.insert(("Snow is".to_owned(), " white".to_owned()), -13.0);
    let found = one(json!({"name": "c", "kind": "calibration_drift"}), &mut backend);
    near(found.raw, 1.0 / 3.0);
    near(found.ft_value, -1.0);
    assert_eq!(found.verdict, ProbeVerdict::Fail);
    assert_eq!(found.score, Some(0.0));
    assert_eq!(
        found.evidence["worst_offenders"],
        json!([{"prompt": "Snow is", "gold": " white", "delta": -3.0}])
    );
    let found = one(json!({"name": "c", "kind": "calibration_drift", "items_limit": 1}), &mut backend);
    assert_eq!(found.verdict, ProbeVerdict::Pass);
    near(found.score, 0.6 + 0.4 / 1.5);
    assert_eq!(
        one(json!({"name": "c", "kind": "calibration_drift", "items_limit": 0}), &mut backend).verdict,
        ProbeVerdict::Error
    );
}

#[test]
fn recited_text_is_detected() {
    let content = "The ship left the harbour, and the sea was calm that day.";
    let (prefix, target): (String, String) =
        (content.chars().take(20).collect(), content.chars().skip(20).take(16).collect());
    let mut suite = Suite::new(
        json!([{"name": "l", "kind": "leakage", "prefix_chars": 20, "continuation_chars": 16, "perturbations": ["typo"]}]),
    );
    suite.sections =
        vec![section("a", SectionKind::Prose, content), section("b", SectionKind::Prose, "short")];
    let mut backend = Dummy::default();
    backend.tuned.generations.insert(prefix.clone(), target);
    backend.tuned.generations.insert(prefix.replacen("Th", "hT", 1), "zzzz".to_owned());
    let found = suite.run_on(&mut backend).unwrap().records.remove(0);
    assert_eq!((found.raw, found.ft_value), (Some(1.0), Some(1.0)));
    assert_eq!(found.verdict, ProbeVerdict::Pass, "recited, but fragile");
    near(found.score, 0.3);
    suite.sections.remove(0);
    assert_eq!(suite.run_on(&mut backend).unwrap().records[0].verdict, ProbeVerdict::Skip);
}

#[test]
fn styles_move_towards_the_document() {
    let mut backend = Dummy::default();
    backend.base.generations.insert("w".to_owned(), "One two. Three four.".to_owned());
    backend.tuned.generations.insert("w".to_owned(), "One two three four five six seven eight.".to_owned());
    let suite = json!({"name": "s", "kind": "style_fingerprint", "prompts": ["w"], "doc_reference": "One two three four five six seven eight."});
    let found = one(suite.clone(), &mut backend);
    near(found.raw, 1.0);
    backend.tuned.generations.insert("w".to_owned(), " ".to_owned());
    assert_eq!(one(suite, &mut backend).verdict, ProbeVerdict::Error);
    let none = json!({"name": "s", "kind": "style_fingerprint", "prompts": ["w"]});
    assert_eq!(one(none, &mut backend).verdict, ProbeVerdict::Skip);
    let extended = json!({"name": "s", "kind": "style_fingerprint", "prompts": ["w"], "doc_reference": "a", "extended": "on"});
    assert_eq!(one(extended, &mut backend).verdict, ProbeVerdict::Skip);
}

#[test]
fn neutral_text_is_split_into_chunks() {
    let found =
        one(json!({"name": "e", "kind": "external_perplexity", "chunk_chars": 128}), &mut Dummy::default());
    near(found.raw, 0.5);
    near(found.base_value, -2.0);
    near(found.ft_value, -1.5);
    assert_eq!((found.score, found.evidence["num_chunks"].clone()), (Some(1.0), json!(1)));
}

#[test]
fn ablation_divergence_grows_with_strength() {
    let found =
        one(json!({"name": "a", "kind": "adapter_ablation", "prompts": ["x"]}), &mut Dummy::default());
    let curve = found.evidence["mean_divergence_per_lambda"].as_array().unwrap();
    assert_eq!(curve[0], json!(0.0));
    assert_eq!(curve.len(), 6);
    assert!(found.raw.unwrap() > 0.5);
    let mut without = Dummy::default().without(Capability::Scalable);
    assert_eq!(
        one(json!({"name": "a", "kind": "adapter_ablation", "prompts": ["x"]}), &mut without).verdict,
        ProbeVerdict::Skip
    );
}

#[test]
fn clusters_with_different_divergence_are_separated() {
    let ids = |logprobs: [f32; 2]| Distribution {
        tokens: TokenNames::Ids(vec![0, 1]),
        logprobs: logprobs.to_vec(),
        vocabulary: None,
        tail: None,
    };
    let mut backend = Dummy::default();
    let (near_prompts, far_prompts) =
        (["a cat", "a cot", "a tac", "a act"], ["9 88", "99 8", "888 9", "98 9"]);
    for prompt in near_prompts.iter().chain(&far_prompts) {
        backend.base.distributions.insert((*prompt).to_owned(), ids([-0.1, -2.4]));
        let moved = if far_prompts.contains(prompt) { [-2.4, -0.1] } else { [-0.1, -2.4] };
        backend.tuned.distributions.insert((*prompt).to_owned(), ids(moved));
    }
    let prompts: Vec<&str> = near_prompts.into_iter().chain(far_prompts).collect();
    let suite =
        json!({"name": "c", "kind": "cluster_kl", "prompts": prompts, "num_clusters": 2, "min_prompts": 8});
    let found = one(suite.clone(), &mut backend);
    near(found.raw, 1.0);
    assert_eq!((found.verdict, found.score), (ProbeVerdict::Pass, Some(1.0)));
    assert_eq!(found.evidence["per_cluster_size"], json!([4, 4]));
    let same = Canned { distributions: backend.base.distributions.clone(), ..Canned::default() };
    let found = one(suite.clone(), &mut Dummy::new(same.clone(), same));
    assert_eq!((found.verdict, found.raw, found.score), (ProbeVerdict::Warn, Some(0.5), Some(0.0)));
    assert_eq!(one(suite, &mut backend.without(Capability::Embedding)).verdict, ProbeVerdict::Skip);
}

#[test]
fn reverted_answers_are_counted() {
    let mut backend = Dummy::default();
    let mut write = |prompt: &str, base: &str, tuned: &str| {
        backend.base.generations.insert(prompt.to_owned(), base.to_owned());
        backend.tuned.generations.insert(prompt.to_owned(), tuned.to_owned());
    };
    write("kept", "bbbb", "gggg");
    write("lost", "bbbb", "bbbb");
    write("known", "gggg", "gggg");
    let suite = |paraphrases: Value| {
        json!({"name": "r", "kind": "adapter_revert",
        "cases": [{"prompt": "p", "gold": "gggg", "paraphrases": paraphrases}]})
    };
    let found = one(suite(json!(["kept", "lost", "known"])), &mut backend);
    assert_eq!((found.raw, found.verdict, found.score), (Some(0.5), ProbeVerdict::Fail, Some(0.0)));
    assert_eq!(found.evidence["dropped_trivial"], json!(1));
    let found = one(suite(json!(["known"])), &mut backend);
    assert_eq!((found.raw, found.verdict, found.score), (None, ProbeVerdict::Warn, Some(0.5)));
}

#[test]
fn contexts_are_padded_to_their_length() {
    let found = one(
        json!({"name": "p", "kind": "prompt_collapse", "prompts": ["x"], "context_lengths": [0, 4]}),
        &mut Dummy::default(),
    );
    // The dummy does not decay: no half-life.
    assert_eq!((found.raw, found.score, found.verdict), (None, Some(0.0), ProbeVerdict::Fail));
    let mut backend = Dummy::default();
    backend.tuned.distributions.insert(
        "Nothing to see. \n\nx".to_owned(),
        over_eight([-0.2, -5.0, -5.0, -5.0, -5.0, -5.0, -5.0, -3.0]),
    );
    let found = one(
        json!({"name": "p", "kind": "prompt_collapse", "prompts": ["x"], "context_lengths": [0, 4]}),
        &mut backend,
    );
    assert!(found.raw.unwrap() > 0.0 && found.raw.unwrap() < 4.0);
}

#[test]
fn lost_and_invented_tool_calls_are_counted() {
    let call = |name: &str| format!(r#"{{"name": "{name}", "arguments": {{"city": "Ax"}}}}"#);
    let spec = json!({"name": "weather", "parameters": {"required": ["city"]}});
    let prompts: Vec<String> = (0..20).map(|number| format!("{number}?")).collect();
    let suite = json!({"name": "t", "kind": "tool_use_fidelity", "instructions": "",
        "cases": prompts.iter().map(|prompt| json!({"prompt": prompt, "tool_spec": spec})).collect::<Vec<_>>()});
    // The first answers of the fine-tuned model are `text`, the others are calls.
    let judged = |text: &str, count: usize, statistics: Statistics| {
        let mut backend = Dummy::default();
        for (number, prompt) in prompts.iter().enumerate() {
            backend.base.generations.insert(prompt.clone(), call("weather"));
            let answer = if number < count { text.to_owned() } else { call("weather") };
            backend.tuned.generations.insert(prompt.clone(), answer);
        }
        let suite = Suite { statistics, ..Suite::new(json!([suite])) };
        suite.run_on(&mut backend).unwrap().records.remove(0)
    };
    let kept = judged("", 0, Statistics::Paired);
    assert_eq!((kept.raw, kept.verdict), (Some(0.0), ProbeVerdict::Pass), "{}", kept.message);
    let some = judged("It rains.", 4, Statistics::Paired);
    assert_eq!((some.raw, some.verdict), (Some(0.2), ProbeVerdict::Inconclusive), "{}", some.message);
    let most = judged("It rains.", 15, Statistics::Paired);
    assert_eq!(most.verdict, ProbeVerdict::Fail);
    assert!(most.message.starts_with("lost 15 of 20 tool calls; 20 were correct, 5 are"), "{}", most.message);
    assert_eq!(most.evidence["per_case"][0]["ft"], "no JSON object");
    assert_eq!(most.evidence["generations"].as_array().unwrap().len(), 20);
    let invented = judged(&call("forecast"), 8, Statistics::Paired);
    assert_eq!(invented.verdict, ProbeVerdict::Fail);
    assert_eq!(invented.message, "8 of 20 calls name a tool that does not exist");

    let found = judged("It rains.", 1, Statistics::Reference);
    assert_eq!((found.raw, found.verdict), (Some(0.95), ProbeVerdict::Pass));
    let found = judged("It rains.", 2, Statistics::Reference);
    assert_eq!((found.score, found.verdict), (Some(0.9), ProbeVerdict::Fail));
}

#[test]
fn tools_are_described_before_the_question() {
    let suite = json!({"name": "t", "kind": "tool_use_fidelity", "instructions": "Use {tool}.",
        "cases": [{"prompt": "Rain?", "tool_spec": {"name": "weather"}}]});
    let mut backend = Dummy::default();
    for canned in [&mut backend.base, &mut backend.tuned] {
        canned.generations.insert("Use {\"name\":\"weather\"}.\n\nRain?".to_owned(), "No.".to_owned());
    }
    let found = Suite { statistics: Statistics::Paired, ..Suite::new(json!([suite])) };
    let found = found.run_on(&mut backend).unwrap().records.remove(0);
    assert_eq!(
        (found.verdict, found.message.as_str()),
        (ProbeVerdict::Skip, "neither model makes a valid call")
    );
    let unnamed = json!({"name": "t", "kind": "tool_use_fidelity",
        "cases": [{"prompt": "Rain?", "tool_spec": {"parameters": {}}}]});
    let error = Entry::from_json(unnamed.as_object().unwrap()).unwrap_err();
    assert!(format!("{error:?}").contains("case 1: its `tool_spec` has no `name`"), "{error:?}");
}

#[test]
fn chats_grow_turn_by_turn() {
    let suite = json!({"name": "m", "kind": "multi_turn_coherence_decay", "prompts": ["Hi"], "chat": "always",
        "max_turns": 3, "follow_ups": ["Why?"]});
    let mut backend = Dummy::default();
    let turns = [
        "Hi",
        "user: Hi\nassistant: A0\nuser: Why?",
        "user: Hi\nassistant: A0\nuser: Why?\nassistant: A1\nuser: Why?",
    ];
    for (number, prompt) in turns.iter().enumerate() {
        backend.tuned.generations.insert((*prompt).to_owned(), format!("A{number} "));
    }
    backend.base.generations.insert(turns[2].to_owned(), "B".to_owned());
    // In the third turn the models hardly differ.
    let near_base = over_eight([-0.11, -5.0, -5.0, -5.0, -5.0, -5.0, -5.0, -4.9]);
    backend.tuned.distributions.insert(turns[2].to_owned(), near_base);
    let found = one(suite, &mut backend);
    assert_eq!(found.verdict, ProbeVerdict::Fail, "{}", found.message);
    assert!(found.raw.unwrap() < 1.0, "{:?}", found.raw);
    assert_eq!(found.evidence["generations"][0]["base"], "B");
    assert_eq!(found.evidence["generations"][0]["ft"], "A2 ");
    assert_eq!(found.evidence["turns"], json!([2, 3]));
    // Plain text has no turns.
    let plain = json!({"name": "m", "kind": "multi_turn_coherence_decay", "prompts": ["Hi"]});
    assert_eq!(one(plain, &mut Dummy::default()).verdict, ProbeVerdict::Skip);
}
