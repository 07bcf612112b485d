//! Records as TensorBoard's event files.
//!
//! A file is only ever added to, and each process writes its own. A run that is
//! resumed says in its first event from which step on earlier files no longer
//! count. TensorBoard heeds that for numbers; a text of such a step is shown
//! until it is written again.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::error::MetricsError;
use super::event::{Content, event};
use super::{Record, Sink};

/// A TensorBoard event file.
#[derive(Debug)]
pub struct TensorBoard {
    file: File,
    path: PathBuf,
    clock: fn() -> f64,
}

impl TensorBoard {
    /// Makes an event file in a folder, for a run that goes on after step
    /// `after`. Folders on the way are made.
    pub fn open(folder: &Path, after: u64) -> Result<Self, MetricsError> {
        Self::with_clock(folder, after, seconds)
    }

    /// The same, with events dated by another clock: seconds since 1970.
    pub fn with_clock(folder: &Path, after: u64, clock: fn() -> f64) -> Result<Self, MetricsError> {
        fs::create_dir_all(folder).map_err(MetricsError::of(folder, "made"))?;
        let name = format!("events.out.tfevents.{:010}.{}.{}", clock() as u64, host(), std::process::id());
        let (file, path) = new_file(folder, &name)?;
        let mut made = Self { file, path, clock };
        made.write(&event(clock(), 0, &Content::Version))?;
        if after > 0 {
            made.write(&event(clock(), after.saturating_add(1), &Content::Restart))?;
        }
        Ok(made)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), MetricsError> {
        self.file.write_all(bytes).map_err(MetricsError::of(&self.path, "written"))
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

/// A file that was not there before. Two runs of one process within a second
/// would otherwise have one name.
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
            Err(error) => return Err(MetricsError::of(&path, "made")(error)),
        }
    }
}

fn seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// This machine's name, where the system tells it in a file.
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
    fn files_are_named_as_tensorboard_looks_for_them() {
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
    fn a_folder_that_cannot_be_made_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = TensorBoard::open(&file, 0).unwrap_err();
        assert!(matches!(&error, MetricsError::File { path, done: "made", .. } if *path == file), "{error}");
    }

    #[test]
    fn a_record_without_anything_writes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut sink = TensorBoard::with_clock(folder.path(), 0, || TIME).unwrap();
        let before = fs::metadata(sink.path()).unwrap().len();
        sink.record(&Record::new(1)).unwrap();
        assert_eq!(fs::metadata(sink.path()).unwrap().len(), before);
    }
}
