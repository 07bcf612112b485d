//! Files in memory, for tests that read thousands of damaged ones.

use std::collections::BTreeMap;

use super::{Storage, StorageError};
use crate::index::StoredFile;

/// Files by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory(pub(crate) BTreeMap<String, Vec<u8>>);

impl Memory {
    /// A place with one file.
    pub(crate) fn one(name: &str, bytes: &[u8]) -> Self {
        Self(BTreeMap::from([(name.to_owned(), bytes.to_vec())]))
    }

    fn file(&self, name: &str) -> Result<&[u8], StorageError> {
        let missing = || StorageError::Missing { file: name.to_owned(), location: self.location() };
        self.0.get(name).map(Vec::as_slice).ok_or_else(missing)
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
        Ok(self.0.iter().map(file).collect())
    }

    fn length(&self, name: &str) -> Result<u64, StorageError> {
        Ok(self.file(name)?.len() as u64)
    }

    fn read_at(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        let end = offset.saturating_add(into.len() as u64);
        let found = self.file(name)?.get(offset as usize..end as usize);
        into.copy_from_slice(found.ok_or_else(|| StorageError::Short { file: name.to_owned(), end })?);
        Ok(())
    }

    fn put(&self, name: &str, _: &[u8]) -> Result<(), StorageError> {
        Err(StorageError::Outside { name: name.to_owned() })
    }

    fn remove(&self, name: &str) -> Result<(), StorageError> {
        Err(StorageError::Outside { name: name.to_owned() })
    }

    fn gap(&self) -> u64 {
        0
    }
}
