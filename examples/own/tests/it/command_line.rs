//! The program of the example: every command of its README, in order.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::runs::example;

/// A copy of the files that a user has.
fn copied() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("tokenizer")).unwrap();
    for file in
        ["run.yaml", "sway.yaml", "facts.txt", "tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json"]
    {
        std::fs::copy(example().join(file), folder.path().join(file)).unwrap();
    }
    folder
}

fn own(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_own"))
        .args(arguments)
        .current_dir(folder)
        .env("XDG_CACHE_HOME", folder.join("cache"))
        .output()
        .unwrap()
}

/// What a command prints if it succeeds.
fn printed(folder: &Path, arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } = own(folder, arguments);
    let [stdout, stderr] = [stdout, stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(status.success(), "{arguments:?}: {stdout}{stderr}");
    stdout
}

/// The arguments of a command of the README, whose only quotes are single ones.
fn arguments(command: &str) -> Vec<String> {
    let parts = command.split('\'').enumerate();
    let words = parts.flat_map(|(number, part)| match number % 2 {
        0 => part.split_whitespace().map(str::to_owned).collect::<Vec<_>>(),
        _ => vec![part.to_owned()],
    });
    words.collect()
}

#[test]
fn the_commands_of_the_readme_run_in_order() {
    let folder = copied();
    let readme = std::fs::read_to_string(example().join("README.md")).unwrap();
    let commands: Vec<&str> =
        readme.lines().filter_map(|line| line.strip_prefix("$ cargo run --release -- ")).collect();
    let mut outputs = Vec::new();
    for command in &commands {
        let arguments = arguments(command);
        let output = printed(folder.path(), &arguments.iter().map(String::as_str).collect::<Vec<_>>());
        outputs.push((command.split_whitespace().next().unwrap(), output));
    }
    let of = |command: &str| -> String {
        outputs.iter().filter(|(found, _)| *found == command).map(|(_, output)| output.as_str()).collect()
    };
    assert!(of("models").contains("recurrence"), "{}", of("models"));
    assert!(of("train").contains("60"), "{}", of("train"));
    assert!(of("generate").contains("Paris"), "it has learned the fact: {}", of("generate"));
    assert!(of("sway").contains("answers gained"), "{}", of("sway"));
    let report = std::fs::read_to_string(folder.path().join("report.json")).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["probes"][0]["kind"], "fact_recall");
    assert_eq!(report["probes"][0]["verdict"], "pass", "{report}");
}

#[test]
fn help_and_errors_speak_of_the_program_and_its_names() {
    let folder = copied();
    let help = printed(folder.path(), &["--help"]);
    assert!(help.contains("Usage: own") && help.contains("train"), "{help}");
    let probe = printed(folder.path(), &["sway", "probes", "fact_recall"]);
    assert!(probe.contains("Nats that answers must gain on average."), "{probe}");
    let wrong = own(folder.path(), &["train", "run.yaml", "train.optimizer.kind=adagrd"]);
    let error = String::from_utf8(wrong.stderr).unwrap();
    assert!(!wrong.status.success() && error.contains("did you mean `adagrad`?"), "{error}");
    let wrong = own(folder.path(), &["train", "run.yaml", "train.loss.options.z_weight=-1"]);
    let error = String::from_utf8(wrong.stderr).unwrap();
    assert!(!wrong.status.success() && error.contains("must be at least 0"), "{error}");
}
