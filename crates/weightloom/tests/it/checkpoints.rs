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

fn copy(from: &Path, to: &Path) {
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
    let commands = ["inspect", "verify", "fingerprint", "diff", "convert", "plan"];
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
