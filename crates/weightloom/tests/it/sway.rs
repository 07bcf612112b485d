//! `weightloom sway` on a model with random weights.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use serde_json::Value;

const SUITE: &str = r#"
models:
  base: {base: model}
  ft: {base: model, adapter: adapter}
dlm_source: notes.md
suite:
  - {name: noise, kind: null_adapter, runs: 3}
  - {name: change, kind: delta_kl, prompts: ["The capital of", "Once upon a time", "A recipe for", "The sky is"]}
  - {name: knowledge, kind: calibration_drift, items_limit: 10}
  - {name: strength, kind: adapter_ablation, prompts: ["The capital of", "Once upon a time"]}
"#;

const NOTES: &str = "# One\n\nWater is wet, and fire is hot.\n\n# Two\n\nA horse could count to ten.\n";

/// A folder with a model, an adapter, a document and suites.
struct Workspace {
    root: tempfile::TempDir,
}

impl Workspace {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sway/tests/fixtures/tiny");
        for folder in ["model", "adapter"] {
            let target = root.path().join(folder);
            std::fs::create_dir(&target).unwrap();
            for entry in std::fs::read_dir(fixtures.join(folder)).unwrap() {
                let entry = entry.unwrap();
                std::fs::copy(entry.path(), target.join(entry.file_name())).unwrap();
            }
        }
        let workspace = Self { root };
        workspace.write("sway.yaml", SUITE);
        workspace.write("notes.md", NOTES);
        workspace
    }

    fn file(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.file(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.file(name)).unwrap()
    }

    /// A suite of these entries only.
    fn suite(&self, name: &str, entries: &str) {
        let head: String = SUITE.split_inclusive("suite:\n").next().unwrap().to_owned();
        self.write(name, &format!("{head}{entries}"));
    }

    fn sway(&self, arguments: &[&str]) -> Output {
        let mut command = Command::cargo_bin("weightloom").unwrap();
        command.env("COLUMNS", "100").env("NO_COLOR", "1").env("WEIGHTLOOM_CACHE_DIR", self.file("cache"));
        command.current_dir(self.root.path()).arg("sway").args(arguments).output().unwrap()
    }

    /// The output of a command with this exit code.
    fn output(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.sway(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{error}");
        if code == 0 || error.is_empty() { String::from_utf8(output.stdout).unwrap() } else { error }
    }

    fn json(&self, code: i32, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.output(code, arguments)).unwrap()
    }
}

/// The records of a report, without durations.
fn records(report: &Value) -> Vec<Value> {
    let mut records = report["probes"].as_array().unwrap().clone();
    for record in &mut records {
        record.as_object_mut().unwrap().remove("duration_s");
    }
    records
}

fn record<'a>(report: &'a Value, name: &str) -> &'a Value {
    report["probes"].as_array().unwrap().iter().find(|record| record["name"] == name).unwrap()
}

#[test]
fn helps() {
    let workspace = Workspace::new();
    let mut text = String::new();
    for command in
        ["run", "gate", "check", "diff", "probes", "report", "compare", "trace", "autogen", "convert-adapter"]
    {
        writeln!(text, "$ weightloom sway {command} --help\n{}", workspace.output(0, &[command, "--help"]))
            .unwrap();
    }
    insta::assert_snapshot!(text);
}

#[test]
fn a_run_prints_its_report() {
    let workspace = Workspace::new();
    let text = workspace.output(0, &["run", "sway.yaml", "--html", "run.html"]);
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"\d+\.\d+ s ·", "[time] ·");
    settings.add_filter(r"version \S+", "version [version]");
    settings.bind(|| insta::assert_snapshot!(text));
}

#[test]
fn a_dry_run_lists_the_probes_and_loads_nothing() {
    let workspace = Workspace::new();
    std::fs::remove_file(workspace.file("model/model.safetensors")).unwrap();
    insta::assert_snapshot!(workspace.output(0, &["run", "sway.yaml", "--dry-run"]));
    assert!(!workspace.file("cache").exists());
    let answer = workspace.json(0, &["run", "sway.yaml", "--dry-run", "--json"]);
    assert_eq!((answer["entries"].as_array().unwrap().len(), answer["sections"].as_u64()), (4, Some(2)));
}

