//! Another system, measured in alternation with ours.
//!
//! A peer is a process that reads the name of a case from each line of its
//! input and prints the seconds of one run, or `-` if it lacks the case. It
//! runs between our own measurements, so that both see the same machine.

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
    /// Starts a peer whose allocator keeps freed memory for reuse, as ours
    /// does.
    pub fn start(name: &'static str, command: &mut Command) -> Self {
        let keep = ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"].map(|name| (name, "4294967296"));
        Self::start_unchanged(name, command.envs(keep))
    }

    /// Starts a peer with the default settings of its allocator.
    pub fn start_unchanged(name: &'static str, command: &mut Command) -> Self {
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

    /// The name in reports.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Sends a line and returns the number the peer prints, if it has the case.
    pub fn ask(&mut self, case: &str) -> Option<f64> {
        let input = self.input.as_mut().expect("the peer is running");
        writeln!(input, "{case}").expect("the peer is running");
        let mut answer = String::new();
        self.output.read_line(&mut answer).expect("the peer answers");
        match answer.trim() {
            "-" => None,
            answer => Some(answer.parse().unwrap_or_else(|_| {
                panic!("{} printed `{answer}` for `{case}`; run it by hand to see why", self.name)
            })),
        }
    }

    /// The time of a case, if the peer has it.
    pub fn time(&mut self, case: &str) -> Option<Duration> {
        self.ask(case).map(Duration::from_secs_f64)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The peer exits at the end of its input.
        drop(self.input.take());
        let _ = self.child.wait();
    }
}
