//! The commands about models, as a user sees them.
//!
//! Whole outputs are kept as snapshots, as in `cli.rs`; times are left out.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use assert_cmd::Command;
use serde_json::{Value, json};

/// A folder to work in, with a tiny model and an adapter for it.
pub struct Place(tempfile::TempDir);

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures")
}

/// A tokenizer whose words are `t0` to `t96`.
fn tokenizer() -> Value {
    let vocabulary: serde_json::Map<String, Value> =
        (0..97).map(|token| (format!("t{token}"), Value::from(token))).collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": null,
        "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t0"},
    })
}

impl Place {
    pub fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        for case in ["llama", "gpt2"] {
            std::fs::create_dir(place.path(case)).unwrap();
            for name in ["config.json", "model.safetensors"] {
                std::fs::copy(fixtures().join(case).join(name), place.path(case).join(name)).unwrap();
            }
            std::fs::write(place.path(case).join("tokenizer.json"), tokenizer().to_string()).unwrap();
        }
        std::fs::create_dir(place.path("adapter")).unwrap();
        for name in ["adapter_config.json", "adapter_model.safetensors"] {
            std::fs::copy(fixtures().join("adapters/lora").join(name), place.path("adapter").join(name))
                .unwrap();
        }
        std::fs::create_dir(place.path("cards")).unwrap();
        std::fs::write(
            place.path("cards/mine.yaml"),
            "name: mine\nmodel_family: llama\ncheckpoint: ../llama\nlicense: mit\n---\nname: mine_long\nbase: mine\nmodel_config:\n  max_position_embeddings: 128\n---\nname: gpt2\nmodel_family: gpt2\nmodel_arch: gpt2\ncheckpoint: ../gpt2\n---\nname: lost\nbase: nowhere\n---\nname: odd\nmodel_family: llama\nmodel_arhc: llama3_8b\n",
        )
        .unwrap();
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn command(&self) -> Command {
        let mut command = Command::cargo_bin("weightloom").unwrap();
        command.env_clear().env("COLUMNS", "100").env("NO_COLOR", "1").env("HOME", self.0.path());
        command.env("WEIGHTLOOM_OFFLINE", "1").current_dir(self.0.path());
        command
    }

    /// Exit code, stdout and stderr of a run.
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.command().args(arguments).output().unwrap();
        let shown: Vec<String> = arguments
            .iter()
            .map(|word| if word.contains(' ') { format!("'{word}'") } else { (*word).to_owned() })
            .collect();
        let mut text =
            format!("$ weightloom {}\nexit code {}\n", shown.join(" "), output.status.code().unwrap());
        for (name, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
            if !bytes.is_empty() {
                write!(text, "--- {name}\n{}", String::from_utf8_lossy(bytes)).unwrap();
            }
        }
        text.replace(&self.0.path().display().to_string(), "<here>")
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.command().args(arguments).arg("--json").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_str(&text).unwrap()
    }
}

#[test]
fn help() {
    let place = Place::new();
    let commands: [&[&str]; 10] = [
        &["models", "list"],
        &["models", "show"],
        &["models", "archs"],
        &["models", "check"],
        &["fetch"],
        &["generate"],
        &["score"],
        &["tokenize"],
        &["export"],
        &["serve"],
    ];
    let text: String = commands.iter().map(|command| place.run(&[*command, &["--help"]].concat())).collect();
    insta::assert_snapshot!(text);
}

#[test]
fn models() {
    let place = Place::new();
    let lines: [&[&str]; 8] = [
        &["models", "list", "--family", "gpt2"],
        &["models", "list", "--family", "gpt2", "--asset-dir", "cards"],
        &["models", "show", "smollm2_135m_instruct"],
        &["models", "show", "mine_long", "--asset-dir", "cards"],
        &["models", "archs", "--family", "qwen3"],
        &["models", "check"],
        &["models", "check", "--asset-dir", "cards"],
        &["plan", "llama3_1_8b", "--tp", "4", "--pp", "2"],
    ];
    let text: String = lines.iter().map(|line| place.run(line)).collect();
    insta::assert_snapshot!(text);
}

