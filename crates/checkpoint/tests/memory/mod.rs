//! Files in memory, for tests that look at thousands of checkpoints.

#![allow(dead_code, reason = "each test uses what it needs")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use shardloom_checkpoint::{Storage, StorageError, StoredFile, Upload};

/// Files by name.
#[derive(Debug, Default)]
pub struct Memory(Arc<Files>);

type Files = Mutex<BTreeMap<String, Vec<u8>>>;

impl Clone for Memory {
    fn clone(&self) -> Self {
        Self(Arc::new(Mutex::new(self.files())))
    }
}

impl Memory {
    /// A place with one file.
    pub fn one(name: &str, bytes: &[u8]) -> Self {
        Self::default().with(name, bytes)
    }

    /// The same with one file more, or another one in its place.
    #[must_use]
    pub fn with(self, name: &str, bytes: &[u8]) -> Self {
        self.change(|files| files.insert(name.to_owned(), bytes.to_vec()));
        self
    }

    /// What lies directly in a folder.
    pub fn copy_of(folder: &Path) -> Self {
        let memory = Self::default();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() {
                continue;
            }
            memory.change(|files| files.insert(name.to_owned(), std::fs::read(&path).unwrap()));
        }
        memory
    }

    /// All files.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        self.change(|files| files.clone())
    }

    /// Changes files in place.
    pub fn change<T>(&self, how: impl FnOnce(&mut BTreeMap<String, Vec<u8>>) -> T) -> T {
        how(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn missing(&self, name: &str) -> StorageError {
        StorageError::Missing { file: name.to_owned(), location: self.location() }
    }
}

impl Storage for Memory {
    fn location(&self) -> String {
        "memory".to_owned()
    }

    fn list(&self) -> Result<Vec<StoredFile>, StorageError> {
        let file = |(name, bytes): (&String, &Vec<u8>)| StoredFile {
            name: name.clone(),
            length: bytes.len() as u64,
        };
        Ok(self.change(|files| files.iter().map(file).collect()))
    }

    fn length(&self, name: &str) -> Result<u64, StorageError> {
        self.change(|files| files.get(name).map(|bytes| bytes.len() as u64)).ok_or_else(|| self.missing(name))
    }

    fn read_at(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        let end = offset.saturating_add(into.len() as u64);
        self.change(|files| {
            let file = files.get(name).ok_or_else(|| self.missing(name))?;
            let found = file.get(offset as usize..end as usize);
            into.copy_from_slice(found.ok_or_else(|| StorageError::Short { file: name.to_owned(), end })?);
            Ok(())
        })
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), StorageError> {
        self.change(|files| files.insert(name.to_owned(), bytes.to_vec()));
        Ok(())
    }

    fn create(&self, name: &str) -> Result<Box<dyn Upload>, StorageError> {
        Ok(Box::new(Growing { files: Arc::clone(&self.0), name: name.to_owned(), bytes: Vec::new() }))
    }

    fn remove(&self, name: &str) -> Result<(), StorageError> {
        self.change(|files| files.remove(name));
        Ok(())
    }

    fn gap(&self) -> u64 {
        0
    }
}

/// A file that is not there yet.
struct Growing {
    files: Arc<Files>,
    name: String,
    bytes: Vec<u8>,
}

impl Upload for Growing {
    fn write(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        self.bytes.extend(bytes);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), StorageError> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).insert(self.name, self.bytes);
        Ok(())
    }
}
