//! The simplest reader there can be: one element at a time, by the strides of
//! the tile that it is in. And files in memory, so that they can be damaged.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use weightloom_checkpoint::formats::safetensors::dtype_name;
use weightloom_checkpoint::storage::{Storage, StorageError};
use weightloom_checkpoint::{Codec, Index, Source, StoredFile};

/// A fixture's path.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The bytes of a tensor, row by row.
pub fn bytes(source: &Source, name: &str) -> Vec<u8> {
    let entry = &source.index.tensors()[name];
    let width = entry.dtype.size();
    let mut bytes = vec![0; entry.shape.volume() * width];
    for tile in &entry.tiles {
        assert_eq!(tile.codec, Codec::Raw);
        let file = &source.index.file(tile.file).name;
        for number in 0..tile.region.volume() {
            let (mut rest, mut from, mut to, mut step) = (number, tile.offset, 0, 1);
            for dim in (0..entry.shape.ndim()).rev() {
                let index = rest % tile.region.size()[dim];
                rest /= tile.region.size()[dim];
                from += index as u64 * tile.strides[dim];
                to += (tile.region.start()[dim] + index) * step;
                step *= entry.shape[dim];
            }
            source.storage.read_at(file, from, &mut bytes[to * width..(to + 1) * width]).unwrap();
        }
    }
    bytes
}

/// Compares all tensors with those of a safetensors file.
pub fn assert_tensors(source: &Source, expected: &str) {
    let file = std::fs::read(fixture(expected)).unwrap();
    let expected = safetensors::SafeTensors::deserialize(&file).unwrap();
    let mut names = expected.names();
    names.sort_unstable();
    assert_eq!(source.index.tensors().keys().map(String::as_str).collect::<Vec<_>>(), names);
    for (name, view) in expected.iter() {
        let entry = &source.index.tensors()[name];
        assert_eq!(dtype_name(entry.dtype), view.dtype().to_string(), "{name}");
        assert_eq!(&entry.shape[..], view.shape(), "{name}");
        assert_eq!(bytes(source, name), view.data(), "{name}");
    }
}

/// Files by name, and how often they were read.
#[derive(Clone, Debug, Default)]
pub struct Memory(pub BTreeMap<String, Vec<u8>>, pub Arc<AtomicUsize>);

impl Memory {
    /// The files of a fixture: a folder, or one file.
    pub fn of(name: &str) -> Self {
        let path = fixture(name);
        let paths: Vec<PathBuf> = if path.is_dir() {
            std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect()
        } else {
            vec![path]
        };
        let file = |path: &PathBuf| {
            (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(path).unwrap())
        };
        Self(paths.iter().filter(|path| path.is_file()).map(file).collect(), Arc::default())
    }

    /// The index of one file, or of all.
    pub fn open(self, file: Option<&str>) -> Result<Arc<Index>, String> {
        let storage = Arc::new(self);
        let source = match file {
            Some(file) => Source::open_file(storage, file),
            None => Source::open_folder(storage),
        };
        source.map(|source| source.index).map_err(|error| error.to_string())
    }
}

impl Storage for Memory {
    fn location(&self) -> String {
        "memory".to_owned()
    }

    fn list(&self) -> Result<Vec<StoredFile>, StorageError> {
        Ok(self
            .0
            .iter()
            .map(|(name, bytes)| StoredFile { name: name.clone(), length: bytes.len() as u64 })
            .collect())
    }

    fn length(&self, name: &str) -> Result<u64, StorageError> {
        let missing = || StorageError::Missing { file: name.to_owned(), location: self.location() };
        self.0.get(name).map(|bytes| bytes.len() as u64).ok_or_else(missing)
    }

    fn read_at(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), StorageError> {
        let end = offset
            .checked_add(into.len() as u64)
            .filter(|&end| self.length(name).is_ok_and(|length| end <= length));
        let end = end.ok_or_else(|| StorageError::Short { file: name.to_owned(), end: offset })?;
        self.1.fetch_add(1, Ordering::Relaxed);
        into.copy_from_slice(&self.0[name][offset as usize..end as usize]);
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

/// Every file cut off at every byte, and with a bit of every byte turned:
/// whatever is found, nothing panics, and every tile lies in its file.
pub fn damage_everything(files: &Memory, file: Option<&str>) {
    for (name, whole) in &files.0 {
        if file.is_some_and(|file| file != name) {
            continue;
        }
        let check = |changed: Vec<u8>| {
            let mut files = files.clone();
            files.0.insert(name.clone(), changed);
            let Ok(index) = files.open(file) else { return };
            for entry in index.tensors().values() {
                for (file, start, length) in entry.tiles.iter().flat_map(|tile| tile.spans(entry.dtype)) {
                    assert!(u128::from(start) + length <= u128::from(index.file(file).length));
                }
            }
        };
        for length in 0..whole.len() {
            check(whole[..length].to_vec());
        }
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            // 11 is prime to 8: neighbours have different bits turned.
            changed[at] ^= 1 << (at * 11 % 8);
            check(changed);
        }
    }
}
