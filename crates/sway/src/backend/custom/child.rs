//! A child process with line-based input and output.
//!
//! Threads read and write its pipes, so that a child that does neither cannot
//! block longer than the time limits. The child leads its own process group,
//! which is killed as a whole.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use super::error::CustomError;

/// Longest line accepted, in bytes.
const MAX_LINE: usize = 64 << 20;

/// How often a wait checks that the child is alive.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How long output of an exited child is still read.
const DRAIN_TIME: Duration = Duration::from_millis(500);

/// How long the child may take to exit after its input is closed.
const EXIT_TIME: Duration = Duration::from_secs(2);

/// Lines of standard error kept for error messages.
const STDERR_LINES: usize = 12;

/// A line of standard output.
enum Line {
    Text(Vec<u8>),
    TooLong,
}

type Log = Arc<dyn Fn(&str) + Send + Sync>;
type Task = Box<dyn FnOnce() + Send>;
type LastLines = Arc<Mutex<VecDeque<String>>>;

/// A child process with line-based input and output.
pub(super) struct Child {
    name: String,
    process: std::process::Child,
    requests: Option<Sender<String>>,
    lines: Receiver<Line>,
    stderr: LastLines,
}

impl Child {
    pub(super) fn start(name: &str, mut command: Command, log: &Log) -> Result<Self, CustomError> {
        let failed = |message: String| CustomError::Start { program: name.to_owned(), message };
        let spawned = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn();
        let mut process = spawned.map_err(|error| failed(error.to_string()))?;
        let (requests, queue) = channel::<String>();
        let (sender, lines) = channel();
        let stderr = LastLines::default();
        let pipes = (process.stdin.take(), process.stdout.take(), process.stderr.take());
        // From here on, dropping `child` kills the process.
        let child = Self {
            name: name.to_owned(),
            process,
            requests: Some(requests),
            lines,
            stderr: Arc::clone(&stderr),
        };
        let (Some(input), Some(output), Some(errors)) = pipes else {
            return Err(failed("no pipes".to_owned()));
        };
        let log = Arc::clone(log);
        let threads: [(&str, Task); 3] = [
            ("weightloom-sway-stdin", Box::new(move || write_lines(input, &queue))),
            ("weightloom-sway-stdout", Box::new(move || read_lines(output, &sender))),
            ("weightloom-sway-stderr", Box::new(move || forward_stderr(errors, &log, &stderr))),
        ];
        for (thread, task) in threads {
            let spawned = thread::Builder::new().name(thread.to_owned()).spawn(task);
            spawned.map_err(|error| failed(error.to_string()))?;
        }
        Ok(child)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Queues a line for the child; a failure to write shows as a missing answer.
    pub(super) fn send(&self, line: String) {
        if let Some(requests) = &self.requests {
            let _ = requests.send(line);
        }
    }

    /// Waits for the next line.
    pub(super) fn receive(&mut self, timeout: Duration) -> Result<String, CustomError> {
        let began = Instant::now();
        let mut exited: Option<Instant> = None;
        loop {
            let left = timeout.saturating_sub(began.elapsed());
            match self.lines.recv_timeout(left.min(POLL_INTERVAL)) {
                Ok(Line::Text(bytes)) => return self.text(bytes),
                Ok(Line::TooLong) => {
                    return Err(CustomError::LongLine { program: self.name.clone(), limit: MAX_LINE });
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.exit_error()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            // A grandchild may hold its output open.
            if exited.is_none() && matches!(self.process.try_wait(), Ok(Some(_))) {
                exited = Some(Instant::now());
            }
            if exited.is_some_and(|at| at.elapsed() >= DRAIN_TIME) {
                return Err(self.exit_error());
            }
            if began.elapsed() >= timeout {
                return Err(CustomError::TimedOut { program: self.name.clone(), after: timeout });
            }
        }
    }

    fn text(&self, bytes: Vec<u8>) -> Result<String, CustomError> {
        String::from_utf8(bytes).map_err(|error| CustomError::NotProtocol {
            program: self.name.clone(),
            expected: "text",
            line: String::from_utf8_lossy(error.as_bytes()).chars().take(80).collect(),
        })
    }

    /// Describes how the child exited.
    fn exit_error(&mut self) -> CustomError {
        let until = Instant::now() + DRAIN_TIME;
        let status = loop {
            match self.process.try_wait() {
                Ok(Some(status)) => break status.to_string(),
                Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(5)),
                _ => break "closed its output".to_owned(),
            }
        };
        // Let the thread of its standard error catch up.
        thread::sleep(Duration::from_millis(20));
        let stderr = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        let stderr = stderr.iter().cloned().collect::<Vec<_>>().join(" / ");
        CustomError::Exited { program: self.name.clone(), status, stderr }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // The child exits at the end of its input.
        self.requests = None;
        let until = Instant::now() + EXIT_TIME;
        while Instant::now() < until && matches!(self.process.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(10));
        }
        if let Some(group) = Pid::from_raw(self.process.id().cast_signed()) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn write_lines(mut input: impl Write, lines: &Receiver<String>) {
    for line in lines {
        // `receive` notices a child that stopped reading.
        if input.write_all(line.as_bytes()).and_then(|()| input.write_all(b"\n")).is_err()
            || input.flush().is_err()
        {
            return;
        }
    }
}

fn read_lines(output: impl Read, lines: &Sender<Line>) {
    let mut reader = BufReader::new(output);
    loop {
        let line = match next_line(&mut reader, MAX_LINE) {
            Ok(None) | Err(_) => return,
            Ok(Some(line)) => line,
        };
        let last = matches!(line, Line::TooLong);
        if lines.send(line).is_err() || last {
            return;
        }
    }
}

/// The next line without its terminator; `None` at the end of the stream.
fn next_line(reader: &mut impl BufRead, max: usize) -> io::Result<Option<Line>> {
    let mut line = Vec::new();
    reader.take(max as u64 + 1).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if line.len() > max {
        return Ok(Some(Line::TooLong));
    }
    Ok(Some(Line::Text(line)))
}

fn forward_stderr(errors: impl Read, log: &Log, last_lines: &LastLines) {
    let mut reader = BufReader::new(errors);
    // Splits lines that are too long.
    while let Ok(Some(line)) = stderr_line(&mut reader) {
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        log(&line);
        let mut last_lines = last_lines.lock().unwrap_or_else(PoisonError::into_inner);
        if last_lines.len() == STDERR_LINES {
            last_lines.pop_front();
        }
        last_lines.push_back(line.chars().take(200).collect());
    }
}

fn stderr_line(reader: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    reader.take(1 << 16).read_until(b'\n', &mut line)?;
    Ok((!line.is_empty()).then_some(line))
}
