//! Files in memory, for tests and short-lived checkpoints.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Storage, StorageError, Upload, check_name};
use crate::index::StoredFile;

/// Files in memory. Cloning copies them.
#[derive(Debug, Default)]
pub struct MemoryStorage(Arc<Files>);

type Files = Mutex<BTreeMap<String, Vec<u8>>>;

impl Clone for MemoryStorage {
    fn clone(&self) -> Self {
        Self(Arc::new(Mutex::new(self.files())))
    }
}

impl MemoryStorage {
    /// A storage with one file.
    pub fn one(name: &str, bytes: &[u8]) -> Self {
        Self::default().with(name, bytes)
    }

    /// Adds or replaces a file.
    #[must_use]
    pub fn with(self, name: &str, bytes: &[u8]) -> Self {
        self.change(|files| files.insert(name.to_owned(), bytes.to_vec()));
        self
    }

    /// A copy of another storage's files.
    pub fn copy_of(place: &dyn Storage) -> Result<Self, StorageError> {
        let mut files = BTreeMap::new();
        for file in place.list()? {
            let bytes = place.read_all(&file.name, file.length)?;
            files.insert(file.name, bytes);
        }
        Ok(Self(Arc::new(Mutex::new(files))))
    }

    /// All files.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        self.change(|files| files.clone())
    }

    /// Calls `how` with the files, which it may change.
    pub fn change<T>(&self, how: impl FnOnce(&mut BTreeMap<String, Vec<u8>>) -> T) -> T {
        how(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn missing(&self, name: &str) -> StorageError {
        StorageError::Missing { file: name.to_owned(), location: self.location() }
    }
}

impl Storage for MemoryStorage {
    fn location(&self) -> String {
        "memory".to_owned()
    }

    fn list(&self) -> Result<Vec<StoredFile>, StorageError> {
        let file = |(name, bytes): (&String, &Vec<u8>)| StoredFile {
            name: name.clone(),
            length: bytes.len() as u64,
        };
        Ok(self.change(|files| files.iter().filter(|(name, _)| !name.contains('/')).map(file).collect()))
    }

    fn length(&self, name: &str) -> Result<u64, StorageError> {
        check_name(name)?;
        self.change(|files| files.get(name).map(|bytes| bytes.len() as u64)).ok_or_else(|| self.missing(name))
    }

    fn read_at(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        check_name(name)?;
        let end = offset.saturating_add(into.len() as u64);
        self.change(|files| {
            let file = files.get(name).ok_or_else(|| self.missing(name))?;
            let found = file.get(offset as usize..end as usize);
            into.copy_from_slice(found.ok_or_else(|| StorageError::Short { file: name.to_owned(), end })?);
            Ok(())
        })
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<(), StorageError> {
        check_name(name)?;
        self.change(|files| files.insert(name.to_owned(), bytes.to_vec()));
        Ok(())
    }

    fn create(&self, name: &str) -> Result<Box<dyn Upload>, StorageError> {
        check_name(name)?;
        Ok(Box::new(Growing { files: Arc::clone(&self.0), name: name.to_owned(), bytes: Vec::new() }))
    }

    fn remove(&self, name: &str) -> Result<(), StorageError> {
        check_name(name)?;
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
