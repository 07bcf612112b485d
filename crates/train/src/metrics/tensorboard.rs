//! The TensorBoard metric sink.
//!
//! Files are append-only, and each process writes its own. The first event of a
//! resumed run names the step from which earlier files are superseded.
//! TensorBoard applies that to scalars; a superseded text is shown until the
//! step is logged again.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use weightloom_errors::FileError;

use super::error::MetricsError;
use super::event::{Content, event};
use super::sinks::append;
use super::{Record, Sink};

/// A TensorBoard event file.
#[derive(Debug)]
pub struct TensorBoard {
    file: File,
    path: PathBuf,
    clock: fn() -> f64,
}

impl TensorBoard {
    /// Creates an event file, and its folder, for a run that continues after
    /// step `after`.
    pub fn open(folder: &Path, after: u64) -> Result<Self, MetricsError> {
        Self::with_clock(folder, after, seconds)
    }

    /// Like [`open`](Self::open), with a clock for the timestamps: seconds since
    /// 1970.
    pub fn with_clock(folder: &Path, after: u64, clock: fn() -> f64) -> Result<Self, MetricsError> {
        fs::create_dir_all(folder).map_err(FileError::while_trying_to("create", folder))?;
        let name = format!("events.out.tfevents.{:010}.{}.{}", clock() as u64, host(), std::process::id());
        let (file, path) = new_file(folder, &name)?;
        let mut sink = Self { file, path, clock };
        sink.write(&event(clock(), 0, &Content::Version))?;
        if after > 0 {
            sink.write(&event(clock(), after.saturating_add(1), &Content::Restart))?;
        }
        Ok(sink)
    }

    /// The event file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), MetricsError> {
        Ok(append(&mut self.file, bytes).map_err(FileError::while_trying_to("write", &self.path))?)
    }
}

impl Sink for TensorBoard {
    fn record(&mut self, record: &Record) -> Result<(), MetricsError> {
        let now = (self.clock)();
        let scalars: Vec<(&str, f64)> = record.numbers().collect();
        let mut bytes = Vec::new();
        if !scalars.is_empty() {
            bytes.extend(event(now, record.step, &Content::Scalars(&scalars)));
        }
        for (name, text) in &record.texts {
            bytes.extend(event(now, record.step, &Content::Text(name, text)));
        }
        self.write(&bytes)
    }
}

/// Creates a file that does not exist yet: two runs of one process within a
/// second have the same name.
fn new_file(folder: &Path, name: &str) -> Result<(File, PathBuf), MetricsError> {
    let mut path = folder.join(name);
    let mut number = 0;
    loop {
        match OpenOptions::new().append(true).create_new(true).open(&path) {
            Ok(file) => return Ok((file, path)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                number += 1;
                path = folder.join(format!("{name}.{number}"));
            }
            Err(error) => return Err(FileError::new("create", &path, &error).into()),
        }
    }
}

fn seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// The host name on Linux.
fn host() -> String {
    let named = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let plain = |letter: &char| letter.is_ascii_alphanumeric() || *letter == '-';
    let name: String = named.trim().chars().filter(plain).collect();
    if name.is_empty() { "localhost".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    const TIME: f64 = 1_700_000_000.25;

    fn file_name(sink: &TensorBoard) -> String {
        sink.path().file_name().unwrap().to_str().unwrap().to_owned()
    }

    #[test]
    fn file_names_match_what_tensorboard_looks_for() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("run/tensorboard");
        let first = TensorBoard::with_clock(&place, 0, || TIME).unwrap();
        let name = file_name(&first);
        assert!(name.starts_with("events.out.tfevents.1700000000."), "{name}");
        assert!(name.ends_with(&format!(".{}", std::process::id())), "{name}");
        let second = TensorBoard::with_clock(&place, 0, || TIME).unwrap();
        assert_eq!(file_name(&second), format!("{name}.1"));
    }

    #[test]
    fn a_folder_that_cannot_be_created_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = TensorBoard::open(&file, 0).unwrap_err();
        assert!(
            matches!(&error, MetricsError::File(FileError { action: "create", path, .. }) if Path::new(path) == file),
            "{error}"
        );
    }

    #[test]
    fn an_empty_record_writes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut sink = TensorBoard::with_clock(folder.path(), 0, || TIME).unwrap();
        let before = fs::metadata(sink.path()).unwrap().len();
        sink.record(&Record::new(1)).unwrap();
        assert_eq!(fs::metadata(sink.path()).unwrap().len(), before);
    }
}
