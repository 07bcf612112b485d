//! Another system, measured beside ours.
//!
//! A peer is a process that reads the name of a case from its input and answers
//! with the seconds one run takes, or with `-` if it does not have that case.
//! It answers between our own measurements, so that both see the same machine.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A running peer.
pub struct Peer {
    name: &'static str,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts a peer. Memory that it frees is kept for reuse, as ours is.
    pub fn start(name: &'static str, command: &mut Command) -> Self {
        let kept = ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"].map(|name| (name, "4294967296"));
        Self::start_as_it_is(name, command.envs(kept))
    }

    /// Starts a peer that takes new memory from the system, as it does by
    /// itself.
    pub fn start_as_it_is(name: &'static str, command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the peer starts");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("a pipe from the peer"));
        Self { name, child, input, output }
    }

    /// What it is called.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What the peer answers to a line.
    pub fn ask(&mut self, case: &str) -> Option<f64> {
        let input = self.input.as_mut().expect("the peer still listens");
        writeln!(input, "{case}").expect("the peer still listens");
        let mut answer = String::new();
        self.output.read_line(&mut answer).expect("the peer answers");
        match answer.trim() {
            "-" => None,
            answer => {
                Some(answer.parse().unwrap_or_else(|_| {
                    panic!("{} answered `{answer}`; run it by hand to see why", self.name)
                }))
            }
        }
    }

    /// The time of a case, if the peer has it.
    pub fn time(&mut self, case: &str) -> Option<Duration> {
        self.ask(case).map(Duration::from_secs_f64)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The end of its input ends the peer.
        drop(self.input.take());
        let _ = self.child.wait();
    }
}