#[test]
fn every_report_format_is_written_and_a_second_run_asks_nothing() {
    let workspace = Workspace::new();
    let files =
        ["--json", "a.json", "-m", "a.md", "--junit", "a.xml", "--html", "a.html", "--trace", "a.jsonl"];
    let mut arguments = vec!["run", "sway.yaml"];
    arguments.extend(files);
    let text = workspace.output(0, &arguments);
    assert!(text.ends_with("written: a.json, a.md, a.xml, a.html\n"), "{text}");
    let report: Value = serde_json::from_str(&workspace.read("a.json")).unwrap();
    assert_eq!(records(&report).len(), 4);
    assert_eq!(report["spec_path"], "sway.yaml");
    assert!(report["started_at"].as_str().unwrap() <= report["finished_at"].as_str().unwrap());
    assert!(workspace.read("a.md").contains("| change |"));
    assert!(workspace.read("a.xml").starts_with("<testsuite name=\"sway\" tests=\"4\""));
    assert!(workspace.read("a.html").contains("<h2 id=\"layers\">"));
    let asked = workspace.read("a.jsonl").lines().count();
    assert!(asked > 100);
    assert!(workspace.output(0, &["trace", "a.jsonl"]).contains(&asked.to_string()));

    // The same numbers, all from the cache.
    let again = workspace.json(0, &["run", "sway.yaml", "--json"]);
    assert_eq!(records(&again), records(&report));
    let counted = |report: &Value, key: &str| report["backend_stats"][key].as_f64().unwrap();
    assert!(counted(&report, "cache_misses") > 0.0);
    assert_eq!((counted(&again, "cache_misses"), counted(&again, "rounds")), (0.0, 0.0));
    // Without the cache they are the same, bit for bit.
    let anew = workspace.json(0, &["run", "sway.yaml", "--no-cache", "--json"]);
    assert_eq!(records(&anew), records(&report));
    assert_eq!(counted(&anew, "cache_misses"), counted(&report, "cache_misses"));
}

#[test]
fn json_goes_to_stdout_in_three_ways() {
    let workspace = Workspace::new();
    let first = workspace.json(0, &["run", "sway.yaml", "--json"]);
    let second = workspace.json(0, &["run", "sway.yaml", "--print-json"]);
    let third = Command::cargo_bin("weightloom").unwrap();
    let mut third = third;
    let third = third
        .env("WEIGHTLOOM_CACHE_DIR", workspace.file("cache"))
        .current_dir(workspace.root.path())
        .args(["--json", "sway", "run", "sway.yaml"])
        .output()
        .unwrap();
    let third: Value = serde_json::from_slice(&third.stdout).unwrap();
    assert_eq!(records(&first), records(&second));
    assert_eq!(records(&first), records(&third));
}

