//! What a served and a judged model must say.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Child;
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};

use super::fault::Fault;
use crate::train::interruptions::Dice;
use crate::train::place::Place;

/// Judges the fixtures of `sway`.
pub const JUDGE: [&str; 4] = ["sway", "run", "sway.yaml", "--json"];

const SUITE: &str = r#"
models:
  base: {base: judged/model}
  ft: {base: judged/model, adapter: judged/adapter}
suite:
  - {name: noise, kind: null_adapter, runs: 2}
  - {name: change, kind: delta_kl, prompts: ["The capital of", "Once upon a time", "A recipe for"]}
  - {name: strength, kind: adapter_ablation, prompts: ["The capital of", "Once upon a time"]}
"#;

pub fn serve(model: &str) -> [&str; 5] {
    ["--json", "serve", model, "--port", "0"]
}

/// The undisturbed answers.
pub struct Judging {
    completion: String,
    verdict: Vec<Value>,
}

impl Judging {
    /// Asks a server and judges the fixtures without faults.
    pub fn new(place: &Place, model: &str) -> Self {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sway/tests/fixtures/tiny");
        for folder in ["model", "adapter"] {
            for entry in fs::read_dir(fixtures.join(folder)).unwrap() {
                let entry = entry.unwrap();
                let name = entry.file_name().into_string().unwrap();
                place.write(&format!("judged/{folder}/{name}"), fs::read(entry.path()).unwrap());
            }
        }
        place.write("sway.yaml", SUITE);
        let output = place.command().args(JUDGE).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let verdict = records(&String::from_utf8_lossy(&output.stdout));
        let mut dice = Dice(0);
        let server = Fault::None.start(place, &mut dice, &serve(model));
        let mut judging = Self { completion: String::new(), verdict };
        judging.completion = judging.exchange(server, Fault::None, Duration::ZERO).unwrap();
        judging
    }

    pub fn check_verdict(&self, report: &str) {
        assert_eq!(records(report), self.verdict);
    }

    /// Asks a server, which may be killed meanwhile. What it says is right.
    pub fn ask_server(&self, server: Child, fault: Fault, moment: Duration) {
        match self.exchange(server, fault, moment) {
            Some(completion) => assert_eq!(completion, self.completion),
            None => assert_ne!(fault, Fault::None, "the server did not answer"),
        }
    }

    /// The completion of a prompt; `None` if the server did not live to give it.
    fn exchange(&self, mut server: Child, fault: Fault, moment: Duration) -> Option<String> {
        let (sender, ready) = mpsc::channel();
        let stdout = server.stdout.take().unwrap();
        let listener = std::thread::spawn(move || {
            let mut line = String::new();
            let _ = BufReader::new(stdout).read_line(&mut line);
            let _ = sender.send(line);
        });
        let completion = std::thread::scope(|scope| {
            // The server dies at any moment: while it loads, or while it answers.
            scope.spawn(|| {
                if fault == Fault::Kill {
                    std::thread::sleep(moment);
                    server.kill().unwrap();
                }
            });
            ask(&ready.recv_timeout(Duration::from_secs(60)).unwrap())
        });
        // Also one that could not answer: without memory, a thread cannot be started.
        if fault != Fault::Kill {
            crate::train::interruptions::signal(&server, "TERM");
        }
        let status = server.wait().unwrap();
        listener.join().unwrap();
        if fault == Fault::None {
            assert_eq!(status.code(), Some(0));
        }
        completion
    }
}

/// Sends a request to the server that a line announces.
fn ask(line: &str) -> Option<String> {
    let ready: Value = serde_json::from_str(line).ok()?;
    let address = ready["url"].as_str()?.trim_start_matches("http://").trim_end_matches("/v1").to_owned();
    let body = json!({"model": ready["model"], "prompt": "3 sheep", "max_tokens": 8, "temperature": 0});
    let body = body.to_string();
    let mut connection = TcpStream::connect(&address).ok()?;
    connection.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
    let head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
                Connection: close";
    write!(connection, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).ok()?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    if !head.starts_with("HTTP/1.1 200") {
        // Without memory a server can only say so.
        assert!(head.starts_with("HTTP/1.1 5"), "{answer}");
        return None;
    }
    let body: Value = serde_json::from_str(body).ok()?;
    Some(body["choices"][0]["text"].as_str().unwrap().to_owned())
}

/// The probes of a report, without durations.
fn records(report: &str) -> Vec<Value> {
    let report: Value = serde_json::from_str(report).unwrap();
    let mut records = report["probes"].as_array().unwrap().clone();
    for record in &mut records {
        record.as_object_mut().unwrap().remove("duration_s");
    }
    records
}
