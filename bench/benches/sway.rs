//! A suite of thirteen probes against dlm-sway.
//!
//! Every measurement runs in a separate process. Set `WEIGHTLOOM_PEER_PYTHON` to
//! a Python with dlm-sway, torch, peft and sentence-transformers, and
//! `WEIGHTLOOM_BENCH_SMALL` to a Hugging Face folder of SmolLM2-135M in f32.
//! The peer creates an adapter and a sentence encoder with random weights,
//! which both sides use. Arguments after `--` select cases: reference, paired.
//! The peer runs once, because its suite takes many minutes.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde_json::{Map, Value, json};
use weightloom_bench::{Against, Goal, Report, gigabytes, json_f64, json_output, peak_memory, seconds};
use weightloom_hub::cards::CardStore;
use weightloom_hub::fetch::FetchSettings;
use weightloom_hub::{Families, Hub};
use weightloom_sway::Backend;
use weightloom_sway::backend::local::{LocalBackend, LocalOptions, Tuned};
use weightloom_sway::backend::sentence_encoder::WithSentenceEncoder;
use weightloom_sway::cache::Cache;
use weightloom_sway::packs::Packs;
use weightloom_sway::paired::PairedSettings;
use weightloom_sway::probe::Probes;
use weightloom_sway::runner::{Entry, SuiteRun, run};
use weightloom_sway::sections::Section;

#[allow(clippy::print_stdout, reason = "progress of a long benchmark")]
fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--bench")).collect();
    if let [role, case, base, adapter, encoder, cache_folder] = words.as_slice()
        && role == "ours"
    {
        return ours(case, [base, adapter, encoder].map(Path::new), Path::new(cache_folder));
    }
    let Some(base) = std::env::var_os("WEIGHTLOOM_BENCH_SMALL").map(PathBuf::from) else { return };
    let Some(python) = std::env::var_os("WEIGHTLOOM_PEER_PYTHON") else { return };
    let folder = std::env::temp_dir().join(format!("weightloom-bench-sway-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let (adapter, encoder) = (folder.join("adapter"), folder.join("encoder"));
    let suite = suite_file();
    let create = |what: [&OsStr; 3]| {
        let made = json_output(Command::new(&python).arg(peer()).args(what));
        assert!(made["made"].is_string(), "{made}");
    };
    create(["make".as_ref(), base.as_ref(), adapter.as_ref()]);
    create(["encoder".as_ref(), encoder.as_ref(), suite.as_ref()]);
    let wanted = |case: &str| words.is_empty() || words.iter().any(|word| word == case);
    let mut report = Report::new("sway");
    let cases: Vec<&str> = ["reference", "paired"].into_iter().filter(|case| wanted(case)).collect();
    let ours: Vec<[Value; 2]> =
        cases.iter().map(|case| measured(case, [&base, &adapter, &encoder], &folder.join(case))).collect();
    let mut command = Command::new(python);
    command.arg(peer()).arg("run").args([&base, &adapter, &encoder, &suite]);
    let theirs = json_output(command.env("OMP_NUM_THREADS", "2"));
    for (case, ours) in cases.iter().zip(&ours) {
        compare(&mut report, case, ours, &theirs);
    }
    for (name, took) in theirs["probes"].as_object().into_iter().flatten() {
        println!("dlm-sway {name}: {:.1} s", took.as_f64().unwrap_or(f64::NAN));
    }
    report.finish();
    let _ = std::fs::remove_dir_all(folder);
}

/// Runs a case twice; the second run finds all answers in the cache.
#[allow(clippy::print_stdout, reason = "progress of a long benchmark")]
fn measured(case: &str, paths: [&Path; 3], cache_folder: &Path) -> [Value; 2] {
    [(); 2].map(|()| {
        let own = std::env::current_exe().expect("this program");
        let mut command = Command::new(own);
        let output = json_output(
            command.args(["ours", case]).args(paths).arg(cache_folder).env("WEIGHTLOOM_THREADS", "2"),
        );
        println!("{case}: {:.1} s", json_f64(&output, "/seconds"));
        output
    })
}

#[allow(clippy::print_stdout, reason = "progress of a long benchmark")]
fn compare(report: &mut Report, case: &str, [first, second]: &[Value; 2], theirs: &Value) {
    assert_eq!(theirs["skipped"], json!([]), "dlm-sway skipped probes");
    for probe in first["probes"].as_array().into_iter().flatten() {
        println!("{case} {}: {:.1} s", probe["name"], json_f64(probe, "/seconds"));
    }
    let (time, beside) = (json_f64(first, "/seconds"), json_f64(theirs, "/seconds"));
    let what = format!("13 probes, {case} statistics");
    let figures = [&*seconds(time), &*seconds(beside)];
    report.compare(&what, Against::peer("dlm-sway"), figures, beside / time, Goal::AtLeast(10.0));
    let (own, beside) = (json_f64(first, "/peak"), json_f64(theirs, "/peak"));
    let what = format!("13 probes, {case} statistics, peak memory");
    let figures = [&*gigabytes(own), &*gigabytes(beside)];
    report.compare(&what, Against::peer("dlm-sway"), figures, own / beside, Goal::AtMost(0.6));
    let again = json_f64(second, "/seconds");
    let what = format!("13 probes, {case} statistics, from cached answers");
    report.compare(&what, Against::Limit, [&seconds(again), "1 s"], again, Goal::AtMost(1.0));
}

fn peer() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/sway_dlm.py")
}

