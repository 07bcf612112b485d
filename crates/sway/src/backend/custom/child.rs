//! A program that is spoken to in lines.
//!
//! Threads carry what is said, so that a program that does not listen, or does
//! not speak, keeps nobody waiting longer than allowed. It is the leader of a
//! group of its own, and whatever it has started ends with it.

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

/// The longest line that is read.
const LONGEST_LINE: usize = 64 << 20;

/// How often a wait looks up to see whether the program is still there.
const LOOK_UP: Duration = Duration::from_millis(50);

/// How long a program that has ended may still be heard.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// How long a program may take to end when nobody asks any more.
const GRACE: Duration = Duration::from_secs(2);

/// How many lines of its error output are remembered.
const REMEMBERED: usize = 12;

/// What came from a program.
enum Line {
    Text(Vec<u8>),
    TooLong,
}

type Log = Arc<dyn Fn(&str) + Send + Sync>;
type Work = Box<dyn FnOnce() + Send>;
type Remembered = Arc<Mutex<VecDeque<String>>>;

/// A program that is spoken to in lines.
pub(super) struct Child {
    name: String,
    process: std::process::Child,
    requests: Option<Sender<String>>,
    lines: Receiver<Line>,
    said: Remembered,
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
        let (requests, to_write) = channel::<String>();
        let (read, lines) = channel();
        let said = Remembered::default();
        let pipes = (process.stdin.take(), process.stdout.take(), process.stderr.take());
        // From here on the program is ended whatever happens.
        let child =
            Self { name: name.to_owned(), process, requests: Some(requests), lines, said: Arc::clone(&said) };
        let (Some(input), Some(output), Some(errors)) = pipes else {
            return Err(failed("it has no pipes".to_owned()));
        };
        let log = Arc::clone(log);
        let threads: [(&str, Work); 3] = [
            ("weightloom-sway-ask", Box::new(move || write_lines(input, &to_write))),
            ("weightloom-sway-hear", Box::new(move || read_lines(output, &read))),
            ("weightloom-sway-log", Box::new(move || pass_on(errors, &log, &said))),
        ];
        for (thread, work) in threads {
            let spawned = thread::Builder::new().name(thread.to_owned()).spawn(work);
            spawned.map_err(|error| failed(error.to_string()))?;
        }
        Ok(child)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Says a line. Whether it is heard is seen by the answer.
    pub(super) fn send(&self, line: String) {
        if let Some(requests) = &self.requests {
            let _ = requests.send(line);
        }
    }

    /// The next line.
    pub(super) fn receive(&mut self, limit: Duration) -> Result<String, CustomError> {
        let began = Instant::now();
        let mut ended: Option<Instant> = None;
        loop {
            let left = limit.saturating_sub(began.elapsed());
            match self.lines.recv_timeout(left.min(LOOK_UP)) {
                Ok(Line::Text(bytes)) => return self.text(bytes),
                Ok(Line::TooLong) => {
                    return Err(CustomError::LongLine { program: self.name.clone(), limit: LONGEST_LINE });
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.gone()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            // Something else may still hold its output open.
            if ended.is_none() && matches!(self.process.try_wait(), Ok(Some(_))) {
                ended = Some(Instant::now());
            }
            if ended.is_some_and(|at| at.elapsed() >= LAST_WORDS) {
                return Err(self.gone());
            }
            if began.elapsed() >= limit {
                return Err(CustomError::Hanging { program: self.name.clone(), after: limit });
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

    /// How it ended.
    fn gone(&mut self) -> CustomError {
        let until = Instant::now() + LAST_WORDS;
        let status = loop {
            match self.process.try_wait() {
                Ok(Some(status)) => break status.to_string(),
                Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(5)),
                _ => break "it closed its output".to_owned(),
            }
        };
        // Its error output may be on its way.
        thread::sleep(Duration::from_millis(20));
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let said = said.iter().cloned().collect::<Vec<_>>().join(" / ");
        CustomError::Gone { program: self.name.clone(), status, said }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Without questions it has no reason to stay.
        self.requests = None;
        let until = Instant::now() + GRACE;
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
        // Who does not listen any more is seen by its silence.
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
        let line = match next_line(&mut reader, LONGEST_LINE) {
            Ok(None) | Err(_) => return,
            Ok(Some(line)) => line,
        };
        let last = matches!(line, Line::TooLong);
        if lines.send(line).is_err() || last {
            return;
        }
    }
}

/// A line without its end; none at the end of all.
fn next_line(reader: &mut impl BufRead, longest: usize) -> io::Result<Option<Line>> {
    let mut line = Vec::new();
    reader.take(longest as u64 + 1).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if line.len() > longest {
        return Ok(Some(Line::TooLong));
    }
    Ok(Some(Line::Text(line)))
}

fn pass_on(errors: impl Read, log: &Log, said: &Remembered) {
    let mut reader = BufReader::new(errors);
    // A line that is too long comes in pieces.
    while let Ok(Some(line)) = piece(&mut reader) {
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        log(&line);
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() == REMEMBERED {
            said.pop_front();
        }
        said.push_back(line.chars().take(200).collect());
    }
}

fn piece(reader: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    reader.take(1 << 16).read_until(b'\n', &mut line)?;
    Ok((!line.is_empty()).then_some(line))
}
