//! A folder to train in: a tokenizer, texts, a run's file; and what is said of
//! a run, without what differs from machine to machine.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Output;

use assert_cmd::Command;
use serde_json::{Map, Value, json};

/// A tiny model, small texts, two steps.
pub const RUN: &str = "\
model:
  name: llama
  tokenizer_path: ./tokenizer
  config_overrides:
    vocab_size: 259
    hidden_size: 16
    intermediate_size: 24
    num_hidden_layers: 2
    num_attention_heads: 4
    num_key_value_heads: 2
    max_position_embeddings: 64
data:
  paths: [texts]
  max_seq_len: 16
train:
  max_steps: 2
  global_batch_size: 2
  optimizer: {lr: 0.01}
  checkpoint: {output_dir: out}
";

/// A folder to work in.
pub struct Place(tempfile::TempDir);

/// The names by which byte-level tokenizers call bytes: themselves where they
/// can be printed, and otherwise characters from 256 on, in order.
fn byte_names() -> Vec<String> {
    let printed = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut next = 256;
    let mut names = Vec::with_capacity(256);
    for byte in 0..256 {
        let code = if printed(byte) {
            byte
        } else {
            next += 1;
            next - 1
        };
        names.push(char::from_u32(code).unwrap().to_string());
    }
    names
}

/// One token for each byte, and three that are special.
fn tokenizer() -> Value {
    let marks = ["<s>", "</s>", "<pad>"];
    let pieces = marks.into_iter().map(str::to_owned).chain(byte_names());
    let vocabulary: Map<String, Value> = pieces.zip(0..).map(|(piece, id)| (piece, json!(id))).collect();
    let added = |(id, mark): (usize, &str)| {
        json!({"id": id, "content": mark, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": marks.into_iter().enumerate().map(added).collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": bytes,
        "post_processor": null,
        "decoder": bytes,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                  "vocab": vocabulary, "merges": []},
    })
}

const TEMPLATE: &str =
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}</s>{% endfor %}";

impl Place {
    /// A folder with everything that [`RUN`] needs.
    pub fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        place.write("tokenizer/tokenizer.json", tokenizer().to_string());
        let marks = json!({"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>",
                           "chat_template": TEMPLATE});
        place.write("tokenizer/tokenizer_config.json", marks.to_string());
        for number in 0..8 {
            let text = format!("{number} sheep jumped over the fence, and {number} more were counted.\n");
            place.write(&format!("texts/{number}.txt"), text);
        }
        place.write("run.yaml", RUN);
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub fn remove(&self, name: &str) {
        let path = self.path(name);
        match path.is_dir() {
            true => std::fs::remove_dir_all(path).unwrap(),
            false => std::fs::remove_file(path).unwrap(),
        }
    }

    pub fn command(&self) -> Command {
        Command::from_std(self.plain_command())
    }

    /// The same for those who want to end it.
    pub fn plain_command(&self) -> std::process::Command {
        self.prepared(std::process::Command::new(program()))
    }

    /// The same for those who send it signals: tests that nohup started ignore SIGHUP,
    /// and so would a program of theirs.
    pub fn command_that_heeds_signals(&self) -> std::process::Command {
        if !cfg!(target_os = "linux") {
            return self.plain_command();
        }
        let mut command = std::process::Command::new("/usr/bin/env");
        command.arg("--default-signal=HUP").arg(program());
        self.prepared(command)
    }

    fn prepared(&self, mut command: std::process::Command) -> std::process::Command {
        command.env_clear().env("COLUMNS", "100").env("NO_COLOR", "1").env("HOME", self.0.path());
        command.env("WEIGHTLOOM_OFFLINE", "1").current_dir(self.0.path());
        // Ranks of several runs share few cores.
        command.env("WEIGHTLOOM_THREADS", "1");
        command
    }

    /// Exit code, stdout and stderr of a run, without times.
    pub fn run(&self, arguments: &[&str]) -> String {
        let output = self.command().args(arguments).output().unwrap();
        let mut text = format!(
            "$ weightloom {}\nexit code {}\n",
            arguments.join(" "),
            output.status.code().map_or_else(|| "none".to_owned(), |code| code.to_string())
        );
        for (name, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
            if !bytes.is_empty() {
                write!(text, "--- {name}\n{}", String::from_utf8_lossy(bytes)).unwrap();
            }
        }
        text.replace(&self.0.path().display().to_string(), "<here>")
    }

    /// Trains as `run.yaml` says with changes, and returns how the run ended.
    /// Fails if it did not.
    pub fn train(&self, more: &[&str]) -> Value {
        let output = self.command().args(["--json", "train", "run.yaml"]).args(more).output().unwrap();
        ended(&output)
    }

    /// What a command answers as JSON.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let output = self.command().arg("--json").args(arguments).output().unwrap();
        let text = succeeded(&output);
        serde_json::from_str(&text).unwrap()
    }

    pub fn fingerprint(&self, name: &str) -> String {
        self.json(&["fingerprint", name])["fingerprint"].as_str().unwrap().to_owned()
    }

    /// The lines of a run's metrics.
    pub fn metrics(&self, folder: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path(folder).join("metrics.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The records of a run's metrics, without events.
    pub fn records(&self, folder: &str) -> Vec<Value> {
        self.metrics(folder).into_iter().filter(|line| line.get("event").is_none()).collect()
    }

    /// The losses of a run, each step once and in order.
    pub fn losses(&self, folder: &str) -> Vec<f64> {
        let lines = self.metrics(folder);
        let told: Vec<&Value> = lines.iter().filter(|line| line.get("loss").is_some()).collect();
        for (number, line) in told.iter().enumerate() {
            assert_eq!(line["step"], number as u64 + 1, "{lines:#?}");
        }
        told.iter().map(|line| line["loss"].as_f64().unwrap()).collect()
    }
}

fn program() -> PathBuf {
    assert_cmd::cargo::cargo_bin("weightloom")
}

/// How a run of `train --json` ended: its last line.
pub fn ended(output: &Output) -> Value {
    let text = succeeded(output);
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

/// How a run of `train --json` that a signal ended says so: by its last line, and by
/// exit code 75.
pub fn stopped(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(75), "{text}{errors}");
    let end: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(end["end"], "stopped", "{end}");
    end
}

fn succeeded(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// Whether a folder holds nothing that looks like a checkpoint in the making.
pub fn is_tidy(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().all(|entry| {
        let name = entry.unwrap().file_name().into_string().unwrap();
        name.starts_with("step_") && name[5..].parse::<u64>().is_ok() || name.ends_with(".yaml")
    })
}
