//! The commands about checkpoints, as a user sees them.
//!
//! Whole outputs are kept as snapshots, as in `cli.rs`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use assert_cmd::Command;

/// A folder to work in, with fixtures under short names.
struct Place(tempfile::TempDir);

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../checkpoint/tests/fixtures")
}

/// Copies a file or a whole folder.
pub fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            copy(&entry.path(), &to.join(entry.file_name()));
        }
    } else {
        std::fs::copy(from, to).unwrap();
    }
}

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        for (from, to) in [
            ("gguf/llama.gguf", "llama.gguf"),
            ("gguf/llama.safetensors", "llama.safetensors"),
            ("dcp/grid", "dcp"),
            ("dcp/plain", "dcp-state"),
            ("torch/state.pt", "state.pt"),
            ("peft/mlx", "mlx-adapter"),
        ] {
            copy(&fixtures().join(from), &place.path(to));
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Exit code, stdout and stderr of a run.
    fn run(&self, arguments: &[&str]) -> String {
        let mut command = Command::cargo_bin("weightloom").unwrap();
        command.env("COLUMNS", "100").env("NO_COLOR", "1").current_dir(self.0.path());
        let output = command.args(arguments).output().unwrap();
        let mut text =
            format!("$ weightloom {}\nexit code {}\n", arguments.join(" "), output.status.code().unwrap());
        for (name, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
            if !bytes.is_empty() {
                write!(text, "--- {name}\n{}", String::from_utf8_lossy(bytes)).unwrap();
            }
        }
        text
    }

    /// Several runs, one after the other.
    fn runs(&self, lines: &[&str]) -> String {
        lines.iter().map(|line| self.run(&line.split(' ').collect::<Vec<_>>())).collect()
    }
}

#[test]
fn help() {
    let place = Place::new();
    let commands = ["inspect", "verify", "sign", "fingerprint", "diff", "convert", "plan"];
    let text: String = commands.iter().map(|command| place.run(&[command, "--help"])).collect();
    insta::assert_snapshot!(text);
}

#[test]
fn inspect() {
    let place = Place::new();
    insta::assert_snapshot!(place.runs(&[
        "inspect llama.gguf",
        "inspect dcp",
        "inspect mlx-adapter --stats",
        "inspect mlx-adapter --json",
    ]));
}

#[test]
fn convert_and_compare() {
    let place = Place::new();
    insta::assert_snapshot!(place.runs(&[
        "convert llama.gguf native --to native",
        "convert llama.gguf half --to hf --dtype bf16 --shard-size 4KiB",
        "convert dcp again --to dcp",
        "convert mlx-adapter adapter --to peft",
        "convert llama.gguf norms --to hf --include *norm* --exclude *.0.*",
        "verify native",
        "verify half",
        "diff native llama.gguf",
        "diff dcp again",
        "diff norms llama.safetensors",
        "fingerprint adapter",
        "fingerprint norms --json",
        "plan half --mesh dp=2,tp=2",
        "plan norms --mesh x=3 --rank 2 --shard *=S(0)",
    ]));
}

#[test]
fn mistakes() {
    let place = Place::new();
    place.run(&["convert", "llama.gguf", "there", "--to", "hf"]);
    std::fs::write(place.path("text.txt"), "no checkpoint").unwrap();
    std::fs::write(place.path("cut.safetensors"), b"\xff\0\0\0\0\0\0\0{}").unwrap();
    insta::assert_snapshot!(place.runs(&[
        "inspect nothing",
        "inspect text.txt",
        "inspect cut.safetensors",
        "convert llama.gguf there --to hf",
        "convert llama.gguf new --to peft",
        "convert llama.gguf new --to hf --include nothing*",
        "convert llama.gguf new --to hf --shard-size many",
        "convert llama.gguf new --to hf --dtype b16",
        "plan there --mesh tp=2 --rank 2",
        "plan there --mesh tp=2 --shard model.norm.weight=S(1)",
        "plan there --mesh tp",
        "verify ftp://somewhere/model",
        "verify nothing --json",
    ]));
}

