//! `weightloom sway watch`, `pack`, `unpack` and `mine`, on a model with random
//! weights.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use assert_cmd::Command;
use serde_json::Value;

const SUITE: &str = r#"
models:
  base: {base: model}
  ft: {base: model, adapter: adapter}
dlm_source: notes.md
suite:
  - {name: noise, kind: null_adapter, runs: 3}
  - {name: change, kind: delta_kl, prompts: ["The capital of", "Once upon a time", "The sky is"]}
  - {name: knowledge, kind: calibration_drift, items_limit: 5}
  - {name: sections, kind: section_internalization}
  - {name: style, kind: style_fingerprint, prompts: [Write., Say.], max_new_tokens: 8, temperature: 0.8, seed: 3}
"#;

const TRAINING: &str = "\
model: {name: llama, weights_path: ./model, lora: {rank: 2, target_modules: [q_proj, v_proj]}}
data: {paths: [texts], max_seq_len: 16}
train:
  max_steps: 24
  global_batch_size: 2
  optimizer: {lr: 0.01}
  logging: {logging_steps: 1}
  checkpoint: {output_dir: run, save_steps: 12}
";

const NOTES: &str = "# One\n\nWater is wet, and fire is hot.\n\n# Two\n\nA horse could count to ten.\n";

/// A folder with a model, an adapter, a document and a suite.
struct Workspace(tempfile::TempDir);

impl Workspace {
    fn new() -> Self {
        let workspace = Self(tempfile::tempdir().unwrap());
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sway/tests/fixtures/tiny");
        for folder in ["model", "adapter"] {
            std::fs::create_dir(workspace.file(folder)).unwrap();
            for entry in std::fs::read_dir(fixtures.join(folder)).unwrap() {
                let entry = entry.unwrap();
                std::fs::copy(entry.path(), workspace.file(folder).join(entry.file_name())).unwrap();
            }
        }
        workspace.write("sway.yaml", SUITE);
        workspace.write("notes.md", NOTES);
        workspace
    }

    /// One with a finished LoRA run in `run`.
    fn trained() -> Self {
        let workspace = Self::new();
        workspace.write("run.yaml", TRAINING);
        std::fs::create_dir(workspace.file("texts")).unwrap();
        workspace.write("texts/a.txt", &"The horse counts to ten and eats its bread. ".repeat(20));
        let trained = workspace.weightloom(&["train", "run.yaml", "--quiet"]);
        assert!(trained.status.success(), "{}", String::from_utf8_lossy(&trained.stderr));
        workspace
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.file(name), text).unwrap();
    }

    fn weightloom(&self, arguments: &[&str]) -> Output {
        let mut command = Command::cargo_bin("weightloom").unwrap();
        command.env("COLUMNS", "100").env("NO_COLOR", "1").env("WEIGHTLOOM_CACHE_DIR", self.file("cache"));
        command.current_dir(self.0.path()).args(arguments).output().unwrap()
    }

    /// The output of a `sway` command with this exit code; errors if there is none.
    fn output(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.weightloom(&[&["sway"], arguments].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{error}");
        if output.stdout.is_empty() { error } else { String::from_utf8(output.stdout).unwrap() }
    }

    fn json(&self, code: i32, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.output(code, arguments)).unwrap()
    }

    /// `sway watch run`, in the background.
    fn watch(&self, more: &[&str]) -> Child {
        let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("weightloom"));
        command.env("WEIGHTLOOM_CACHE_DIR", self.file("cache")).current_dir(self.0.path());
        command.args(["sway", "watch", "run", "--json"]).args(more);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

/// The lines of JSON that a command printed.
fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn steps(lines: &[Value]) -> Vec<u64> {
    lines.iter().map(|line| line["step"].as_u64().unwrap()).collect()
}

#[test]
fn helps_of_tools() {
    let workspace = Workspace::new();
    let mut text = String::new();
    for command in ["watch", "pack", "unpack", "mine"] {
        writeln!(text, "$ weightloom sway {command} --help\n{}", workspace.output(0, &[command, "--help"]))
            .unwrap();
    }
    insta::assert_snapshot!(text);
}

