//! The JSONL metric sink.
//!
//! Each line is written at once when its step is done, and never changed. A
//! killed process can leave at most one partial line at the end. Opening the
//! file drops that line and the lines of steps that will be repeated; the rest
//! is written to a new file that replaces the old one atomically.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weightloom_errors::FileError;
use weightloom_files::{AtomicFile, Durability};

use super::error::MetricsError;
use super::sinks::append;
use super::{Event, Record, Sink};

/// A file with one JSON object per record.
#[derive(Debug)]
pub struct Jsonl {
    file: File,
    path: PathBuf,
}

/// The part of a line that decides whether it is kept.
#[derive(Deserialize)]
struct Line {
    step: u64,
}

impl Jsonl {
    /// Opens or creates a file, and its folder, for a run that continues after
    /// step `after`. Drops the lines of later steps.
    pub fn open(path: &Path, after: u64) -> Result<Self, MetricsError> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(FileError::while_trying_to("create", folder))?;
        }
        truncate(path, after)?;
        let file = OpenOptions::new().append(true).create(true).open(path);
        Ok(Self { file: file.map_err(FileError::while_trying_to("open", path))?, path: path.to_owned() })
    }
}

impl Jsonl {
    fn write(&mut self, value: &impl Serialize) -> Result<(), MetricsError> {
        let failed = FileError::while_trying_to("write", &self.path);
        let mut line = serde_json::to_vec(value).map_err(|error| failed(error.into()))?;
        line.push(b'\n');
        Ok(append(&mut self.file, &line).map_err(failed)?)
    }
}

impl Sink for Jsonl {
    fn record(&mut self, record: &Record) -> Result<(), MetricsError> {
        self.write(record)
    }

    fn event(&mut self, event: &Event) -> Result<(), MetricsError> {
        self.write(event)
    }
}

/// Drops the lines of steps after `after`, and a partial last line. Does not
/// touch a file without any.
fn truncate(path: &Path, after: u64) -> Result<(), MetricsError> {
    let old = match File::open(path) {
        Ok(file) => BufReader::new(file),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(FileError::new("open", path, &error).into()),
    };
    let mut lines = Lines { from: old, path, number: 0, line: Vec::new() };
    let mut kept: u64 = 0;
    // Lines before the first dropped one are copied as bytes.
    let first_dropped = loop {
        match lines.next(after)? {
            None => return Ok(()),
            Some(Verdict::Keep) if lines.line.ends_with(b"\n") => kept += lines.line.len() as u64,
            Some(verdict) => break verdict,
        }
    };
    let failed = || FileError::while_trying_to("write", path);
    let mut new = BufWriter::new(AtomicFile::create(path)?);
    let whole = File::open(path).map_err(FileError::while_trying_to("open", path))?;
    std::io::copy(&mut std::io::Read::take(whole, kept), &mut new).map_err(failed())?;
    let mut verdict = Some(first_dropped);
    while let Some(current) = verdict {
        if current == Verdict::Keep {
            // A complete last line may lack only its newline.
            let ended = lines.line.strip_suffix(b"\n").unwrap_or(&lines.line);
            new.write_all(ended).and_then(|()| new.write_all(b"\n")).map_err(failed())?;
        }
        verdict = lines.next(after)?;
    }
    let new = new.into_inner().map_err(|error| failed()(error.into_error()))?;
    Ok(new.commit(Durability::File)?)
}

/// Whether a line is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Keep,
    Drop,
}

struct Lines<'a> {
    from: BufReader<File>,
    path: &'a Path,
    number: u64,
    line: Vec<u8>,
}

