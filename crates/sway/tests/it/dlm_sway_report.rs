//! A report of dlm-sway on the tiny model, under the reference statistics.
//!
//! dlm-sway ran with the texts of this repository, so that its numbers depend
//! on nothing else; see `tests/fixtures/dlm_sway`.

use serde_json::{Value, json};
use weightloom_sway::backend::local::{LocalBackend, LocalOptions, Tuned};
use weightloom_sway::cache::Cache;
use weightloom_sway::packs::Packs;
use weightloom_sway::paired::PairedSettings;
use weightloom_sway::probe::Probes;
use weightloom_sway::runner::{Entry, RunOutcome, SuiteRun, run};
use weightloom_sway::sections::{Section, SectionKind, SectionPreference, SectionQuestion};
use weightloom_sway::{Record, Statistics};

use crate::tiny_model::{fixtures, open};

use crate::device::{device, package_folder};

/// Tolerance of numbers.
const TOLERANCE: f64 = 1e-4;

fn backend() -> LocalBackend {
    let adapter = Tuned::Adapter(fixtures().join("adapter"));
    let options = LocalOptions { device: device(), ..LocalOptions::default() };
    LocalBackend::new("hf", open(&fixtures().join("model")), adapter, options).unwrap()
}

fn section(id: &str, kind: SectionKind, content: String) -> Section {
    Section {
        id: id.to_owned(),
        kind,
        content,
        questions: Vec::new(),
        preferences: Vec::new(),
        tool_calls: Vec::new(),
        tag: None,
    }
}

/// The sections of the report.
fn sections() -> Vec<Section> {
    let mut found: Vec<Section> = (0..3)
        .map(|i| {
            section(
                &format!("p{i}"),
                SectionKind::Prose,
                format!("Section {i} talks about topic {i}. ").repeat(5),
            )
        })
        .collect();
    found.push(Section {
        questions: vec![SectionQuestion { prompt: "Question?".into(), gold: "Answer text".to_owned() }],
        ..section("i0", SectionKind::Instruction, String::new())
    });
    found.push(Section {
        preferences: vec![SectionPreference {
            prompt: "Pick".into(),
            chosen: "yes please".to_owned(),
            rejected: "no".to_owned(),
        }],
        ..section("r0", SectionKind::Preference, String::new())
    });
    found
}

fn judged(suite: &Value, packs: &Packs, cache: Option<&mut Cache>) -> RunOutcome {
    let entries: Vec<Entry> = suite
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| Entry::from_json(entry.as_object().unwrap()).unwrap())
        .collect();
    let job = SuiteRun {
        entries: &entries,
        seed: 0,
        top_k: 256,
        sections: &sections(),
        document: Some("A doc."),
        packs,
        probes: &Probes::standard(),
        only: &[],
        statistics: Statistics::Reference,
        paired: PairedSettings::default(),
        chat: Default::default(),
        cancel: None,
    };
    run(&job, &mut backend(), cache, &mut ()).unwrap()
}

/// Text packs that the compared numbers do not depend on.
fn no_packs() -> Packs {
    serde_json::from_value(json!({
        "sentinel_prompts": ["One"], "sentinel_doc": "A text.",
        "cluster_calibration": {}, "preference_calibration": {}, "paraphrase_calibration": {},
        "stuffing": "Nothing. ", "synonyms": {}, "prefix_inject_lead_in": "So ",
        "calibration_pack": [["One and one is", " two"]],
        "external_corpus_public_domain_en": "The sea is wide.",
        "style_elicitation_prompts": ["Write."], "check_quick_prompts": ["Once"],
    }))
    .unwrap()
}

fn near(what: &str, found: Option<f64>, wanted: f64) {
    let found = found.unwrap_or(f64::NAN);
    assert!((found - wanted).abs() <= TOLERANCE, "{what}: {found} is not {wanted}");
}

fn named<'a>(records: &'a [Record], name: &str) -> &'a Record {
    records.iter().find(|record| record.name == name).unwrap()
}