#[test]
fn a_finished_run_is_judged_checkpoint_by_checkpoint() {
    let workspace = Workspace::trained();
    // One that is being saved, and one that cannot be read.
    std::fs::create_dir(workspace.file("run/checkpoints/step_7")).unwrap();
    let found = lines(&workspace.output(0, &["watch", "run", "--json"]));
    assert_eq!(steps(&found), [12, 24]);
    for line in &found {
        for key in ["headline", "changed", "learned", "lost"] {
            assert!(!line[key].as_str().unwrap().is_empty(), "{line}");
        }
        let report: Value = serde_json::from_str(
            &std::fs::read_to_string(workspace.file(line["report"].as_str().unwrap())).unwrap(),
        )
        .unwrap();
        assert_eq!(report["probes"].as_array().unwrap().len(), 5);
        assert!(report["adapter_id"].as_str().unwrap().ends_with(&format!("step_{}", line["step"])));
        // The run's own files are notes of the report.
        let notes = report["notes"].to_string();
        assert!(notes.contains("training run: the loss went from"), "{notes}");
        assert!(notes.contains("only"), "{notes}");
        assert!(workspace.file(line["page"].as_str().unwrap()).is_file());
    }
    let text = workspace.output(0, &["watch", "run/checkpoints"]);
    assert_eq!(text.lines().filter(|line| line.starts_with("step ")).count(), 2, "{text}");
    assert!(text.contains("learned: ") && text.contains("lost: "), "{text}");
    // A checkpoint that cannot be judged has a line too.
    std::fs::write(workspace.file("run/checkpoints/step_7/weightloom.json"), "{}").unwrap();
    let found = lines(&workspace.output(1, &["watch", "run", "--json"]));
    assert_eq!(steps(&found), [7, 12, 24]);
    assert!(found[0]["error"].as_str().unwrap().contains("step_7"), "{}", found[0]);
}

#[test]
fn mistakes_end_a_watch_before_it_starts() {
    let workspace = Workspace::new();
    let error = workspace.output(2, &["watch", "nowhere"]);
    assert!(error.starts_with("error: cannot watch `nowhere`: no such folder\nhint: name the"), "{error}");
    let error = workspace.output(2, &["watch", "model"]);
    assert!(error.contains("it has neither `checkpoints` nor `config.yaml`"), "{error}");
    std::fs::create_dir_all(workspace.file("run/checkpoints")).unwrap();
    let error = workspace.output(2, &["watch", "run", "--suite", "other.yaml"]);
    assert!(error.contains("other.yaml"), "{error}");
    let error = workspace.output(2, &["watch", "run", "--interval=-1"]);
    assert!(error.contains("--interval -1 is not a duration"), "{error}");
    // A run without checkpoints that is not in progress.
    assert_eq!(workspace.output(0, &["watch", "run", "--json"]), "");
}

