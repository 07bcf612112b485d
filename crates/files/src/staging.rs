//! A folder that becomes visible at its path when it is committed.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::Builder;
use weightloom_errors::FileError;

use crate::atomic::{TOKEN, folder_of, hidden_name, sync_folder};
use crate::error::WriteError;
use crate::lock::TargetLock;

/// The file of a staging folder that says who writes it.
const WRITER_FILE: &str = ".writer";

/// A new folder under a temporary name, with the right to write its target.
///
/// The name, `.name.<unique>.partial`, is in the folder of the target. Only one
/// process at a time can have a staging folder for a target; what killed
/// processes left is removed. Dropping it without [`commit`](Self::commit)
/// removes it.
#[derive(Debug)]
pub struct StagingFolder {
    path: PathBuf,
    target: PathBuf,
    /// The unique part of the name, which the writer file repeats.
    token: String,
    // Dropped last: the folder is removed while the lock is held.
    _lock: TargetLock,
}

impl StagingFolder {
    /// Creates the folder, and the folders above it, for a target that does not
    /// exist.
    pub fn create(target: &Path) -> Result<Self, WriteError> {
        let parent = folder_of(target);
        // New parent folders must be durable as well.
        let existing = parent.ancestors().find(|folder| folder.as_os_str().is_empty() || folder.is_dir());
        let existing = existing.map(Path::to_owned).unwrap_or_default();
        fs::create_dir_all(parent).map_err(FileError::while_trying_to("create", parent))?;
        for folder in parent.ancestors() {
            sync_folder(if folder.as_os_str().is_empty() { Path::new(".") } else { folder })?;
            if folder == existing {
                break;
            }
        }
        let lock = TargetLock::try_take(target)?;
        if fs::symlink_metadata(target).is_ok() {
            return Err(WriteError::Exists { path: target.display().to_string() });
        }
        if lock.is_exclusive() {
            remove_abandoned(target, fs::FileType::is_dir);
        }
        let failed = FileError::while_trying_to("create", target);
        let created = Builder::new()
            .prefix(&hidden_name(target, ""))
            .suffix(".partial")
            .rand_bytes(TOKEN)
            .make_in(parent, |path| fs::create_dir(path))
            .and_then(|folder| folder.into_temp_path().keep().map_err(|error| error.error));
        let path = created.map_err(&failed)?;
        let token = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let staging = Self { path, target: target.to_owned(), token, _lock: lock };
        fs::write(staging.path.join(WRITER_FILE), &staging.token).map_err(failed)?;
        Ok(staging)
    }

    /// Path of the folder until it is committed.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the folder its final name, if it holds exactly the files that its
    /// writer names, with their lengths, and belongs to that writer.
    ///
    /// The files must be on disk. The folder's entries are synced here.
    pub fn commit(&self, files: &BTreeMap<String, u64>) -> Result<(), WriteError> {
        self.check(files)?;
        let writer = self.path.join(WRITER_FILE);
        fs::remove_file(&writer).map_err(FileError::while_trying_to("remove", &writer))?;
        sync_folder(&self.path)?;
        // A rename replaces empty folders.
        if fs::symlink_metadata(&self.target).is_ok() {
            return Err(WriteError::Exists { path: self.target.display().to_string() });
        }
        fs::rename(&self.path, &self.target).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty => {
                WriteError::Exists { path: self.target.display().to_string() }
            }
            _ => FileError::new("commit", &self.target, &error).into(),
        })?;
        Ok(sync_folder(folder_of(&self.target))?)
    }

    /// Removes the folder and what it holds.
    pub fn discard(&self) {
        let _ = fs::remove_dir_all(&self.path);
    }

    fn check(&self, files: &BTreeMap<String, u64>) -> Result<(), WriteError> {
        let changed = |what: String| WriteError::Changed { path: self.target.display().to_string(), what };
        let writer = fs::read_to_string(self.path.join(WRITER_FILE)).unwrap_or_default();
        if writer != self.token {
            return Err(changed("the temporary folder belongs to another writer".to_owned()));
        }
        for (name, &expected) in files {
            let found = fs::symlink_metadata(self.path.join(name));
            match found.ok().filter(fs::Metadata::is_file).map(|found| found.len()) {
                None => return Err(changed(format!("`{name}` is missing"))),
                Some(found) if found != expected => {
                    return Err(changed(format!("`{name}` has {found} bytes instead of {expected}")));
                }
                Some(_) => {}
            }
        }
        let listed = fs::read_dir(&self.path).map_err(FileError::while_trying_to("list", &self.path))?;
        for entry in listed {
            let entry = entry.map_err(FileError::while_trying_to("list", &self.path))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // Files in folders have names with a slash.
            let known = name == WRITER_FILE
                || files.contains_key(&name)
                || files.keys().any(|file| file.split('/').next() == Some(&name));
            if !known {
                return Err(changed(format!("another process wrote `{name}`")));
            }
        }
        Ok(())
    }
}

impl Drop for StagingFolder {
    fn drop(&mut self) {
        // A committed folder has another name.
        self.discard();
    }
}

/// Removes what killed writers of a folder left beside it, staging folders and
/// the lock, unless someone is writing it.
pub fn remove_abandoned_staging(target: &Path) {
    if let Ok(lock) = TargetLock::try_take(target)
        && lock.is_exclusive()
    {
        remove_abandoned(target, fs::FileType::is_dir);
    }
}

/// Removes the temporary files that killed writers of a file left. All writers
/// of the file must take its lock, which the caller holds.
pub fn remove_abandoned_files(target: &Path, lock: &TargetLock) {
    if lock.is_exclusive() {
        remove_abandoned(target, fs::FileType::is_file);
    }
}

/// Removes the temporary files or folders of killed writers of a target. The
/// caller holds the target's lock. Failures are harmless: nothing uses them.
fn remove_abandoned(target: &Path, is_wanted: fn(&fs::FileType) -> bool) {
    let prefix = hidden_name(target, "");
    // A staging folder of an earlier version has no unique part.
    let plain = prefix.trim_end_matches('.').to_owned() + ".partial";
    for entry in fs::read_dir(folder_of(target)).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let middle = name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(".partial"));
        // Other targets may have names that begin with this one's.
        let is_ours = middle.is_some_and(|middle| {
            middle.len() == TOKEN && middle.bytes().all(|byte| byte.is_ascii_alphanumeric())
        });
        if (is_ours || name == plain) && entry.file_type().is_ok_and(|kind| is_wanted(&kind)) {
            let path = entry.path();
            let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
        }
    }
}