#[test]
fn entries_with_their_own_prompts_agree_with_dlm_sway() {
    let triples: Vec<Value> = (0..6)
        .map(|i| json!({"prompt": format!("p{i}"), "chosen": " a", "rejected": format!(" b{}", "c".repeat(i))}))
        .collect();
    let suite = json!([
        {"name": "d", "kind": "delta_kl", "prompts": ["The quick brown fox", "Once upon a time", "In my opinion,"]},
        {"name": "dk", "kind": "delta_kl", "divergence": "kl", "top_k": 32,
            "prompts": ["The quick brown fox", "Once upon a time"]},
        {"name": "abl", "kind": "adapter_ablation", "prompts": ["Tell me more", "Explain"]},
        {"name": "pf", "kind": "preference_flip", "triples": triples},
        {"name": "pi", "kind": "paraphrase_invariance", "cases": [{"prompt": "The sky is", "gold": " blue",
            "paraphrases": ["What color is the sky?", "Sky color:"]}]},
        {"name": "si", "kind": "section_internalization"},
        {"name": "sf", "kind": "style_fingerprint", "prompts": ["Write a line."],
            "doc_reference": "A doc. It has text.", "max_new_tokens": 16, "extended": "off"},
        {"name": "lk", "kind": "leakage", "prefix_chars": 32, "continuation_chars": 64, "max_new_tokens": 24},
    ]);
    let records = judged(&suite, &no_packs(), None).records;
    for (name, raw) in [
        ("d", 0.08226926114613604),
        ("dk", 0.4406958086651696),
        ("abl", 0.9098869046909708),
        ("pf", -1.0847234725952148),
        ("pi", 0.008724212646484375),
        ("si", 0.0),
        ("sf", -0.8526035256946255),
        ("lk", 0.007575757575757576),
    ] {
        near(name, named(&records, name).raw, raw);
    }
    near("margins before", named(&records, "pf").base_value, 11.097878138224283);
    near("other words", named(&records, "pi").ft_value, 0.28411006927490234);
    let gains: Vec<f64> = named(&records, "si").evidence["per_section"]
        .as_array()
        .unwrap()
        .iter()
        .map(|section| section["effective_sis"].as_f64().unwrap())
        .collect();
    let wanted = [
        -0.021655240775071912,
        -0.021805605679514856,
        -0.015322698737954568,
        0.06149923658581566,
        -0.0027156913932743195,
    ];
    for (found, wanted) in gains.iter().zip(wanted) {
        near("a section", Some(*found), wanted);
    }
    let [low, high] = named(&records, "si").ci_95.unwrap();
    near("low end", Some(low), -0.020448878329425622);
    near("high end", Some(high), 0.031995282536931555);
}

#[test]
fn a_second_run_is_answered_from_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let suite = json!([{"name": "n", "kind": "null_adapter"}, {"name": "d", "kind": "delta_kl", "prompts": ["Once"]}]);
    let mut first = None;
    for run in 0..2 {
        let mut cache = Cache::open(folder.path(), "tiny").unwrap();
        let outcome = judged(&suite, &no_packs(), Some(&mut cache));
        assert_eq!(outcome.counters.rounds, 1 - run);
        let raws: Vec<Option<f64>> = outcome.records.iter().map(|record| record.raw).collect();
        assert_eq!(first.get_or_insert(raws.clone()), &raws);
    }
}

#[test]
fn the_whole_report_agrees_with_dlm_sway() {
    let golden = package_folder(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/dlm_sway");
    let read =
        |name: &str| -> Value { serde_json::from_slice(&std::fs::read(golden.join(name)).unwrap()).unwrap() };
    let report = read("report.json");
    let wanted = report["probes"].as_array().unwrap();
    let outcome = judged(&read("suite.json"), Packs::builtin(), None);
    assert_eq!((outcome.records.len(), wanted.len()), (12, 12));
    let mut faults = Vec::new();
    for (found, wanted) in outcome.records.iter().zip(wanted) {
        let found: Value = serde_json::to_value(found).unwrap();
        let name = wanted["name"].as_str().unwrap();
        for field in [
            "name",
            "kind",
            "verdict",
            "score",
            "raw",
            "z_score",
            "base_value",
            "ft_value",
            "ci_95",
            "evidence",
        ] {
            compare(&found[field], &wanted[field], &format!("{name}.{field}"), &mut faults);
        }
    }
    assert!(faults.is_empty(), "{} differences:\n{}", faults.len(), faults.join("\n"));
}

/// What we report besides: generated texts, results item by item, and limits for
/// plots.
const OURS: [&str; 7] =
    ["generations", "items", "item_unit", "item_lost_from", "better", "raw_limit", "raw_passes"];

/// Differences of two values. Quotients with a tiny divisor (the deviation of
/// three draws, a gain of 0.009) have a relative tolerance of a hundredth.
fn compare(found: &Value, wanted: &Value, path: &str, faults: &mut Vec<String>) {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => {
            let names: std::collections::BTreeSet<&String> = found.keys().chain(wanted.keys()).collect();
            for name in names.into_iter().filter(|name| !OURS.contains(&name.as_str())) {
                let of = |map: &serde_json::Map<String, Value>| map.get(name).cloned();
                match (of(found), of(wanted)) {
                    (Some(found), Some(wanted)) => {
                        compare(&found, &wanted, &format!("{path}.{name}"), faults);
                    }
                    (found, _) => faults.push(format!(
                        "{path}.{name}: only {}",
                        if found.is_some() { "ours" } else { "theirs" }
                    )),
                }
            }
        }
        (Value::Array(found), Value::Array(wanted)) if found.len() == wanted.len() => {
            for (place, (found, wanted)) in found.iter().zip(wanted).enumerate() {
                compare(found, wanted, &format!("{path}.{place}"), faults);
            }
        }
        // Reasons are worded differently.
        (Value::String(_), Value::String(_)) if path.ends_with("reason") => {}
        _ => {
            let same = match (found.as_f64(), wanted.as_f64()) {
                (Some(found), Some(wanted)) => {
                    let quotient = path.contains("z_by_rank")
                        || path.ends_with("z_score")
                        || path.ends_with("generalization_ratio");
                    let slack = if quotient { 0.01 * wanted.abs() } else { 0.0 };
                    (found - wanted).abs() <= TOLERANCE + slack
                }
                _ => found == wanted,
            };
            if !same {
                faults.push(format!("{path}: {found} is not {wanted}"));
            }
        }
    }
}
