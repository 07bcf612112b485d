//! A folder of the local file system.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashMap;
use weightloom_files::{AtomicFile, Durability};

use super::SharedBytes;
use super::direct::DirectFile;
use super::links::leads_out;
use super::mapped::MappedFile;
use super::{ReadMode, Storage, StorageError, Upload, check_name};
use crate::index::StoredFile;

/// A folder of the local file system. Files stay open after the first read.
#[derive(Debug)]
pub struct LocalStorage {
    folder: PathBuf,
    open: Arc<Mutex<OpenFiles>>,
}

/// Files that were read, by name and by the way that they were read.
#[derive(Debug, Default)]
struct OpenFiles {
    cached: FxHashMap<String, Arc<File>>,
    mapped: FxHashMap<String, Arc<MappedFile>>,
    direct: FxHashMap<String, Option<Arc<DirectFile>>>,
}

impl LocalStorage {
    /// The files of a folder, which need not exist yet.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        let folder: PathBuf = folder.into();
        // The parent of a bare name.
        let folder = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder };
        Self { folder, open: Arc::default() }
    }

    fn path(&self, name: &str) -> Result<PathBuf, StorageError> {
        check_name(name)?;
        Ok(self.folder.join(name))
    }

    fn failed(&self, action: &'static str, name: &str, error: &io::Error) -> StorageError {
        if error.kind() == io::ErrorKind::NotFound {
            return StorageError::Missing { file: name.to_owned(), location: self.location() };
        }
        StorageError::io(action, self.folder.join(name).display().to_string(), error)
    }

    /// The file, opened for reading.
    pub(crate) fn file(&self, name: &str) -> Result<Arc<File>, StorageError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.cached.get(name) {
            return Ok(Arc::clone(file));
        }
        let file = File::open(self.path(name)?).map_err(|error| self.failed("open", name, &error))?;
        let file = Arc::new(file);
        open.cached.insert(name.to_owned(), Arc::clone(&file));
        Ok(file)
    }
}

impl LocalStorage {
    fn mapped(&self, name: &str) -> Result<Arc<MappedFile>, StorageError> {
        let file = self.file(name)?;
        let mapped = &mut self.open.lock().unwrap_or_else(PoisonError::into_inner).mapped;
        if let Some(map) = mapped.get(name) {
            return Ok(Arc::clone(map));
        }
        let map = Arc::new(MappedFile::new(&file).map_err(|error| self.failed("map", name, &error))?);
        mapped.insert(name.to_owned(), Arc::clone(&map));
        Ok(map)
    }

    /// The file, to be read past the cache; `None` where that cannot be.
    fn direct(&self, name: &str) -> Result<Option<Arc<DirectFile>>, StorageError> {
        let path = self.path(name)?;
        let direct = &mut self.open.lock().unwrap_or_else(PoisonError::into_inner).direct;
        let file =
            direct.entry(name.to_owned()).or_insert_with(|| DirectFile::open(&path).ok().map(Arc::new));
        Ok(file.clone())
    }

    fn read_failed(&self, name: &str, end: u64, error: &io::Error) -> StorageError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => StorageError::Short { file: name.to_owned(), end },
            _ => self.failed("read", name, error),
        }
    }
}

impl Storage for LocalStorage {
    fn location(&self) -> String {
        format!("`{}`", self.folder.display())
    }

    fn list(&self) -> Result<Vec<StoredFile>, StorageError> {
        let failed = |error: &io::Error| self.failed("list", "", error);
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(|error| failed(&error))? {
            let entry = entry.map_err(|error| failed(&error))?;
            // Follows links: Hugging Face caches are made of them. What
            // vanished since, or leads nowhere, is not listed.
            let Ok(metadata) = fs::metadata(entry.path()) else { continue };
            if let (true, Ok(name)) = (metadata.is_file(), entry.file_name().into_string()) {
                files.push(StoredFile { name, length: metadata.len() });
            }
        }
        files.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(files)
    }

    fn length(&self, name: &str) -> Result<u64, StorageError> {
        let metadata =
            fs::metadata(self.path(name)?).map_err(|error| self.failed("look at", name, &error))?;
        if !metadata.is_file() {
            return Err(StorageError::Missing { file: name.to_owned(), location: self.location() });
        }
        Ok(metadata.len())
    }

    fn read_at(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        let file = self.file(name)?;
        let end = offset.saturating_add(into.len() as u64);
        read_exact_at(&file, into, offset).map_err(|error| self.read_failed(name, end, &error))
    }

    fn map(&self, name: &str) -> Result<Option<SharedBytes>, StorageError> {
        Ok(Some(self.mapped(name)?))
    }