impl Lines<'_> {
    fn next(&mut self, after: u64) -> Result<Option<Verdict>, MetricsError> {
        self.line.clear();
        self.number += 1;
        let read = self
            .from
            .read_until(b'\n', &mut self.line)
            .map_err(FileError::while_trying_to("read", self.path))?;
        if read == 0 {
            return Ok(None);
        }
        match serde_json::from_slice::<Line>(&self.line) {
            Ok(Line { step }) => Ok(Some(if step <= after { Verdict::Keep } else { Verdict::Drop })),
            // Only the last line can lack its newline.
            Err(_) if !self.line.ends_with(b"\n") => Ok(Some(Verdict::Drop)),
            Err(_) => Err(MetricsError::NotMetrics { path: self.path.to_owned(), line: self.number }),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use proptest::prelude::*;
    use weightloom_errors::Hint as _;

    use super::*;

    fn record(step: u64) -> Record {
        Record { loss: Some(1.0 / step as f64), ..Record::new(step) }
    }

    fn write(path: &Path, after: u64, steps: impl IntoIterator<Item = u64>) {
        let mut file = Jsonl::open(path, after).unwrap();
        steps.into_iter().for_each(|step| file.record(&record(step)).unwrap());
    }

    fn steps(path: &Path) -> Vec<u64> {
        let text = fs::read_to_string(path).unwrap();
        assert!(text.is_empty() || text.ends_with('\n'));
        text.lines().map(|line| serde_json::from_str::<Record>(line).unwrap().step).collect()
    }

    #[test]
    fn each_record_is_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/metrics.jsonl");
        write(&path, 0, [1, 2]);
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            "{\"step\":1,\"loss\":1.0}\n{\"step\":2,\"loss\":0.5}\n"
        );
    }

    #[test]
    fn an_event_is_a_line_with_its_step_and_its_name() {
        use crate::metrics::{EventKind, TimeEstimate};

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let estimate = TimeEstimate { measured_steps: 3, steps_left: 4, seconds_left: 0.5 };
        let mut file = Jsonl::open(&path, 0).unwrap();
        file.event(&Event { step: 3, what: EventKind::Estimate(estimate) }).unwrap();
        file.record(&record(4)).unwrap();
        drop(file);
        let text = fs::read_to_string(&path).unwrap();
        let line =
            "{\"step\":3,\"event\":\"estimate\",\"measured_steps\":3,\"steps_left\":4,\"seconds_left\":0.5}";
        assert_eq!(text.lines().next(), Some(line));
        // A reader of records ignores it, and a run that repeats step 3 writes it again.
        assert_eq!(steps(&path), [3, 4]);
        write(&path, 2, []);
        assert_eq!(steps(&path), [0; 0]);
    }

    #[test]
    fn repeated_steps_appear_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        write(&path, 0, 1..=10);
        write(&path, 6, 7..=12);
        assert_eq!(steps(&path), (1..=12).collect::<Vec<_>>());
        write(&path, 12, []);
        assert_eq!(steps(&path).len(), 12);
        write(&path, 0, []);
        assert_eq!(steps(&path), [0; 0]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn lines_of_a_step_are_kept_or_dropped_together() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        write(&path, 0, [1, 2, 2, 3, 2]);
        write(&path, 2, [3]);
        assert_eq!(steps(&path), [1, 2, 2, 2, 3]);
    }

    #[test]
    fn a_file_with_other_content_is_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        for text in ["{\"step\":1}\nhello\n{\"step\":2}\n", "{\"step\":5}\n\n", "[]\nx\n"] {
            fs::write(&path, text).unwrap();
            let error = Jsonl::open(&path, 1).unwrap_err();
            assert!(matches!(error, MetricsError::NotMetrics { .. }), "{error}");
            assert!(error.hint().unwrap().starts_with("move "));
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        fs::write(&path, "{\"step\":1}\nhello\n").unwrap();
        let error = Jsonl::open(&path, 1).unwrap_err();
        assert_eq!(error, MetricsError::NotMetrics { path, line: 2 });
    }

    #[test]
    fn what_cannot_be_opened_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let error = Jsonl::open(folder.path(), 0).unwrap_err();
        assert!(matches!(error, MetricsError::File { .. }), "{error}");
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = Jsonl::open(&file.join("metrics.jsonl"), 0).unwrap_err();
        assert_eq!(
            error.to_string().split(": ").next(),
            Some(&*format!("cannot create `{}`", file.display()))
        );
    }

    proptest! {
        // Each case waits for the disk.
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Wherever a process is killed, whole lines stay and the rest goes.
        #[test]
        fn a_file_that_was_cut_anywhere_goes_on(cut in 0..300_usize, after in 0..12_u64, garbage in "[\\x00-\\x09a-z]{0,5}") {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("metrics.jsonl");
            write(&path, 0, 1..=10);
            let mut bytes = fs::read(&path).unwrap();
            bytes.truncate(cut);
            let whole = bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
            // A line that lacks only its end is whole as well.
            let ended = bytes.ends_with(b"}") && garbage.trim().is_empty();
            bytes.extend(garbage.bytes());
            fs::write(&path, &bytes).unwrap();
            write(&path, after, []);
            let last = after.min(whole + u64::from(ended));
            prop_assert_eq!(steps(&path), (1..=last).collect::<Vec<_>>());
        }
    }
}