#[test]
fn mistakes() {
    let place = Place::new();
    let lines: [&[&str]; 11] = [
        &["generate", "smollm2_135m_instrukt", "hello"],
        &["generate", "HuggingFaceTB/SmolLM2-135M", "hello"],
        &["generate", "llama", "t1", "--chat"],
        &["generate", "llama", "t1", "--top-p", "2"],
        &["generate", "./gpt2", "t1", "--adapter", "adapter"],
        &["generate", "llama", "t1", "--tp", "0"],
        &["generate", "smollm2_135m", "hello"],
        &["models", "list", "--family", "lama"],
        &["models", "show", "./nothing"],
        &["plan", "llama3_1_8b", "--tp", "3", "--dp", "2", "--sdp", "4"],
        &["export", "llama", "gpt2"],
    ];
    let text: String = lines.iter().map(|line| place.run(line)).collect();
    insta::assert_snapshot!(text);
}

#[test]
fn texts_are_written_scored_and_cut_into_tokens() {
    let place = Place::new();
    let expected: Value =
        serde_json::from_slice(&std::fs::read(fixtures().join("llama/expected.json")).unwrap()).unwrap();
    let words = |tokens: &Value| -> String {
        tokens.as_array().unwrap().iter().map(|token| format!("t{token}")).collect::<Vec<_>>().join(" ")
    };
    let prompt = words(&expected["tokens"][0]);
    let greedy = ["generate", "llama", &prompt, "--max-new-tokens", "32", "--ignore-eos"];
    for more in [vec![], vec!["--tp", "2"], vec!["--mmap"]] {
        let answer = place.json(&[&greedy[..], &more].concat());
        assert_eq!(answer["tokens"], expected["greedy_0"], "{more:?}");
        assert_eq!(answer["text"].as_str().unwrap().trim(), words(&expected["greedy_0"]), "{more:?}");
        assert_eq!(answer["finish"], "length");
    }
    let plain = place.command().args(greedy).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&plain.stdout).trim(), words(&expected["greedy_0"]));
    // By chance, twice the same.
    let drawn = |seed: &str| {
        place.json(&["generate", "llama", &prompt, "--temperature", "1.5", "--seed", seed])["tokens"].clone()
    };
    assert_eq!(drawn("7"), drawn("7"));
    assert_ne!(drawn("7"), drawn("8"));
    let stopped = place.json(&[
        "generate",
        "llama",
        &prompt,
        "--stop",
        &format!("t{}", expected["greedy_0"][2]),
        "--ignore-eos",
    ]);
    assert_eq!(stopped["finish"], "stop");
    assert!(stopped["tokens"].as_array().unwrap().len() <= 4);

    let adapted = place.json(&[&greedy[..], &["--adapter", "adapter"]].concat());
    assert_ne!(adapted["tokens"], expected["greedy_0"]);
    let merged = place.json(&[&greedy[..], &["--adapter", "adapter", "--merge"]].concat());
    assert_eq!(adapted["tokens"], merged["tokens"]);
    let none = place.json(&[&greedy[..], &["--adapter", "adapter", "--adapter-scale", "0"]].concat());
    assert_eq!(none["tokens"], expected["greedy_0"]);

    let tokens = place.json(&["tokenize", "llama", &prompt]);
    assert_eq!(tokens["tokens"], expected["tokens"][0]);
    let scored = place.json(&["score", "llama", &prompt, "--top", "2"]);
    let scored = scored["tokens"].as_array().unwrap();
    assert_eq!(scored.len(), 11);
    assert_eq!(scored[0]["log_probability"], Value::Null);
    let first = &scored[1];
    assert!(first["likeliest"][0][1].as_f64().unwrap() >= first["log_probability"].as_f64().unwrap());
}

#[test]
fn exported_models_are_the_same_models() {
    let place = Place::new();
    // A word alone would mean the card of that name.
    for case in ["llama", "./gpt2"] {
        let out = format!("{case}-out");
        place.json(&["export", case, &out]);
        let difference = place.run(&["diff", case, &out]);
        assert!(difference.contains("exit code 0"), "{difference}");
        let written = |model: &str| {
            place.json(&["generate", model, "t5 t6 t7", "--ignore-eos", "--max-new-tokens", "16"])["tokens"]
                .clone()
        };
        assert_eq!(written(case), written(&out));
    }
    // A folder of the user's is not touched.
    std::fs::create_dir(place.path("merged.merged")).unwrap();
    place.json(&["export", "llama", "merged", "--adapter", "adapter"]);
    let prompt = ["t5 t6 t7", "--ignore-eos", "--max-new-tokens", "16"];
    let merged = place.json(&[&["generate", "merged"], &prompt[..]].concat());
    let beside = place.json(&[&["generate", "llama"], &prompt[..], &["--adapter", "adapter"]].concat());
    assert_eq!(merged["tokens"], beside["tokens"]);
    assert!(place.path("merged.merged").exists());
    // Nothing in between is left.
    let entries = std::fs::read_dir(place.path("merged").parent().unwrap()).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    let hidden: Vec<String> = names.filter(|name| name.starts_with('.') && name.contains("merged")).collect();
    assert_eq!(hidden, [""; 0]);
}

