//! Layout of safetensors files to be written. Every rank computes the same
//! offsets without communication.

use std::collections::BTreeMap;

use serde_json::json;
use weightloom_layout::{DType, Shape};

use crate::formats::safetensors::{INDEX_FILE, dtype_name};

/// Data begin at a multiple of this, so that mapped elements are aligned.
const ALIGNMENT: usize = 64;

/// Files to be written and the location of every tensor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileLayout {
    /// The files.
    pub files: Vec<PlannedFile>,
    /// Where each tensor begins.
    pub locations: BTreeMap<String, TensorLocation>,
}

/// A file to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedFile {
    /// Its name.
    pub name: String,
    /// Its header.
    pub header: Vec<u8>,
    /// Its length, header included.
    pub length: u64,
}

/// Where a tensor begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorLocation {
    /// The number of the file.
    pub file: usize,
    /// The first byte.
    pub offset: u64,
}

impl FileLayout {
    /// Fills files up to `shard_size` bytes; a larger tensor gets a separate
    /// file. A single file is called `STEM.safetensors`, several are called
    /// `STEM-00001-of-00003.safetensors` and so on.
    pub fn of_tensors<'a>(
        stem: &str,
        tensors: impl IntoIterator<Item = (&'a str, DType, &'a Shape)>,
        shard_size: u64,
    ) -> Self {
        let mut shards: Vec<Vec<(&str, DType, &Shape)>> = Vec::new();
        let mut used = 0;
        for (name, dtype, shape) in tensors {
            let bytes = bytes_of(dtype, shape);
            match shards.last_mut() {
                Some(shard) if used + bytes <= shard_size => {
                    used += bytes;
                    shard.push((name, dtype, shape));
                }
                _ => {
                    used = bytes;
                    shards.push(vec![(name, dtype, shape)]);
                }
            }
        }
        let count = shards.len();
        let mut layout = Self::default();
        for (number, mut shard) in shards.into_iter().enumerate() {
            let name = match count {
                1 => format!("{stem}.safetensors"),
                _ => format!("{stem}-{:05}-of-{count:05}.safetensors", number + 1),
            };
            // Wide elements first, so that all of them are aligned.
            shard.sort_by_key(|(_, dtype, _)| std::cmp::Reverse(dtype.size()));
            // Transformers requires it.
            let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
            layout.add_file(name, &shard, metadata);
        }
        layout
    }

    /// One file with the given header metadata.
    pub fn one_file<'a>(
        name: &str,
        tensors: impl IntoIterator<Item = (&'a str, DType, &'a Shape)>,
        metadata: BTreeMap<String, String>,
    ) -> Self {
        let mut layout = Self::default();
        let tensors: Vec<(&str, DType, &Shape)> = tensors.into_iter().collect();
        layout.add_file(name.to_owned(), &tensors, metadata);
        layout
    }

    fn add_file(
        &mut self,
        name: String,
        tensors: &[(&str, DType, &Shape)],
        metadata: BTreeMap<String, String>,
    ) {
        let mut entries = serde_json::Map::new();
        entries.insert("__metadata__".to_owned(), json!(metadata));
        let mut end = 0;
        let mut starts = Vec::with_capacity(tensors.len());
        for (name, dtype, shape) in tensors {
            let start = end;
            end += bytes_of(*dtype, shape);
            starts.push(start);
            let dims: &[usize] = shape;
            let entry = json!({ "dtype": dtype_name(*dtype), "shape": dims, "data_offsets": [start, end] });
            entries.insert((*name).to_owned(), entry);
        }
        let mut json = serde_json::Value::Object(entries).to_string().into_bytes();
        let padded = (8 + json.len()).next_multiple_of(ALIGNMENT);
        json.resize(padded - 8, b' ');
        let mut header = (json.len() as u64).to_le_bytes().to_vec();
        header.append(&mut json);
        let file = self.files.len();
        for ((name, ..), start) in tensors.iter().zip(starts) {
            let offset = header.len() as u64 + start;
            self.locations.insert((*name).to_owned(), TensorLocation { file, offset });
        }
        self.files.push(PlannedFile { name, length: header.len() as u64 + end, header });
    }

    /// Appends another layout's files.
    pub fn join(&mut self, other: Self) {
        let before = self.files.len();
        self.files.extend(other.files);
        let moved = other.locations.into_iter();
        self.locations
            .extend(moved.map(|(name, place)| (name, TensorLocation { file: place.file + before, ..place })));
    }

    /// The index file of a model in several files; `None` for one file.
    pub fn folder_index(&self) -> Option<(String, Vec<u8>)> {
        if self.files.len() < 2 {
            return None;
        }
        let data: u64 = self.files.iter().map(|file| file.length - file.header.len() as u64).sum();
        let names = self.locations.iter().map(|(name, place)| (name, &self.files[place.file].name));
        let map: BTreeMap<&String, &String> = names.collect();
        let json = json!({ "metadata": { "total_size": data }, "weight_map": map });
        Some((INDEX_FILE.to_owned(), format!("{json:#}\n").into_bytes()))
    }
}

/// The bytes of a tensor.
pub(crate) fn bytes_of(dtype: DType, shape: &Shape) -> u64 {
    shape.volume() as u64 * dtype.size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_cut_by_size_and_aligned() {
        let shape = Shape::new(&[10]).unwrap();
        let tensors = [("a", DType::U8), ("b", DType::F32), ("c", DType::Bf16), ("d", DType::F64)];
        let layout = FileLayout::of_tensors("model", tensors.map(|(name, dtype)| (name, dtype, &shape)), 70);
        let names: Vec<&str> = layout.files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]);
        for (name, dtype) in tensors {
            assert_eq!(layout.locations[name].offset % dtype.size() as u64, 0, "{name}");
        }
        assert_eq!(layout.files[0].header.len() % ALIGNMENT, 0);
        assert!(layout.folder_index().is_some());
    }
}