#[cfg(unix)]
#[test]
fn a_run_in_progress_is_watched_until_it_ends_or_a_signal_arrives() {
    let workspace = Workspace::trained();
    let run = workspace.file("run");
    std::fs::rename(run.join("checkpoints/step_24"), workspace.file("later")).unwrap();
    let locked = std::fs::File::options().write(true).open(run.join(".lock")).unwrap();
    locked.lock().unwrap();
    let seen = |name: &str| {
        let since = Instant::now();
        while !run.join("sway").join(name).is_file() {
            assert!(since.elapsed() < Duration::from_secs(120), "{name} was not written");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let watch = workspace.watch(&["--interval", "0.1"]);
    seen("step_12.html");
    std::fs::rename(workspace.file("later"), run.join("checkpoints/step_24")).unwrap();
    seen("step_24.html");
    // The run ends.
    locked.unlock().unwrap();
    let ended = watch.wait_with_output().unwrap();
    assert!(ended.status.success());
    assert_eq!(steps(&lines(&String::from_utf8(ended.stdout).unwrap())), [12, 24]);

    // A signal ends the watch of a run that continues.
    std::fs::remove_dir_all(run.join("sway")).unwrap();
    locked.lock().unwrap();
    let watch = workspace.watch(&["--interval", "100"]);
    seen("step_24.html");
    let asked = std::process::Command::new("kill").args(["-INT", &watch.id().to_string()]).status();
    assert!(asked.unwrap().success());
    let ended = watch.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{}", String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn a_packed_suite_reproduces_its_report_without_the_models() {
    let workspace = Workspace::new();
    let packed = workspace.json(0, &["pack", "sway.yaml", "--json"]);
    assert_eq!((&packed["written"], &packed["probes"]), (&"sway.swaypack".into(), &5.into()));
    assert!(packed["answers"].as_u64().unwrap() > 50);
    let fingerprint = workspace.weightloom(&["fingerprint", "model", "--json"]);
    let fingerprint: Value = serde_json::from_slice(&fingerprint.stdout).unwrap();
    assert_eq!(packed["fingerprints"]["base"], fingerprint["fingerprint"]);
    assert!(packed["fingerprints"]["ft"].is_string());
    let report = workspace.json(0, &["run", "sway.yaml", "--json"]);
    assert!(workspace.output(2, &["pack", "sway.yaml"]).contains("it exists"));
    workspace.output(0, &["pack", "sway.yaml", "--overwrite", "--out", "sway.swaypack"]);
    // It is a tar file that other programs can list.
    if let Ok(listed) =
        std::process::Command::new("tar").arg("tf").arg(workspace.file("sway.swaypack")).output()
    {
        assert!(String::from_utf8_lossy(&listed.stdout).contains("answers.bin"), "{listed:?}");
    }

    for name in ["model", "adapter", "cache"] {
        std::fs::remove_dir_all(workspace.file(name)).unwrap();
    }
    std::fs::remove_file(workspace.file("notes.md")).unwrap();
    let again = workspace.json(0, &["unpack", "sway.swaypack", "--out", "out", "--json"]);
    assert_eq!((&again["reproduced"], &again["fingerprints"]), (&true.into(), &packed["fingerprints"]));
    let untimed = |report: &Value| -> Vec<Value> {
        let mut records = report["probes"].as_array().unwrap().clone();
        records.iter_mut().for_each(|record| drop(record.as_object_mut().unwrap().remove("duration_s")));
        records
    };
    assert_eq!(untimed(&again["report"]), untimed(&report));
    assert_eq!(std::fs::read_to_string(workspace.file("out/notes.md")).unwrap(), NOTES);
    assert_eq!(std::fs::read_to_string(workspace.file("out/sway.yaml")).unwrap(), SUITE);
    for name in ["packs.json", "report.json", "report.html"] {
        assert!(workspace.file("out").join(name).is_file(), "{name}");
    }
    assert!(workspace.output(2, &["unpack", "sway.swaypack", "--out", "out"]).contains("it exists"));
    let text = workspace.output(0, &["unpack", "sway.swaypack"]);
    assert!(text.contains("every result is as packed") && text.contains("fingerprint of ft"), "{text}");
}

#[test]
fn damaged_archives_are_checks_that_fail() {
    let workspace = Workspace::new();
    workspace.output(0, &["pack", "sway.yaml", "--out", "x.swaypack"]);
    let bytes = std::fs::read(workspace.file("x.swaypack")).unwrap();
    std::fs::write(workspace.file("x.swaypack"), &bytes[..bytes.len() - 700]).unwrap();
    let error = workspace.output(1, &["unpack", "x.swaypack", "--out", "out"]);
    assert!(error.starts_with("error: x.swaypack: cannot read the archive: it ends at byte"), "{error}");
    let mut changed = bytes.clone();
    let at = changed.windows(5).position(|five| five == b"Write").unwrap();
    changed[at] = b'X';
    std::fs::write(workspace.file("x.swaypack"), &changed).unwrap();
    let error = workspace.output(1, &["unpack", "x.swaypack", "--out", "out"]);
    assert!(error.contains("`sway.yaml` differs from its SHA-256"), "{error}");
    workspace.write("x.swaypack", "not an archive");
    assert!(workspace.output(1, &["unpack", "x.swaypack"]).contains("it is not a tar file"));
    assert!(workspace.output(2, &["unpack", "nowhere.swaypack"]).contains("nowhere.swaypack"));
    assert!(!workspace.file("out").exists());
}

#[test]
fn mining_selects_on_one_half_and_writes_a_suite_of_the_other() {
    let workspace = Workspace::new();
    let subjects = ["horses", "ships", "bread", "rivers"];
    let mut data = String::from("{\"answer\": \"no prompt\"}\n");
    for number in 0..80 {
        let subject = subjects[number % 4];
        writeln!(data, "{{\"prompt\": \"Note {number} about {subject} says\", \"completion\": \"x\"}}")
            .unwrap();
    }
    workspace.write("data.jsonl", &data);
    let arguments = ["mine", "data.jsonl", "--adapter", "adapter", "--base", "model", "--top", "4"];
    let mined = workspace.json(0, &[&arguments[..], &["--json"]].concat());
    assert_eq!((&mined["prompts"], &mined["without_prompt"]), (&80.into(), &serde_json::json!([1])));
    assert_eq!(mined["selected"].as_array().unwrap().len(), 4);
    assert!(mined["selected"][0]["divergence"].as_f64() >= mined["selected"][3]["divergence"].as_f64());
    let suite = std::fs::read_to_string(workspace.file("mined.yaml")).unwrap();
    for one in mined["selected"].as_array().unwrap() {
        assert!(!suite.contains(&format!("\"{}\"", one["prompt"].as_str().unwrap())), "{suite}");
    }
    let report = workspace.json(0, &["run", "mined.yaml", "--json"]);
    assert_eq!(report["probes"].as_array().unwrap().len(), 3);
    let predicted = mined["predicted_mean"].as_f64().unwrap();
    let measured = report["probes"][1]["raw"].as_f64().unwrap();
    assert!((predicted - measured).abs() < 1e-9, "{predicted} {measured}");

    assert!(workspace.output(2, &arguments).contains("it exists"));
    let again = [&arguments[..], &["--overwrite", "--limit", "70"]].concat();
    let text = workspace.output(0, &again);
    assert!(text.contains("confirmed on the other half") && text.contains("10 prompts left out"), "{text}");
    assert!(text.contains("1 record without a prompt, from line 1"), "{text}");
    workspace.write("few.txt", "One\nTwo\n");
    let few = ["mine", "few.txt", "--adapter", "adapter", "--base", "model", "--out", "few.yaml"];
    assert!(workspace.output(2, &few).contains("and 16 are needed"));
    workspace.write("data.csv", "a,b\n");
    let csv = ["mine", "data.csv", "--adapter", "adapter", "--base", "model", "--out", "few.yaml"];
    assert!(workspace.output(2, &csv).contains("unsupported file type `.csv`"));
    let unnamed = ["mine", "few.txt", "--adapter", "adapter", "--out", "few.yaml"];
    assert!(workspace.output(2, &unnamed).contains("does not name its base model"));
}

#[test]
fn an_embedding_model_that_is_not_there_is_an_error() {
    let workspace = Workspace::new();
    let suite = SUITE.replace(
        "  - {name: style",
        "  - {name: topics, kind: cluster_kl, prompts: [a], embedding_model: sentence-transformers/all-MiniLM-L6-v2}\n  - {name: style",
    );
    workspace.write("sway.yaml", &suite);
    for arguments in [&["run", "sway.yaml"][..], &["run", "sway.yaml", "--dry-run"]] {
        let error = workspace.output(2, arguments);
        assert!(error.contains("`suite.4.embedding_model`: no such folder"), "{error}");
        assert!(error.contains("hint: download the sentence-embedding model"), "{error}");
    }
}

#[test]
fn ranks_give_the_report_of_one() {
    let workspace = Workspace::new();
    let untimed = |report: &Value| -> Vec<Value> {
        let mut records = report["probes"].as_array().unwrap().clone();
        records.iter_mut().for_each(|record| drop(record.as_object_mut().unwrap().remove("duration_s")));
        records
    };
    let one = workspace.json(0, &["run", "sway.yaml", "--json", "--no-cache"]);
    for ranks in ["2", "3"] {
        let more = workspace.json(0, &["run", "sway.yaml", "--json", "--no-cache", "--ranks", ranks]);
        assert_eq!(untimed(&more), untimed(&one), "{ranks} ranks");
    }
    // New answers are cached by the first rank.
    workspace.json(0, &["run", "sway.yaml", "--json", "--ranks", "2"]);
    let again = workspace.json(0, &["run", "sway.yaml", "--json"]);
    assert_eq!(again["backend_stats"]["cache_misses"], 0);
    assert_eq!(untimed(&again), untimed(&one));
    workspace.output(0, &["gate", "sway.yaml", "--threshold", "0", "--ranks", "2", "--only", "change"]);
    assert!(workspace.output(2, &["run", "sway.yaml", "--ranks", "0"]).contains("cannot run on 0 ranks"));
    std::fs::remove_file(workspace.file("model/model.safetensors")).unwrap();
    assert!(workspace.output(2, &["run", "sway.yaml", "--no-cache", "--ranks", "2"]).contains("model"));
}
