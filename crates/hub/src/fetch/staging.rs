//! A file that is on its way: its bytes, and a record of which are there.
//!
//! A record is written only after the bytes that it names are on disk, so what
//! it says is true even after a power failure. Bytes that are on disk but in
//! no record are fetched again, which costs time and nothing else.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::answer::Validator;
use super::disk;
use super::error::{Fault, FetchError};
use super::spans::Spans;

/// A file that is on its way.
#[derive(Debug)]
pub(super) struct Staging {
    path: PathBuf,
    record: PathBuf,
    record_every: Duration,
    state: Mutex<Record>,
    recorded: Mutex<Instant>,
}

/// What is known of a file that is on its way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    version: u32,
    size: Option<u64>,
    #[serde(default)]
    validator: Validator,
    done: Spans,
}

/// What tells whether bytes from an earlier time still belong to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    /// The name of the staging file: it is the hash of the file.
    Name,
    /// What the server says of its version.
    Version,
}

const VERSION: u32 = 1;

impl Staging {
    /// Goes on with what an earlier attempt has left, if it can be used.
    pub(super) fn open(
        path: PathBuf,
        record: PathBuf,
        size: Option<u64>,
        identity: Identity,
        record_every: Duration,
    ) -> Result<Self, FetchError> {
        disk::make_folder_of(&path)?;
        let found = fs::read(&record).ok().and_then(|text| serde_json::from_slice::<Record>(&text).ok());
        let usable = |found: &Record| {
            found.version == VERSION
                && found.done.is_sound()
                && disk::length(&path).is_some_and(|length| length >= found.done.end())
                && found.size.is_none_or(|size| found.done.end() <= size)
                && (size.is_none() || found.size == size)
                && (identity == Identity::Name || found.validator.is_known())
        };
        let state = found.filter(usable);
        let fresh = state.is_none();
        let state = state.unwrap_or(Record { version: VERSION, size, ..Record::default() });
        let staging = Self {
            path,
            record,
            record_every,
            state: Mutex::new(state),
            recorded: Mutex::new(Instant::now()),
        };
        if fresh {
            staging.clear()?;
        }
        Ok(staging)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn size(&self) -> Option<u64> {
        self.state().size
    }

    pub(super) fn validator(&self) -> Validator {
        self.state().validator.clone()
    }

    /// How many bytes are there.
    pub(super) fn total(&self) -> u64 {
        self.state().done.total()
    }

    /// What is missing, in pieces; `None` if the length is not known yet.
    pub(super) fn missing(&self, piece: u64) -> Option<Vec<Range<u64>>> {
        let state = self.state();
        state.size.map(|size| state.done.missing(size, piece))
    }

    /// Compares what an answer says with what is known, and learns from it.
    pub(super) fn agree(&self, size: Option<u64>, validator: &Validator) -> Result<(), Fault> {
        let mut state = self.state();
        if state.validator.contradicts(validator) {
            return Err(Fault::Changed);
        }
        match (state.size, size) {
            (Some(expected), Some(claimed)) if expected != claimed => {
                return Err(Fault::Length { expected, claimed });
            }
            (None, Some(_)) => state.size = size,
            _ => {}
        }
        if !state.validator.is_known() {
            state.validator = validator.clone();
        }
        Ok(())
    }

    /// A hand that writes. Each thread has its own.
    pub(super) fn writer(&self) -> Result<Writer<'_>, FetchError> {
        let file = OpenOptions::new().create(true).write(true).truncate(false).open(&self.path);
        let file = file.map_err(|error| FetchError::io("write", &self.path, &error))?;
        Ok(Writer { staging: self, file })
    }

    /// Forgets all bytes; says how many. The length that was known beforehand
    /// stays known.
    pub(super) fn restart(&self, size: Option<u64>) -> Result<u64, FetchError> {
        let lost = self.total();
        *self.state() = Record { version: VERSION, size, ..Record::default() };
        self.clear()?;
        Ok(lost)
    }

    fn clear(&self) -> Result<(), FetchError> {
        // The record first: it must never name bytes that are not there.
        disk::remove(&self.record)?;
        disk::remove(&self.path)
    }

    /// Writes down what is there.
    pub(super) fn save(&self) -> Result<(), FetchError> {
        let record = self.state().clone();
        if record.done.total() == 0 {
            return Ok(());
        }
        self.sync()?;
        let text = serde_json::to_vec(&record).unwrap_or_default();
        disk::write_atomic(&self.record, &text)
    }

    /// Makes sure that the bytes are on disk.
    pub(super) fn sync(&self) -> Result<(), FetchError> {
        let synced = OpenOptions::new().write(true).open(&self.path).and_then(|file| file.sync_data());
        synced.map_err(|error| FetchError::io("write", &self.path, &error))
    }

    /// Puts the complete file where it belongs.
    pub(super) fn finish(&self, to: &Path) -> Result<(), FetchError> {
        disk::make_folder_of(to)?;
        fs::rename(&self.path, to).map_err(|error| FetchError::io("rename", &self.path, &error))?;
        disk::remove(&self.record)
    }

    fn saved_now_and_then(&self) -> Result<(), FetchError> {
        // If another thread is at it, that will do.
        let Ok(mut recorded) = self.recorded.try_lock() else { return Ok(()) };
        if recorded.elapsed() >= self.record_every {
            self.save()?;
            *recorded = Instant::now();
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, Record> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A hand that writes into a file that is on its way.
pub(super) struct Writer<'a> {
    staging: &'a Staging,
    file: File,
}

impl Writer<'_> {
    /// Writes bytes where they belong, and notes that they are there.
    pub(super) fn put(&mut self, at: u64, bytes: &[u8]) -> Result<(), FetchError> {
        let written = self.file.seek(SeekFrom::Start(at)).and_then(|_| self.file.write_all(bytes));
        written.map_err(|error| FetchError::io("write", &self.staging.path, &error))?;
        self.staging.state().done.add(at..at + bytes.len() as u64);
        self.staging.saved_now_and_then()
    }

    /// All bytes have come, and this is how many they are.
    pub(super) fn ends_at(&mut self, size: u64) -> Result<(), FetchError> {
        self.staging.state().size = Some(size);
        self.file.set_len(size).map_err(|error| FetchError::io("write", &self.staging.path, &error))
    }
}