#[test]
fn a_gguf_file_is_not_exported_as_a_folder() {
    let place = Place::new();
    let text = place.run(&["export", "llama", "llama-out.gguf"]);
    assert_eq!(
        text,
        "$ weightloom export llama llama-out.gguf\nexit code 2\n--- stderr\n\
         error: cannot export to `llama-out.gguf`: GGUF files cannot be written yet\n\
         hint: write the folder `llama-out`, and convert it with llama.cpp: `convert_hf_to_gguf.py llama-out`\n"
    );
    assert!(!place.path("llama-out.gguf").exists());
}

#[test]
fn the_rank_of_an_adapter_is_checked() {
    let place = Place::new();
    let file = place.path("adapter/adapter_config.json");
    let config: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let generate = ["generate", "llama", "t5 t6", "--adapter", "adapter", "--max-new-tokens", "8"];
    let tokens = place.json(&generate)["tokens"].clone();
    let mut other = config.clone();
    other["r"] = json!(8);
    std::fs::write(&file, other.to_string()).unwrap();
    let text = place.run(&generate);
    assert!(text.contains("exit code 2"), "{text}");
    assert!(
        text.contains("`r` is 8 in `adapter_config.json`, but the tensors of `model.layers.0."),
        "{text}"
    );
    assert!(text.contains("have rank 4") && text.contains("set `r` to 4"), "{text}");
    // A group of modules is read like their names.
    let mut group = config;
    group["target_modules"] = json!("all-linear");
    std::fs::write(&file, group.to_string()).unwrap();
    assert_eq!(place.json(&generate)["tokens"], tokens);
}

/// Started as a user would, asked once, and ended by a signal.
#[test]
#[cfg(unix)]
fn a_served_model_answers_and_ends_when_told() {
    let place = Place::new();
    let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("weightloom"));
    command.args(["serve", "llama", "--port", "0", "--json"]).current_dir(place.0.path());
    command
        .env("HOME", place.0.path())
        .env_remove("WEIGHTLOOM_API_KEY")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut server = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(ready["model"], "llama");
    let address =
        ready["url"].as_str().unwrap().trim_start_matches("http://").trim_end_matches("/v1").to_owned();
    let body = json!({"model": "llama", "prompt": "t5 t6", "max_tokens": 3, "temperature": 0}).to_string();
    let mut connection = TcpStream::connect(&address).unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(
        connection,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"text_completion\""), "{answer}");
    let told = std::process::Command::new("kill").args(["-TERM", &server.id().to_string()]).status();
    assert!(told.unwrap().success());
    assert_eq!(server.wait().unwrap().code(), Some(0));
    // The log of requests.
    let mut log = String::new();
    server.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    let record: Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
    assert_eq!((&record["method"], &record["path"]), (&json!("POST"), &json!("/v1/completions")), "{log}");
    assert_eq!((&record["status"], &record["completion_tokens"]), (&json!(200), &json!(3)), "{log}");
    assert!(record["seconds"].as_f64().unwrap() > 0.0, "{log}");
}

#[test]
fn a_converted_gguf_file_is_a_folder_that_generates() {
    let place = Place::new();
    std::fs::write(place.path("whole.gguf"), crate::gguf_file::gguf_file()).unwrap();
    let text = place.run(&["convert", "whole.gguf", "whole", "--to", "hf"]);
    assert!(text.contains("with config.json, generation_config.json, tokenizer.json"), "{text}");
    let generated =
        |model: &str| place.json(&["generate", model, "a a", "--max-new-tokens", "4"])["tokens"].clone();
    assert_eq!(generated("whole"), generated("whole.gguf"));
}
