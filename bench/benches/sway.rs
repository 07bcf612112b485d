//! A whole suite of thirteen probes beside dlm-sway.
//!
//! Every measurement is a process of its own. Set `SHARDLOOM_PEER_PYTHON` to a
//! Python that has dlm-sway, torch and peft, and `SHARDLOOM_BENCH_SMALL` to a
//! Hugging Face folder of SmolLM2-135M in f32. Words after `--` choose cases:
//! reference, paired. The peer is asked once: its suite takes many minutes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde_json::{Map, Value, json};
use shardloom_bench::{Goal, Report, asked, number, peak, seconds};
use shardloom_hub::cards::CardStore;
use shardloom_hub::fetch::FetchSettings;
use shardloom_hub::{Families, Hub};
use shardloom_sway::Backend;
use shardloom_sway::backend::local::{LocalBackend, LocalOptions, Tuned};
use shardloom_sway::cache::Cache;
use shardloom_sway::packs::Packs;
use shardloom_sway::paired::Paired;
use shardloom_sway::runner::{Entry, Job, Judging, Silent, run};
use shardloom_sway::sections::Section;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--bench")).collect();
    if let [own, case, base, adapter, kept] = words.as_slice()
        && own == "ours"
    {
        return ours(case, Path::new(base), Path::new(adapter), Path::new(kept));
    }
    let Some(base) = std::env::var_os("SHARDLOOM_BENCH_SMALL").map(PathBuf::from) else { return };
    let python = std::env::var_os("SHARDLOOM_PEER_PYTHON");
    let folder = std::env::temp_dir().join(format!("shardloom-bench-sway-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let adapter = match (std::env::var_os("SHARDLOOM_BENCH_ADAPTER"), &python) {
        (Some(adapter), _) => PathBuf::from(adapter),
        (None, Some(python)) => {
            let adapter = folder.join("adapter");
            let made = asked(Command::new(python).arg(peer()).arg("make").arg(&base).arg(&adapter));
            assert!(made["made"].is_string(), "{made}");
            adapter
        }
        (None, None) => return,
    };
    let wanted = |case: &str| words.is_empty() || words.iter().any(|word| word == case);
    let theirs = python.map(|python| {
        let mut command = Command::new(python);
        command.arg(peer()).arg("run").arg(&base).arg(&adapter).arg(suite_file());
        asked(command.env("OMP_NUM_THREADS", "2"))
    });
    let mut report = Report::new();
    for case in ["reference", "paired"].into_iter().filter(|case| wanted(case)) {
        compare(&mut report, case, [&base, &adapter], &folder.join(case), theirs.as_ref());
    }
    report.print();
    let _ = std::fs::remove_dir_all(folder);
}

fn compare(
    report: &mut Report,
    case: &str,
    [base, adapter]: [&Path; 2],
    kept: &Path,
    theirs: Option<&Value>,
) {
    let ask = || {
        let own = std::env::current_exe().expect("this program");
        let mut command = Command::new(own);
        asked(command.args(["ours", case]).args([base, adapter, kept]).env("SHARDLOOM_THREADS", "2"))
    };
    let (first, second) = (ask(), ask());
    let time = number(&first, "/seconds");
    if let Some(theirs) = theirs {
        let beside = number(theirs, "/seconds");
        let what = format!("13 probes, {case} statistics / dlm-sway");
        report.ratio(&what, [&seconds(time), &seconds(beside)], beside / time, Goal::AtLeast(10.0));
        let (own, beside) = (number(&first, "/peak"), number(theirs, "/peak"));
        let gigabytes = |bytes: f64| format!("{:.2} GB", bytes / 1e9);
        report.ratio(
            "its peak memory / dlm-sway",
            [&gigabytes(own), &gigabytes(beside)],
            own / beside,
            Goal::AtMost(0.6),
        );
    }
    let again = number(&second, "/seconds");
    report.ratio(
        "the same again, from kept answers / 1 s",
        [&seconds(again), "1 s"],
        again,
        Goal::AtMost(1.0),
    );
}

fn peer() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/sway_dlm.py")
}

fn suite_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("sway/suite.json")
}

/// One measurement of ours, told as one line of JSON.
#[allow(clippy::print_stdout, reason = "the answer of a process of its own")]
fn ours(case: &str, base: &Path, adapter: &Path, kept: &Path) {
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
    shardloom_models::register(&mut families).expect("families differ in name");
    let hub = Hub {
        cards: CardStore::new([]),
        families,
        fetch: Ok(FetchSettings::in_folders("none", "none")),
        model_path: Vec::new(),
    };
    let model = hub.open(&base.display().to_string(), &()).expect("a model");
    let mut backend =
        LocalBackend::new("hf", model, Tuned::Adapter(adapter.to_owned()), LocalOptions::default())
            .expect("a backend");
    let identity = backend.description().identity.clone().expect("an identity");
    std::fs::create_dir_all(kept).expect("a folder");
    let mut cache = Cache::open(kept, &identity).expect("a cache");
    let judging = match case {
        "reference" => Judging::Reference,
        _ => Judging::Paired(Paired::default()),
    };
    let job = Job {
        entries: &entries,
        seed: 0,
        top_k: 256,
        sections: &sections,
        document: Some(&text),
        packs: Packs::own(),
        only: &[],
        judging,
    };
    let outcome = run(&job, &mut backend, Some(&mut cache), &mut Silent).expect("a run");
    let verdicts: Vec<Value> = outcome
        .records
        .iter()
        .map(|record| {
            json!({"name": record.name, "verdict": record.verdict, "raw": record.raw,
                "seconds": record.duration_s, "message": record.message})
        })
        .collect();
    let answer = json!({"seconds": started.elapsed().as_secs_f64(), "peak": peak(), "probes": verdicts,
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
