//! An incomplete download: its bytes, and a record of the ranges on disk.
//!
//! The record is written after the bytes it names are synced, so it is true
//! even after a power failure. Bytes that it does not name are downloaded
//! again.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use weightloom_errors::FileError;

use super::byte_ranges::{ByteRanges, MissingRanges};
use super::disk;
use super::error::{FetchError, TransferError};
use super::response::Validator;

/// An incomplete download.
#[derive(Debug)]
pub(super) struct StagingFile {
    path: PathBuf,
    record: PathBuf,
    record_every: Duration,
    state: Mutex<Record>,
    recorded: Mutex<Instant>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    version: u32,
    size: Option<u64>,
    #[serde(default)]
    validator: Validator,
    done: ByteRanges,
}

/// Decides whether bytes of an earlier run still belong to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    /// The staging file is named after the file's hash.
    Hash,
    /// The server's version must be the same.
    Version,
}

const VERSION: u32 = 1;

impl StagingFile {
    /// Resumes an earlier download if its record is usable.
    pub(super) fn open(
        path: PathBuf,
        record: PathBuf,
        size: Option<u64>,
        identity: Identity,
        record_every: Duration,
    ) -> Result<Self, FetchError> {
        disk::create_folder_of(&path)?;
        let found = fs::read(&record).ok().and_then(|text| serde_json::from_slice::<Record>(&text).ok());
        let usable = |found: &Record| {
            found.version == VERSION
                && found.done.is_valid()
                && disk::length(&path).is_some_and(|length| length >= found.done.end())
                && found.size.is_none_or(|size| found.done.end() <= size)
                && (size.is_none() || found.size == size)
                && (identity == Identity::Hash || found.validator.is_known())
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

    /// Number of bytes on disk.
    pub(super) fn total(&self) -> u64 {
        self.state().done.total()
    }

    /// The missing ranges; `None` if the length is unknown.
    pub(super) fn missing(&self, limit: u64) -> Option<MissingRanges> {
        let state = self.state();
        state.size.map(|size| state.done.missing(size, limit))
    }

    /// Compares a response with the known length and version, and records what
    /// is new.
    pub(super) fn agree(&self, size: Option<u64>, validator: &Validator) -> Result<(), TransferError> {
        let mut state = self.state();
        if state.validator.contradicts(validator) {
            return Err(TransferError::Changed);
        }
        match (state.size, size) {
            (Some(expected), Some(claimed)) if expected != claimed => {
                return Err(TransferError::Length { expected, claimed });
            }
            (None, Some(_)) => state.size = size,
            _ => {}
        }
        if !state.validator.is_known() {
            state.validator = validator.clone();
        }
        Ok(())
    }

    /// A writer for one thread.
    pub(super) fn writer(&self) -> Result<StagingWriter<'_>, FetchError> {
        let file = OpenOptions::new().create(true).write(true).truncate(false).open(&self.path);
        let file = file.map_err(FileError::while_trying_to("write", &self.path))?;
        Ok(StagingWriter { staging: self, file })
    }

    /// Discards all bytes and returns how many.
    pub(super) fn restart(&self, size: Option<u64>) -> Result<u64, FetchError> {
        let lost = self.total();
        *self.state() = Record { version: VERSION, size, ..Record::default() };
        self.clear()?;
        Ok(lost)
    }

    fn clear(&self) -> Result<(), FetchError> {
        // The record first: it must never name bytes that are not on disk.
        disk::remove(&self.record)?;
        disk::remove(&self.path)
    }

    /// Writes the record.
    pub(super) fn save(&self) -> Result<(), FetchError> {
        let record = self.state().clone();
        if record.done.total() == 0 {
            return Ok(());
        }
        self.sync()?;
        let text = serde_json::to_vec(&record).unwrap_or_default();
        disk::write_atomic(&self.record, &text)
    }

    /// Syncs the bytes to disk.
    pub(super) fn sync(&self) -> Result<(), FetchError> {
        let synced = OpenOptions::new().write(true).open(&self.path).and_then(|file| file.sync_data());
        Ok(synced.map_err(FileError::while_trying_to("write", &self.path))?)
    }

    /// Moves the complete file to its final path.
    pub(super) fn finish(&self, to: &Path) -> Result<(), FetchError> {
        disk::create_folder_of(to)?;
        fs::rename(&self.path, to).map_err(FileError::while_trying_to("rename", &self.path))?;
        disk::remove(&self.record)
    }

    fn save_if_due(&self) -> Result<(), FetchError> {
        // Another thread may be saving already.
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

/// Writes into a staging file.
pub(super) struct StagingWriter<'a> {
    staging: &'a StagingFile,
    file: File,
}

impl StagingWriter<'_> {
    /// Writes bytes and records their range.
    pub(super) fn write_at(&mut self, position: u64, bytes: &[u8]) -> Result<(), FetchError> {
        let written = self.file.seek(SeekFrom::Start(position)).and_then(|_| self.file.write_all(bytes));
        written.map_err(FileError::while_trying_to("write", &self.staging.path))?;
        self.staging.state().done.add(position..position + bytes.len() as u64);
        self.staging.save_if_due()
    }

    /// Sets the final length, once all bytes have arrived.
    pub(super) fn set_size(&mut self, size: u64) -> Result<(), FetchError> {
        self.staging.state().size = Some(size);
        let resized = self.file.set_len(size);
        Ok(resized.map_err(FileError::while_trying_to("write", &self.staging.path))?)
    }
}