fn suite_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("sway/suite.json")
}

/// Runs one measurement and prints it as a line of JSON.
#[allow(clippy::print_stdout, reason = "the output of a measuring process")]
fn ours(case: &str, [base, adapter, encoder]: [&Path; 3], cache_folder: &Path) {
    let started = Instant::now();
    let given: Value = serde_json::from_slice(&std::fs::read(suite_file()).expect("a suite")).expect("JSON");
    let sections: Vec<Section> =
        given["sections"].as_array().expect("sections").iter().map(section).collect();
    let entries: Vec<Entry> = given["suite"]
        .as_array()
        .expect("entries")
        .iter()
        .map(|entry| Entry::from_json(entry.as_object().unwrap_or(&Map::new())).expect("an entry"))
        .collect();
    let text: Vec<&str> = sections.iter().map(|section| section.content.as_str()).collect();
    let text = text.join("\n\n");
    let mut families = Families::new();
    weightloom_models::register(&mut families).expect("families differ in name");
    let hub = Hub::new(CardStore::new([]), families, Ok(FetchSettings::in_folders("none", "none")));
    let model = hub.open(&base.display().to_string(), &()).expect("a model");
    let local = LocalBackend::new("hf", model, Tuned::Adapter(adapter.to_owned()), LocalOptions::default())
        .expect("a backend");
    let mut backend = WithSentenceEncoder::open(Box::new(local), encoder, &()).expect("an encoder");
    let identity = backend.description().identity.clone().expect("an identity");
    std::fs::create_dir_all(cache_folder).expect("a folder");
    let mut cache = Cache::open(cache_folder, &identity).expect("a cache");
    let statistics = case.parse().unwrap_or_default();
    let job = SuiteRun {
        entries: &entries,
        seed: 0,
        top_k: 256,
        sections: &sections,
        document: Some(&text),
        packs: Packs::builtin(),
        probes: &Probes::standard(),
        only: &[],
        statistics,
        paired: PairedSettings::default(),
        chat: Default::default(),
        cancel: None,
    };
    let outcome = run(&job, &mut backend, Some(&mut cache), &mut ()).expect("a run");
    let verdicts: Vec<Value> = outcome
        .records
        .iter()
        .map(|record| {
            json!({"name": record.name, "verdict": record.verdict, "raw": record.raw,
                "seconds": record.duration_s, "message": record.message})
        })
        .collect();
    let answer = json!({"seconds": started.elapsed().as_secs_f64(), "peak": peak_memory(), "probes": verdicts,
        "asked": outcome.counters.forward_passes});
    println!("{answer}");
}

fn section(given: &Value) -> Section {
    let mut whole = given.clone();
    for (key, value) in [("questions", json!([])), ("preferences", json!([])), ("tag", Value::Null)] {
        if whole.get(key).is_none() {
            whole[key] = value;
        }
    }
    serde_json::from_value(whole).expect("a section")
}
