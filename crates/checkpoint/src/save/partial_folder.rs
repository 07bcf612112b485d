//! A folder under its temporary name, until the checkpoint is committed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::target::TargetError;
use crate::error::CheckpointError;
use crate::file_layout::PlannedFile;
use crate::storage::StorageError;
use crate::storage::local::{sync_folder, write_all_at};

/// Stands in for the first bytes of a file until the file is complete: a header
/// length that no safetensors reader accepts, so that zeros are never read as
/// tensors.
const UNFINISHED: [u8; 8] = [0xff; 8];

/// A folder that is being written, and its open files by number.
pub(super) struct PartialFolder {
    /// The temporary name.
    partial: PathBuf,
    /// The final name.
    path: PathBuf,
    open: Mutex<BTreeMap<usize, Arc<File>>>,
}

impl PartialFolder {
    /// The folder that becomes `path`. Creates nothing.
    pub(super) fn new(path: &Path) -> Result<Self, TargetError> {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| TargetError::NoName { path: path.display().to_string() })?;
        let partial = path.with_file_name(format!(".{name}.partial"));
        Ok(Self { partial, path: path.to_owned(), open: Mutex::default() })
    }

    /// The temporary name.
    pub(super) fn partial(&self) -> &Path {
        &self.partial
    }

    /// Creates the folder under its temporary name. Rank 0.
    pub(super) fn create(&self) -> Result<(), CheckpointError> {
        let partial = &self.partial;
        let failed =
            |action, error: &io::Error| StorageError::io(action, partial.display().to_string(), error);
        if fs::symlink_metadata(&self.path).is_ok() {
            return Err(TargetError::Exists { path: self.path.display().to_string() }.into());
        }
        // Left by an earlier save that was interrupted.
        match fs::remove_dir_all(partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", &error).into());
            }
            _ => {}
        }
        // New parent folders must be durable as well.
        let existing =
            partial.ancestors().skip(1).find(|folder| folder.as_os_str().is_empty() || folder.is_dir());
        let existing = existing.map(Path::to_owned).unwrap_or_default();
        fs::create_dir_all(partial).map_err(|error| failed("create", &error))?;
        for folder in partial.ancestors().skip(1) {
            sync_folder(or_current(folder)).map_err(|error| failed("sync", &error))?;
            if folder == existing {
                break;
            }
        }
        Ok(())
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

    /// Gives the folder its final name.
    pub(super) fn commit(&self) -> Result<(), CheckpointError> {
        let failed = |path: &Path, action, error: &io::Error| {
            StorageError::io(action, path.display().to_string(), error)
        };
        sync_folder(&self.partial).map_err(|error| failed(&self.partial, "sync", &error))?;
        fs::rename(&self.partial, &self.path).map_err(|error| failed(&self.path, "commit", &error))?;
        if let Some(parent) = self.path.parent() {
            sync_folder(or_current(parent)).map_err(|error| failed(&self.path, "commit", &error))?;
        }
        Ok(())
    }

    /// Removes the folder after a failed save. Rank 0.
    pub(super) fn discard(&self) {
        // The error of the save is the one to report.
        let _ = fs::remove_dir_all(&self.partial);
    }

    fn failed(&self, action: &'static str, name: &str, error: &io::Error) -> CheckpointError {
        StorageError::io(action, self.partial.join(name).display().to_string(), error).into()
    }
}

/// The folder, or `.` for the parent of a bare name.
fn or_current(folder: &Path) -> &Path {
    if folder.as_os_str().is_empty() { Path::new(".") } else { folder }
}