#[test]
fn layers_share_the_change() {
    let workspace = Workspace::new();
    let report = workspace.json(0, &["run", "sway.yaml", "--json"]);
    let evidence = &record(&report, "change")["evidence"];
    let layers = evidence["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 2);
    assert!(layers.iter().all(|layer| layer["share"].as_f64().unwrap() < 1.0));
    assert!(layers.iter().any(|layer| layer["share"].as_f64().unwrap() > 0.1));
    // The adapter changes attention only.
    let parts = evidence["parts"].as_array().unwrap();
    assert_eq!((&parts[0]["name"], &parts[1]["name"]), (&"attention".into(), &"feed-forward".into()));
    assert_eq!((parts[0]["share"].as_f64(), parts[1]["share"].as_f64()), (Some(1.0), Some(0.0)));
    // dlm-sway does not attribute changes to layers.
    let reference = workspace.json(0, &["run", "sway.yaml", "--statistics", "reference", "--json"]);
    assert!(record(&reference, "change")["evidence"].get("layers").is_none());
    assert_eq!(reference["statistics"], "reference");
    assert!(record(&reference, "change")["z_score"].as_f64().unwrap() > 100.0);
}

#[test]
fn only_named_entries_run_with_their_noise() {
    let workspace = Workspace::new();
    let report = workspace.json(0, &["run", "sway.yaml", "--only", "strength", "--json"]);
    let names: Vec<&str> =
        report["probes"].as_array().unwrap().iter().map(|record| record["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["noise", "strength"]);
    let error = workspace.output(2, &["run", "sway.yaml", "--only", "strenght"]);
    assert_eq!(error, "error: unknown entry `strenght`\nhint: did you mean `strength`?\n");
}

#[test]
fn a_run_fails_only_on_request() {
    let workspace = Workspace::new();
    workspace.suite("odd.yaml", "  - {name: change, kind: delta_kl, prompts: []}\n");
    let text = workspace.output(0, &["run", "odd.yaml"]);
    assert!(text.contains("ERROR"), "{text}");
    assert_eq!(workspace.sway(&["run", "odd.yaml", "--fail-on", "fail,warn"]).status.code(), Some(0));
    assert_eq!(workspace.sway(&["run", "odd.yaml", "--fail-on", "error"]).status.code(), Some(1));
}

#[test]
fn a_gate_refuses_errors_and_low_scores() {
    let workspace = Workspace::new();
    let passed = workspace.json(0, &["gate", "sway.yaml", "--threshold", "0", "--json"]);
    assert_eq!((&passed["passed"], passed["refusals"].as_array().unwrap().len()), (&true.into(), 0));
    let refused = workspace.sway(&["gate", "sway.yaml", "--threshold", "0.99", "--junit", "gate.xml"]);
    assert_eq!(refused.status.code(), Some(1));
    let text = String::from_utf8(refused.stdout).unwrap();
    assert!(text.contains("refused:\n  the score is") && text.contains("below 0.99"), "{text}");
    assert!(workspace.read("gate.xml").contains("testsuite"));
    // A probe that cannot run does not pass.
    workspace.suite("odd.yaml", "  - {name: change, kind: delta_kl, prompts: []}\n");
    let refused = workspace.json(1, &["gate", "odd.yaml", "--threshold", "0", "--json"]);
    assert!(refused["refusals"][0]["errored"]["name"] == "change", "{refused}");
    // A suite without probes does not pass.
    workspace.suite("none.yaml", "  - {name: change, kind: delta_kl, enabled: false}\n");
    assert!(workspace.output(2, &["gate", "none.yaml", "--threshold", "0"]).contains("runs no probe"));
    assert!(
        workspace
            .output(2, &["gate", "sway.yaml", "--threshold", "1.5"])
            .contains("is outside the range of scores")
    );
    workspace.output(2, &["gate"]);
}

#[test]
fn checkpoints_are_compared() {
    let workspace = Workspace::new();
    let equal = workspace.json(0, &["gate", "--same", "model", "model", "--json"]);
    assert_eq!((&equal["identical"], &equal["same"]), (&true.into(), &true.into()));
    assert!(equal["behaviour"].is_null());
    let merged = Command::cargo_bin("weightloom")
        .unwrap()
        .current_dir(workspace.root.path())
        .args(["export", "model", "merged", "--adapter", "adapter"])
        .output()
        .unwrap();
    assert!(merged.status.success());
    let other = workspace.json(1, &["gate", "--same", "model", "merged", "--json"]);
    assert_eq!((&other["identical"], &other["behaviour"]["outcome"]), (&false.into(), &"different".into()));
    let with = ["gate", "--same", "model", "merged", "--adapter", "adapter", "--margin", "1e-6"];
    let text = workspace.output(0, &with);
    assert!(text.starts_with("the same model within the margin\n"), "{text}");
    // One prompt does not decide.
    workspace.write("prompts.txt", "The capital of\n\n");
    let text = workspace.sway(&["gate", "--same", "model", "merged", "--prompts", "prompts.txt"]);
    assert_eq!(text.status.code(), Some(1));
    assert!(String::from_utf8(text.stdout).unwrap().starts_with("undecided"));
    assert!(workspace.output(2, &["gate", "--same", "model", "merged", "--margin", "0"]).contains("margin"));
    workspace.write("prompts.txt", "\n");
    let empty = workspace.output(2, &["gate", "--same", "model", "merged", "--prompts", "prompts.txt"]);
    assert!(empty.contains("has no prompts"), "{empty}");
    workspace.output(2, &["gate", "sway.yaml", "--same", "model", "merged"]);
}

#[test]
fn a_quick_check_needs_a_base_and_gives_a_colour() {
    let workspace = Workspace::new();
    let error = workspace.output(2, &["check", "adapter"]);
    assert_eq!(error, "error: `adapter` does not name its base model\nhint: name the base with --base\n");
    // Under the reference statistics any adapter is far from its small noise.
    // It loses facts, though, which outweighs that.
    let damaged =
        workspace.json(1, &["check", "adapter", "--base", "model", "--statistics", "reference", "--json"]);
    assert_eq!((&damaged["light"], records(&damaged["report"]).len()), (&"red".into(), 4));
    let verdict = &damaged["report"]["verdict"];
    assert_eq!(
        (&verdict["changed"]["decision"], &verdict["damaged"]["decision"]),
        (&"yes".into(), &"yes".into())
    );
    // Random numbers do not differ from noise of the same size.
    let red = workspace.output(1, &["check", "adapter", "--base", "model"]);
    assert!(red.is_empty() || red.starts_with("RED: "), "{red}");
    workspace.write("prompts.txt", "The capital of\nOnce upon a time\n");
    let arguments = ["check", "adapter", "--base", "model", "--prompts", "prompts.txt", "--statistics"];
    let few = workspace.json(1, &[&arguments[..], &["reference", "--json"]].concat());
    assert_eq!(record(&few["report"], "change")["evidence"]["num_prompts"], 2);
    assert!(workspace.output(2, &["check", "nowhere", "--base", "model"]).contains("nowhere"));
}

#[test]
fn one_suite_compares_two_adapters() {
    let workspace = Workspace::new();
    let merged = Command::cargo_bin("weightloom")
        .unwrap()
        .current_dir(workspace.root.path())
        .args(["export", "model", "merged", "--adapter", "adapter"])
        .output()
        .unwrap();
    assert!(merged.status.success());
    let text = workspace.output(0, &["diff", "sway.yaml", "--a", "adapter", "--b", "adapter"]);
    assert!(text.contains("not proven") && !text.contains("regression"), "{text}");
    // The same change as a separate model has no noise to compare with.
    let both = workspace.json(0, &["diff", "sway.yaml", "--a", "adapter", "--b", "merged", "--json"]);
    assert_eq!(both["labels"], serde_json::json!(["a", "b"]));
    assert!(
        workspace.output(2, &["diff", "sway.yaml", "--a", "adapter", "--b", "nowhere"]).contains("nowhere")
    );
}

#[test]
fn a_proven_loss_between_two_runs_is_a_regression() {
    let workspace = Workspace::new();
    let mut report = workspace.json(0, &["run", "sway.yaml", "--only", "change,knowledge", "--json"]);
    workspace.write("before.json", &report.to_string());
    let lost = report["probes"].as_array_mut().unwrap();
    let knowledge = lost.iter_mut().find(|record| record["name"] == "knowledge").unwrap();
    let items = knowledge["evidence"]["items"].as_array_mut().unwrap();
    assert_eq!(items.len(), 10);
    for item in items {
        item["tuned"] = (item["tuned"].as_f64().unwrap() - 2.0).into();
    }
    workspace.write("after.json", &report.to_string());
    let both = ["compare", "before.json", "after.json"];
    let said = "regression: knowledge: lost 2.000 nats per token, 95 % interval [2.000, 2.000]; margin 0.";
    let text = workspace.output(0, &both);
    assert!(text.contains(said) && text.contains(" of 10 items lost ("), "{text}");
    let found = workspace.json(1, &[&both[..], &["--json", "--fail-on-regression"]].concat());
    assert_eq!(found["latest_regressions"][0]["name"], "knowledge");
    assert_eq!(found["steps"][0]["effects"][1]["outcome"], "regression");
    // A margin that the loss does not exceed.
    workspace.output(0, &[&both[..], &["--fail-on-regression", "3"]].concat());
    workspace.output(0, &["compare", "after.json", "before.json", "--fail-on-regression"]);
    let markdown = workspace.output(0, &[&both[..], &["--format", "markdown"]].concat());
    assert!(
        markdown.contains("| Probe | Unit | before | after | Change | 95 % | p | Result |"),
        "{markdown}"
    );
    let error = workspace.output(2, &[&both[..], &["--plot", "plot.png"]].concat());
    assert!(error.contains("unknown file type") && error.contains("hint: name a file"), "{error}");
    assert!(
        workspace.output(2, &[&both[..], &["--plot", "plot.svg"]].concat()).contains("no run measured both")
    );
}

#[test]
fn checkpoints_are_plotted() {
    let workspace = Workspace::new();
    workspace.suite(
        "learning.yaml",
        "  - {name: sections, kind: section_internalization}\n  - {name: neutral, kind: external_perplexity, \
         max_chunks: 3, chunk_chars: 128}\n",
    );
    workspace.output(0, &["run", "learning.yaml", "--json", "one.json"]);
    for name in ["two.json", "three.json"] {
        std::fs::copy(workspace.file("one.json"), workspace.file(name)).unwrap();
    }
    for plot in ["plot.svg", "plot.html"] {
        workspace.output(0, &["compare", "one.json", "two.json", "three.json", "--plot", plot]);
        let drawn = workspace.read(plot);
        assert_eq!(drawn.matches("<circle class=\"dot\"").count(), 3, "{drawn}");
        assert!(
            drawn.contains("nats per token lost on neutral text") && !drawn.contains("<script"),
            "{drawn}"
        );
    }
}

#[test]
fn a_converted_adapter_is_the_same_adapter() {
    let workspace = Workspace::new();
    let record_of_data = r#"{"version": 1, "kinds": ["text"]}"#;
    workspace.write("adapter/training_data.json", record_of_data);
    let answer = workspace.json(0, &["convert-adapter", "adapter", "mlx", "--to", "mlx", "--json"]);
    assert_eq!(answer["modules"], 4);
    assert_eq!(workspace.read("mlx/training_data.json"), record_of_data);
    // Equal numbers give equal records.
    let own = workspace.json(0, &["run", "sway.yaml", "--only", "change", "--json"]);
    workspace.write("mlx.yaml", &SUITE.replace("adapter: adapter", "adapter: mlx"));
    let other = workspace.json(0, &["run", "mlx.yaml", "--only", "change", "--json"]);
    assert_eq!(record(&own, "change")["raw"], record(&other, "change")["raw"]);
    let error = workspace.output(2, &["convert-adapter", "adapter", "mlx", "--to", "mlx"]);
    assert!(error.contains("hint:"), "{error}");
    workspace.output(0, &["convert-adapter", "adapter", "mlx", "--to", "mlx", "--overwrite"]);
    assert!(
        workspace.output(2, &["convert-adapter", "model", "other", "--to", "mlx"]).contains("no adapter")
    );
}

#[test]
fn probes_are_listed_and_each_shows_its_fields() {
    let workspace = Workspace::new();
    insta::assert_snapshot!(workspace.output(0, &["probes"]));
    let all = workspace.json(0, &["probes", "--json"]);
    assert_eq!(all.as_array().unwrap().len(), weightloom::sway::probe::kinds().len());
    for kind in all.as_array().unwrap() {
        let name = kind["kind"].as_str().unwrap();
        assert!(workspace.output(0, &["probes", name]).contains("│ field"), "{name}");
        assert!(workspace.json(0, &["probes", name, "--json"])["fields"]["properties"].is_object());
    }
    let error = workspace.output(2, &["probes", "delta_lk"]);
    assert_eq!(error, "error: unknown probe kind `delta_lk`\nhint: did you mean `delta_kl`?\n");
}

#[test]
fn mistakes_are_reported_all_at_once_with_their_lines() {
    let workspace = Workspace::new();
    workspace.suite(
        "bad.yaml",
        "  - {name: a, kind: delta_kl, promts: [x]}\n  - {name: b, kind: delta_kk}\n  - {name: c, kind: null_adapter, runs: 11}\n",
    );
    let mut text = workspace.output(2, &["run", "bad.yaml"]);
    workspace.suite(
        "fields.yaml",
        "  - {name: c, kind: null_adapter, runs: 11}\n  - {name: d, kind: delta_kl, top_k: 0}\n",
    );
    text += &workspace.output(2, &["run", "fields.yaml"]);
    // Errors of the file and of its entries at once.
    workspace.suite("both.yaml", "  - {name: c, kind: leek}\n  - {kind: leakage}\ndefaults: {top_k: 0}\n");
    text += &workspace.output(2, &["run", "both.yaml"]);
    text += &workspace.output(2, &["run", "nowhere.yaml"]);
    text += &workspace.output(2, &["run", "sway.yaml", "--weights", "adherance=1"]);
    std::fs::rename(workspace.file("adapter"), workspace.file("elsewhere")).unwrap();
    text += &workspace.output(2, &["run", "sway.yaml"]);
    insta::assert_snapshot!(text);
}

#[test]
fn a_model_that_cannot_be_asked_has_no_verdict() {
    let workspace = Workspace::new();
    let config = workspace.read("adapter/adapter_config.json").replace("\"LORA\"", "\"IA3\"");
    workspace.write("adapter/adapter_config.json", &config);
    // Even without --fail-on.
    let text = workspace.output(1, &["run", "sway.yaml", "--markdown", "run.md"]);
    assert!(text.contains("No probe could run, so nothing was judged."), "{text}");
    assert!(!text.contains("Score") && !text.contains("noise") && text.contains("IA3"), "{text}");
    assert!(workspace.read("run.md").contains("**No probe could run"));
    // Nor does it compare as equal.
    std::fs::rename(workspace.file("adapter"), workspace.file("other")).unwrap();
    std::fs::create_dir(workspace.file("adapter")).unwrap();
    std::fs::copy(
        workspace.file("other/adapter_model.safetensors"),
        workspace.file("adapter/adapter_model.safetensors"),
    )
    .unwrap();
    workspace.write("adapter/adapter_config.json", &config.replace("\"IA3\"", "\"LORA\""));
    let text = workspace.output(1, &["diff", "sway.yaml", "--a", "adapter", "--b", "other"]);
    assert!(text.contains("__preflight__ could not run") && text.contains("IA3"), "{text}");
}

#[test]
fn mistakes_of_the_command_line_are_reported_first() {
    let workspace = Workspace::new();
    workspace.write("run.json", &workspace.output(0, &["run", "sway.yaml", "--no-cache", "--json"]));
    for (said, arguments) in [
        ("no folder `nowhere`", &["run", "sway.yaml", "--json", "nowhere/run.json"][..]),
        ("is a folder", &["gate", "sway.yaml", "--junit", "model"]),
        ("unknown entry `chnge`", &["run", "sway.yaml", "--only", "chnge"]),
        ("unknown entry `chnge`", &["run", "sway.yaml", "--dry-run", "--only", "chnge"]),
        (
            "cannot combine --junit, --only with --same",
            &["gate", "--same", "model", "model", "--junit", "x", "--only", "y"],
        ),
        ("no such folder `nowhere`", &["gate", "--same", "model", "model", "--adapter", "nowhere"]),
        ("cannot use `model` as an adapter", &["gate", "--same", "model", "model", "--adapter", "model"]),
        ("use a number of at least 0", &["compare", "run.json", "run.json", "--fail-on-regression", "nan"]),
        (
            "use a number of at least 0",
            &["diff", "sway.yaml", "--a", "x", "--b", "y", "--fail-on-regression=-1"],
        ),
        ("no such folder `nowhere`", &["diff", "sway.yaml", "--a", "adapter", "--b", "nowhere"]),
    ] {
        let text = workspace.output(2, arguments);
        assert!(text.contains(said), "{arguments:?}\n{text}");
    }
    assert!(!workspace.file("cache").exists());
    // Files with equal names are shown with their paths.
    std::fs::create_dir(workspace.file("later")).unwrap();
    std::fs::copy(workspace.file("run.json"), workspace.file("later/run.json")).unwrap();
    let text = workspace.output(0, &["compare", "run.json", "later/run.json"]);
    assert!(text.contains("later/run.json"), "{text}");
    std::fs::remove_dir_all(workspace.file("adapter")).unwrap();
    assert!(workspace.output(2, &["run", "sway.yaml", "--dry-run"]).contains("no such folder `adapter`"));
}

#[cfg(unix)]
#[test]
fn a_report_that_cannot_be_written_is_shown() {
    let workspace = Workspace::new();
    // Behaves like a full disk.
    let output = workspace.sway(&["run", "sway.yaml", "--html", "/dev/full", "--json", "run.json"]);
    assert_eq!(output.status.code(), Some(3));
    let (shown, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(shown.contains("delta_kl") && shown.contains("written: run.json"), "{shown}");
    assert!(error.contains("cannot write `/dev/full`"), "{error}");
    // The other file was written.
    assert!(workspace.output(0, &["report", "run.json"]).contains("delta_kl"));
}

#[test]
fn another_adapter_reuses_the_answers_of_the_base() {
    let workspace = Workspace::new();
    let first = workspace.json(0, &["run", "sway.yaml", "--only", "knowledge", "--json"]);
    assert_eq!(first["backend_stats"]["kept"], 0);
    let config = workspace.read("adapter/adapter_config.json");
    workspace.write("adapter/adapter_config.json", &config.replace("\"lora_alpha\": 8", "\"lora_alpha\": 3"));
    let second = workspace.json(0, &["run", "sway.yaml", "--only", "knowledge", "--json"]);
    // Ten answers of the base are cached; those of the adapter are not.
    assert_eq!(second["backend_stats"]["kept"], 10, "{}", second["backend_stats"]);
    assert_ne!(record(&first, "knowledge")["raw"], serde_json::Value::Null);
    workspace.write("alone.json", &second.to_string());
    let alone = workspace.json(0, &["run", "sway.yaml", "--only", "knowledge", "--no-cache", "--json"]);
    assert_eq!(records(&alone), records(&second));
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_says_what_is_cached() {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, Stdio};

    let workspace = Workspace::new();
    let greeting = r#"{"protocol":"weightloom-sway","version":1,"capabilities":["differential"]}"#;
    let program =
        format!("#!/bin/sh\nread -r hello\necho '{greeting}'\nread -r line\n: > asked\nexec sleep 20\n");
    workspace.write("slow.sh", &program);
    std::fs::set_permissions(workspace.file("slow.sh"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let side = "{kind: custom, base: m, entry_point: ./slow.sh}";
    let suite = format!(
        "models: {{base: {side}, ft: {side}}}\nsuite:\n  - {{name: a, kind: delta_kl, prompts: [x]}}\n"
    );
    workspace.write("slow.yaml", &suite);
    for (name, number) in [("INT", 2), ("TERM", 15)] {
        let _ = std::fs::remove_file(workspace.file("asked"));
        let child = Command::new(assert_cmd::cargo::cargo_bin("weightloom"))
            .current_dir(workspace.root.path())
            .args(["sway", "run", "slow.yaml", "--allow-programs"])
            .stderr(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        while !workspace.file("asked").exists() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.signal(), Some(number));
        let error = String::from_utf8_lossy(&output.stderr);
        // A backend without an identity cannot be cached.
        assert!(error.contains("interrupted: no answers are cached"), "{error}");
    }
}

#[test]
fn a_missing_document_is_a_warning() {
    let workspace = Workspace::new();
    std::fs::remove_file(workspace.file("notes.md")).unwrap();
    let report = workspace.json(0, &["run", "sway.yaml", "--only", "change", "--json"]);
    let warnings = report["warnings"].as_array().unwrap();
    assert!(warnings[0].as_str().unwrap().contains("notes.md"), "{warnings:?}");
}

#[test]
fn a_broken_cache_folder_is_a_warning() {
    let workspace = Workspace::new();
    workspace.write("cache", "a file");
    let report = workspace.json(0, &["run", "sway.yaml", "--only", "change", "--json"]);
    assert!(report["warnings"][0].as_str().unwrap().contains("cannot cache answers"), "{report}");
    assert_eq!(records(&report).len(), 2);
}

/// A training config with a suite.
fn training(suite: &str) -> String {
    format!(
        r#"
model:
  name: llama
  weights_path: model
  lora: {{rank: 2, alpha: 4, target_modules: [q_proj, v_proj]}}
data: {{paths: [notes.md], max_seq_len: 16}}
train:
  max_steps: 2
  global_batch_size: 1
  checkpoint: {{output_dir: out}}
  eval:
    sway:
      suite: {suite}
"#
    )
}

#[test]
fn checkpoints_of_a_training_run_are_judged() {
    let workspace = Workspace::new();
    let train = |file: &str| {
        let mut command = Command::cargo_bin("weightloom").unwrap();
        command.current_dir(workspace.root.path()).args(["train", file]).output().unwrap()
    };
    workspace.write(
        "run.yaml",
        &training(r#"[{name: change, kind: delta_kl, prompts: ["The capital of", "A horse"]}]"#),
    );
    let output = train("run.yaml");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        text.contains("sway out/checkpoints/step_2: ") && text.contains("than noise would change it"),
        "{text}"
    );
    let metrics = workspace.read("out/metrics.jsonl");
    let judged: Value = metrics
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .find(|record| record["texts"]["sway/verdict"].is_string())
        .unwrap();
    assert!(judged["scalars"]["sway/probe/change"].as_f64().unwrap() >= 0.0, "{judged}");
    assert!(workspace.read("out/sway/step_2.html").contains("step_2"));
    let report: Value = serde_json::from_str(&workspace.read("out/sway/step_2.json")).unwrap();
    assert_eq!(report["base_model_id"], "model");

    // Errors of the suite are reported before training.
    workspace.write(
        "odd.yaml",
        &training("[{name: change, kind: delta_lk}]").replace("output_dir: out", "output_dir: odd"),
    );
    let output = train("odd.yaml");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(
        text.contains("unknown probe kind `delta_lk`") && text.contains("did you mean `delta_kl`?"),
        "{text}"
    );
    assert!(!workspace.file("odd").exists());
    workspace.write("none.yaml", &training("[]").replace("  weights_path: model\n", ""));
    let output = train("none.yaml");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && text.contains("weights_path"), "{text}");
}

#[test]
fn a_training_run_reads_its_suite_from_a_file() {
    let workspace = Workspace::new();
    let train = |file: &str| {
        let mut command = Command::cargo_bin("weightloom").unwrap();
        command.current_dir(workspace.root.path()).args(["train", file]).output().unwrap()
    };
    // The models of the file are not those of the run, and need not exist.
    let suite =
        SUITE.replace("base: model", "base: elsewhere").replace("adapter: adapter", "adapter: nowhere");
    workspace.write("sway.yaml", &suite);
    workspace.write("run.yaml", &training("sway.yaml"));
    let output = train("run.yaml");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("sway out/checkpoints/step_2: "), "{text}");
    let report: Value = serde_json::from_str(&workspace.read("out/sway/step_2.json")).unwrap();
    assert_eq!((report["base_model_id"].as_str(), records(&report).len()), (Some("model"), 4));
    assert!(workspace.read("out/metrics.jsonl").contains("sway/probe/change"));

    // Mistakes are reported before training.
    workspace.write("lost.yaml", &training("lost-sway.yaml").replace("output_dir: out", "output_dir: odd"));
    let output = train("lost.yaml");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && text.contains("lost-sway.yaml"), "{text}");
    let both = training("sway.yaml\n      defaults: {seed: 1}");
    workspace.write("both.yaml", &both.replace("output_dir: out", "output_dir: odd"));
    let output = train("both.yaml");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(2) && text.contains("`train.eval.sway.defaults` has no effect"),
        "{text}"
    );
    assert!(!workspace.file("odd").exists());
}
