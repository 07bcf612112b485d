//! A folder under its temporary name, until the checkpoint is committed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use weightloom_files::{StagingFolder, check_free_space};
use weightloom_gang::{Gang, GangExt};

use super::target::TargetError;
use crate::collective_result;
use crate::error::CheckpointError;
use crate::file_layout::PlannedFile;
use crate::storage::StorageError;
use crate::storage::local::write_all_at;

/// Stands in for the first bytes of a file until the file is complete: a header
/// length that no safetensors reader accepts, so that zeros are never read as
/// tensors.
const UNFINISHED: [u8; 8] = [0xff; 8];

/// A folder that is being written, and its open files by number.
pub(super) struct PartialFolder {
    /// The temporary name, the same on all ranks.
    partial: PathBuf,
    /// The folder and the right to write it. Rank 0.
    staging: Option<StagingFolder>,
    open: Mutex<BTreeMap<usize, Arc<File>>>,
}

impl PartialFolder {
    /// Creates the folder that becomes `path`, if `needed` bytes fit. Every
    /// rank.
    pub(super) fn create(path: &Path, needed: u64, gang: &dyn Gang) -> Result<Self, CheckpointError> {
        let created = match gang.rank() {
            0 => create_staging(path, needed).map(Some),
            _ => Ok(None),
        };
        let staging = collective_result(gang, created)?;
        // The name is unique, so the others learn it from rank 0.
        let name = staging.as_ref().and_then(|staging| staging.path().file_name());
        let name = gang.broadcast_object(name.map(|name| name.to_string_lossy().into_owned()).as_ref(), 0)?;
        Ok(Self { partial: path.with_file_name(name), staging, open: Mutex::default() })
    }

    /// The temporary name.
    pub(super) fn partial(&self) -> &Path {
        &self.partial
    }

    /// Creates a file of its final length with its header, except the header's
    /// first bytes. It stays open, so that the rank that wrote the header
    /// syncs it.
    pub(super) fn create_file(&self, number: usize, file: &PlannedFile) -> Result<(), CheckpointError> {
        let created = File::create(self.partial.join(&file.name)).and_then(|handle| {
            let (first, rest) = file.header.split_at(file.header.len().min(UNFINISHED.len()));
            handle.set_len(file.length)?;
            write_all_at(&handle, &UNFINISHED[..first.len()], 0)?;
            write_all_at(&handle, rest, first.len() as u64)?;
            Ok(handle)
        });
        let handle = created.map_err(|error| self.failed("create", &file.name, &error))?;
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::new(handle));
        Ok(())
    }

    /// Writes bytes at an offset of a file that [`create_file`](Self::create_file)
    /// made on some rank.
    pub(super) fn write_at(
        &self,
        (number, file): (usize, &PlannedFile),
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), CheckpointError> {
        let handle = self.handle(number, file)?;
        write_all_at(&handle, bytes, offset).map_err(|error| self.failed("write", &file.name, &error))
    }

    fn handle(&self, number: usize, file: &PlannedFile) -> Result<Arc<File>, CheckpointError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = open.get(&number) {
            return Ok(Arc::clone(handle));
        }
        let handle = File::options().write(true).open(self.partial.join(&file.name));
        let handle = Arc::new(handle.map_err(|error| self.failed("open", &file.name, &error))?);
        open.insert(number, Arc::clone(&handle));
        Ok(handle)
    }

    /// Syncs the files that this rank has open.
    pub(super) fn sync(&self, files: &[PlannedFile]) -> Result<(), CheckpointError> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        for (&number, handle) in open.iter() {
            handle.sync_all().map_err(|error| self.failed("sync", &files[number].name, &error))?;
        }
        Ok(())
    }

    /// Writes the first bytes of a file that all ranks have finished, which
    /// makes it readable.
    pub(super) fn complete(&self, file: &PlannedFile) -> Result<(), CheckpointError> {
        let first = &file.header[..file.header.len().min(UNFINISHED.len())];
        if first.is_empty() {
            return Ok(());
        }
        let completed = File::options().write(true).open(self.partial.join(&file.name)).and_then(|handle| {
            write_all_at(&handle, first, 0)?;
            handle.sync_all()
        });
        completed.map_err(|error| self.failed("complete", &file.name, &error))
    }

    /// Gives the folder its final name, if it holds these files and no others.
    /// Rank 0.
    pub(super) fn commit(&self, files: &BTreeMap<String, u64>) -> Result<(), CheckpointError> {
        match &self.staging {
            Some(staging) => Ok(staging.commit(files)?),
            None => Ok(()),
        }
    }

    /// Removes the folder after a failed save. Rank 0.
    pub(super) fn discard(&self) {
        if let Some(staging) = &self.staging {
            staging.discard();
        }
    }

    fn failed(&self, action: &'static str, name: &str, error: &io::Error) -> CheckpointError {
        StorageError::io(action, self.partial.join(name).display().to_string(), error).into()
    }
}

fn create_staging(path: &Path, needed: u64) -> Result<StagingFolder, CheckpointError> {
    if path.file_name().and_then(|name| name.to_str()).is_none() {
        return Err(TargetError::NoName { path: path.display().to_string() }.into());
    }
    if fs::symlink_metadata(path).is_ok() {
        return Err(TargetError::Exists { path: path.display().to_string() }.into());
    }
    check_free_space(path, needed)?;
    Ok(StagingFolder::create(path)?)
}