#[test]
fn damage_is_found_and_told() {
    let place = Place::new();
    place.run(&["convert", "state.pt", "native", "--to", "native"]);
    let file = place.path("native/model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 4;
    std::fs::write(&file, &bytes).unwrap();
    let mut text = place.runs(&["verify native", "verify native --json"]);
    bytes.pop();
    std::fs::write(&file, &bytes).unwrap();
    text += &place.run(&["verify", "native"]);
    std::fs::remove_file(&file).unwrap();
    text += &place.run(&["verify", "native"]);
    insta::assert_snapshot!(text);
}

/// A safetensors file with tensors of one number each.
fn safetensors(numbers: &[(&str, f32)]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, number) in numbers {
        let start = data.len();
        data.extend_from_slice(&number.to_le_bytes());
        let entry = serde_json::json!({"dtype": "F32", "shape": [1], "data_offsets": [start, data.len()]});
        header.insert((*name).to_owned(), entry);
    }
    let header = serde_json::Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

/// Names of the tensors in a checkpoint.
fn names(place: &Place, path: &str) -> Vec<String> {
    let output = Command::cargo_bin("weightloom").unwrap();
    let mut command = output;
    let output = command.current_dir(place.0.path()).args(["inspect", path, "--json"]).output().unwrap();
    let inspected: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    inspected["tensors"].as_object().unwrap().keys().cloned().collect()
}

#[test]
fn the_model_in_a_training_state_is_converted_without_its_prefix() {
    let place = Place::new();
    for (state, expected) in [("state.pt", "embedding.weight"), ("dcp-state", "tp.weight")] {
        let target = format!("{state}-model");
        // The name of a folder must not look like a file.
        let target = target.replace('.', "-");
        let text = place.run(&["convert", state, &target, "--to", "hf"]);
        assert!(
            text.contains("exit code 0") && text.contains("converting the model below `model`"),
            "{text}"
        );
        assert!(text.contains("skipped: ") && text.contains("layers.0"), "{text}");
        let names = names(&place, &target);
        assert!(names.contains(&expected.to_owned()), "{names:?}");
        assert!(
            names.iter().all(|name| !name.starts_with("model.") && !name.starts_with("layers")),
            "{names:?}"
        );
    }
    // Formats that hold a whole training state keep all of it.
    place.run(&["convert", "state.pt", "whole", "--to", "native"]);
    assert!(names(&place, "whole").contains(&"model.embedding.weight".to_owned()));
    place.run(&["convert", "state.pt", "part", "--to", "native", "--prefix", "layers"]);
    assert_eq!(names(&place, "part"), ["0", "1.bias"]);
    let text = place.run(&["convert", "state.pt", "none", "--to", "hf", "--prefix", "modle"]);
    assert!(
        text.contains("exit code 2") && text.contains("cannot find tensors with the prefix `modle`"),
        "{text}"
    );
    assert!(text.contains("`model` (12 tensors)"), "{text}");
    assert!(!place.path("none").exists());
}

#[test]
fn a_folder_is_never_called_like_a_file() {
    let place = Place::new();
    for (target, reason) in [
        ("x.gguf", "cannot convert to `x.gguf`: GGUF files cannot be written yet"),
        ("x.safetensors", "cannot convert to `x.safetensors`: a folder is written, not a .safetensors file"),
    ] {
        let text = place.run(&["convert", "llama.safetensors", target, "--to", "hf"]);
        assert!(text.contains("exit code 2") && text.contains(reason), "{text}");
        assert!(text.contains("hint: "), "{text}");
        assert!(!place.path(target).exists());
    }
}

#[test]
fn summaries_are_short_and_tables_fit_100_columns() {
    let place = Place::new();
    let long = format!("{}.q_proj.weight", "model.layers.7.a_very_long_name_of_a_module".repeat(4));
    std::fs::write(place.path("a.safetensors"), safetensors(&[("a", 1.0), ("b", 2.0), (&long, 3.0)]))
        .unwrap();
    std::fs::write(place.path("b.safetensors"), safetensors(&[("a", 1.0), ("c", 2.0), (&long, 5.0)]))
        .unwrap();
    let text = place.run(&["fingerprint", "a.safetensors"]);
    assert!(text.lines().count() == 4 && text.contains("(3 tensors, 12 B)"), "{text}");
    assert_eq!(place.run(&["fingerprint", "a.safetensors", "--all"]).lines().count(), 7);
    let summary = place.run(&["diff", "a.safetensors", "b.safetensors"]);
    insta::assert_snapshot!(summary);
    let all = place.run(&["diff", "a.safetensors", "b.safetensors", "--all"]);
    assert!(all.lines().all(|line| line.chars().count() <= 100), "{all}");
    assert!(
        all.contains("…") && all.contains(".q_proj.weight") && all.contains("only in the first"),
        "{all}"
    );
}