    fn read_with(
        &self,
        mode: ReadMode,
        name: &str,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), StorageError> {
        let end = offset.saturating_add(into.len() as u64);
        let read = match mode {
            ReadMode::Cached => return self.read_at(name, offset, into),
            ReadMode::Mapped => self.mapped(name)?.read(into, offset),
            ReadMode::Direct => match self.direct(name)? {
                Some(file) => file.read(into, offset),
                None => return self.read_at(name, offset, into),
            },
        };
        read.map_err(|error| self.read_failed(name, end, &error))
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), StorageError> {
        let mut upload = self.create(name)?;
        upload.write(bytes)?;
        upload.finish()
    }

    fn create(&self, name: &str) -> Result<Box<dyn Upload>, StorageError> {
        let path = self.path(name)?;
        let file = AtomicFile::create(&path).map_err(|error| match error.kind {
            io::ErrorKind::NotFound => {
                StorageError::Missing { file: name.to_owned(), location: self.location() }
            }
            _ => error.into(),
        })?;
        Ok(Box::new(LocalUpload { file, path, name: name.to_owned(), open: Arc::clone(&self.open) }))
    }

    fn remove(&self, name: &str) -> Result<(), StorageError> {
        let path = self.path(name)?;
        forget(&self.open, name);
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.failed("remove", name, &error)),
            _ => Ok(()),
        }
    }

    fn check_inside(&self, name: &str) -> Result<(), StorageError> {
        check_name(name)?;
        let outside = leads_out(&self.folder, name).map_err(|error| self.failed("look at", name, &error))?;
        match outside {
            None => Ok(()),
            Some(target) => Err(StorageError::Link {
                file: name.to_owned(),
                location: self.location(),
                target: target.display().to_string(),
            }),
        }
    }

    fn gap(&self) -> u64 {
        // About what a call into the kernel costs in copied bytes, kept small
        // so that a rank reads next to nothing that it does not keep.
        256
    }

    fn folder(&self) -> Option<&Path> {
        Some(&self.folder)
    }
}

/// A file under a temporary name, until it is finished.
struct LocalUpload {
    file: AtomicFile,
    path: PathBuf,
    name: String,
    open: Arc<Mutex<OpenFiles>>,
}

impl Upload for LocalUpload {
    fn write(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        let written = self.file.write_all(bytes);
        written.map_err(|error| StorageError::io("write", self.path.display().to_string(), &error))
    }

    fn finish(self: Box<Self>) -> Result<(), StorageError> {
        let committed = self.file.commit(Durability::FileAndFolder);
        // Handles of the replaced file are stale.
        forget(&self.open, &self.name);
        Ok(committed?)
    }
}

fn forget(open: &Mutex<OpenFiles>, name: &str) {
    let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
    open.cached.remove(name);
    open.mapped.remove(name);
    open.direct.remove(name);
}

/// Reads up to `into.len()` bytes at an offset.
pub(super) fn read_at_most(file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
    #[cfg(unix)]
    use std::os::unix::fs::FileExt as _;
    let mut done = 0;
    while done < into.len() {
        #[cfg(unix)]
        let read = file.read_at(&mut into[done..], offset + done as u64);
        #[cfg(windows)]
        let read = std::os::windows::fs::FileExt::seek_read(file, &mut into[done..], offset + done as u64);
        match read {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        // Past the cache, what comes after a short read is not aligned.
        if !done.is_multiple_of(512) {
            break;
        }
    }
    Ok(done)
}

/// Reads at a position without moving a cursor, so that threads may share the
/// file.
pub(crate) fn read_exact_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::FileExt::read_exact_at(file, into, offset);
    #[cfg(windows)]
    {
        let (mut into, mut offset) = (into, offset);
        while !into.is_empty() {
            match std::os::windows::fs::FileExt::seek_read(file, into, offset)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => {
                    into = &mut into[read..];
                    offset += read as u64;
                }
            }
        }
        Ok(())
    }
}

/// Writes at a position without moving a cursor.
pub(crate) fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::FileExt::write_all_at(file, bytes, offset);
    #[cfg(windows)]
    {
        let (mut bytes, mut offset) = (bytes, offset);
        while !bytes.is_empty() {
            let written = std::os::windows::fs::FileExt::seek_write(file, bytes, offset)?;
            bytes = &bytes[written..];
            offset += written as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_appears_when_it_is_finished() {
        let folder = tempfile::tempdir().unwrap();
        let storage = LocalStorage::new(folder.path());
        storage.put("model.bin", b"old").unwrap();
        let mut text = [0; 3];
        storage.read_at("model.bin", 0, &mut text).unwrap();

        let mut upload = storage.create("model.bin").unwrap();
        upload.write(b"ne").unwrap();
        upload.write(b"w").unwrap();
        storage.read_at("model.bin", 0, &mut text).unwrap();
        assert_eq!(&text, b"old");
        upload.finish().unwrap();
        storage.read_at("model.bin", 0, &mut text).unwrap();
        assert_eq!(&text, b"new");

        let mut dropped = storage.create("other.bin").unwrap();
        dropped.write(b"half").unwrap();
        drop(dropped);
        assert_eq!(storage.list().unwrap(), [StoredFile { name: "model.bin".to_owned(), length: 3 }]);
    }
}
