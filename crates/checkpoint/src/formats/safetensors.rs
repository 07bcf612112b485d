//! Safetensors: one file, a folder with an index, or a folder without.
//!
//! The header is parsed here rather than by the `safetensors` crate, so that
//! errors name the tensor, duplicate keys are noticed, and an unsupported dtype
//! only affects the tensor that has it. The tests compare with the crate.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use weightloom_errors::Hint;
use weightloom_layout::{DType, Region, Shape, ShapeError};

use crate::error::CheckpointError;
use crate::index::{FileId, Format, Index, StoredFile, TensorEntry, Tile};
use crate::storage::Storage;

/// The longest header that is read, as in the reference implementation.
const MAX_HEADER: u64 = 100_000_000;

/// The index file of a sharded model.
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// Why a safetensors file or its index cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum SafetensorsError {
    #[error("{length} bytes are too few for a header")]
    NoHeader { length: u64 },
    #[error("the header claims {claimed} bytes, and at most {limit} fit")]
    HeaderLength { claimed: u64, limit: u64 },
    #[error("malformed header: {message}")]
    Header { message: String },
    #[error("the header has `{tensor}` twice")]
    Twice { tensor: String },
    #[error("`{tensor}` has unsupported dtype {dtype}")]
    DType { tensor: String, dtype: String },
    #[error("`{tensor}` has an invalid shape: {problem}")]
    Shape { tensor: String, problem: ShapeError },
    #[error("`{tensor}` takes {expected} bytes, but its offsets are {start}..{end}")]
    Offsets { tensor: String, expected: u64, start: u64, end: u64 },
    #[error("`{tensor}` begins at byte {start} of the data, but the previous tensor ends at {end}")]
    NotAdjacent { tensor: String, start: u64, end: u64 },
    #[error("the tensors end at byte {expected}, but the file has {length} bytes")]
    Length { expected: u64, length: u64 },
    #[error("`{tensor}` is mapped to `{file}`, which does not have it")]
    NotInFile { tensor: String, file: String },
    #[error("`{tensor}` is also in `{other}`")]
    TwoFiles { tensor: String, other: String },
}

impl Hint for SafetensorsError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::NoHeader { .. } | Self::HeaderLength { .. } | Self::Length { .. } => {
                Some("copy or download the file again; it is truncated or not a safetensors file".to_owned())
            }
            Self::NotInFile { .. } => {
                Some("copy or download the folder again; it mixes files of two checkpoints".to_owned())
            }
            Self::TwoFiles { .. } => {
                Some(format!("open one of the files, or add a `{INDEX_FILE}` that names the right one"))
            }
            _ => None,
        }
    }
}

/// A tensor of a header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorInfo {
    /// The dtype, by its safetensors name.
    pub dtype: String,
    /// The shape.
    pub shape: Vec<usize>,
    /// First byte, and one past the last, relative to the end of the header.
    pub data_offsets: (u64, u64),
}

/// A parsed header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Where the data begin.
    pub data: u64,
    /// Tensors, in the order of their data.
    pub tensors: Vec<(String, TensorInfo)>,
    /// The `__metadata__` map.
    pub metadata: BTreeMap<String, String>,
}

/// The safetensors name of a dtype.
pub fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F64 => "F64",
        DType::F32 => "F32",
        DType::Bf16 => "BF16",
        DType::F16 => "F16",
        DType::F8E4M3 => "F8_E4M3",
        DType::F8E5M2 => "F8_E5M2",
        DType::I64 => "I64",
        DType::I32 => "I32",
        DType::I16 => "I16",
        DType::I8 => "I8",
        DType::U64 => "U64",
        DType::U32 => "U32",
        DType::U16 => "U16",
        DType::U8 => "U8",
        DType::Bool => "BOOL",
    }
}

fn dtype_of(name: &str) -> Option<DType> {
    DType::ALL.into_iter().find(|&dtype| dtype_name(dtype) == name)
}

impl Header {
    /// Parses the JSON after the length and checks that the tensors cover the
    /// data exactly.
    pub fn parse(json: &[u8], file_length: u64) -> Result<Self, SafetensorsError> {
        let raw: RawHeader = serde_json::from_slice(json)
            .map_err(|error| SafetensorsError::Header { message: error.to_string() })?;
        let mut tensors = raw.tensors;
        let mut names: Vec<&str> = tensors.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(SafetensorsError::Twice { tensor: pair[0].to_owned() });
        }
        // An empty tensor may share its offset with the next one.
        tensors.sort_by(|(a, x), (b, y)| (x.data_offsets, a).cmp(&(y.data_offsets, b)));
        let data = 8 + json.len() as u64;
        let mut end = 0;
        for (name, info) in &tensors {
            let (start, stop) = info.data_offsets;
            if start != end || stop < start {
                return Err(SafetensorsError::NotAdjacent { tensor: name.clone(), start, end });
            }
            end = stop;
        }
        if data.checked_add(end) != Some(file_length) {
            return Err(SafetensorsError::Length { expected: data.saturating_add(end), length: file_length });
        }
        Ok(Self { data, tensors, metadata: raw.metadata })
    }
}

/// The header's JSON, with duplicate keys.
#[derive(Default)]
struct RawHeader {
    tensors: Vec<(String, TensorInfo)>,
    metadata: BTreeMap<String, String>,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawHeader;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut header = RawHeader::default();
                while let Some(key) = map.next_key::<String>()? {
                    if key == "__metadata__" {
                        header.metadata = map.next_value::<Option<_>>()?.unwrap_or_default();
                    } else {
                        header.tensors.push((key, map.next_value()?));
                    }
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// Reads and validates a file's header. Returns the file's length too.
pub fn read_header(storage: &dyn Storage, name: &str) -> Result<(Header, u64), CheckpointError> {
    let (bytes, length) = read_header_bytes(storage, name)?;
    let header = Header::parse(&bytes[8..], length).map_err(|error| CheckpointError::format(name, error))?;
    Ok((header, length))
}

/// Reads the bytes of a file's header, with the length prefix.
pub(crate) fn read_header_bytes(
    storage: &dyn Storage,
    name: &str,
) -> Result<(Vec<u8>, u64), CheckpointError> {
    let failed = |error: SafetensorsError| CheckpointError::format(name, error);
    let length = storage.length(name)?;
    if length < 8 {
        return Err(failed(SafetensorsError::NoHeader { length }));
    }
    let mut size = [0; 8];
    storage.read_at(name, 0, &mut size)?;
    let claimed = u64::from_le_bytes(size);
    let limit = MAX_HEADER.min(length - 8);
    if claimed > limit {
        return Err(failed(SafetensorsError::HeaderLength { claimed, limit }));
    }
    let mut bytes = vec![0; 8 + claimed as usize];
    storage.read_at(name, 0, &mut bytes)?;
    Ok((bytes, length))
}

/// The index entry of one tensor of a file.
pub(crate) fn entry(
    tensor: &str,
    info: &TensorInfo,
    data: u64,
    file: FileId,
) -> Result<TensorEntry, SafetensorsError> {
    let dtype = dtype_of(&info.dtype)
        .ok_or_else(|| SafetensorsError::DType { tensor: tensor.to_owned(), dtype: info.dtype.clone() })?;
    let shape = Shape::new(&info.shape)
        .map_err(|problem| SafetensorsError::Shape { tensor: tensor.to_owned(), problem })?;
    let expected = (shape.volume() as u64).saturating_mul(dtype.size() as u64);
    let (start, end) = info.data_offsets;
    if end - start != expected {
        return Err(SafetensorsError::Offsets { tensor: tensor.to_owned(), expected, start, end });
    }
    let tile = Tile::contiguous(Region::whole(&shape), file, data + start, dtype);
    Ok(TensorEntry { dtype, shape, tiles: vec![tile] })
}

/// Indexes one file.
pub fn read_file(storage: &dyn Storage, name: &str) -> Result<Index, CheckpointError> {
    read_files(storage, &[name.to_owned()], |_, _| Wanted::Yes)
}

/// Whether a tensor of a file belongs to the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Yes,
    No,
}

fn read_files(
    storage: &dyn Storage,
    names: &[String],
    wanted: impl Fn(&str, &str) -> Wanted,
) -> Result<Index, CheckpointError> {
    let mut files = Vec::new();
    let mut tensors = BTreeMap::new();
    let mut metadata = BTreeMap::new();
    for name in names {
        let failed = |error: SafetensorsError| CheckpointError::format(name, error);
        let (header, length) = read_header(storage, name)?;
        let id = FileId(files.len() as u32);
        files.push(StoredFile { name: name.clone(), length });
        for (tensor, info) in &header.tensors {
            if wanted(tensor, name) == Wanted::No {
                continue;
            }
            let entry = entry(tensor, info, header.data, id).map_err(failed)?;
            if let Some(other) = tensors.insert(tensor.clone(), entry) {
                let other = &files[other.tiles[0].file.0 as usize].name;
                return Err(failed(SafetensorsError::TwoFiles {
                    tensor: tensor.clone(),
                    other: other.clone(),
                }));
            }
        }
        metadata.extend(header.metadata);
    }
    Ok(Index::new(Format::Safetensors, files, tensors)?.with_metadata(metadata))
}

/// A folder's index.
#[derive(Debug, Deserialize)]
struct FolderIndex {
    weight_map: BTreeMap<String, String>,
}

/// Indexes a folder: the files that its index lists, or all safetensors files if
/// it has none.
pub fn read_folder(storage: &dyn Storage, files: &[StoredFile]) -> Result<Index, CheckpointError> {
    let Some(index) = files.iter().find(|file| file.name == INDEX_FILE) else {
        let names = files.iter().map(|file| file.name.clone());
        let names: Vec<String> = names.filter(|name| name.ends_with(".safetensors")).collect();
        return read_files(storage, &names, |_, _| Wanted::Yes);
    };
    let failed = |error: SafetensorsError| CheckpointError::format(INDEX_FILE, error);
    let json = storage.read_all(&index.name, MAX_HEADER)?;
    let FolderIndex { weight_map } = serde_json::from_slice(&json)
        .map_err(|error| failed(SafetensorsError::Header { message: error.to_string() }))?;
    let mut names: Vec<String> = weight_map.values().cloned().collect();
    names.sort_unstable();
    names.dedup();
    let found = read_files(storage, &names, |tensor, file| {
        if weight_map.get(tensor).is_some_and(|at| at == file) { Wanted::Yes } else { Wanted::No }
    })?;
    match weight_map.iter().find(|(tensor, _)| !found.tensors().contains_key(*tensor)) {
        Some((tensor, file)) => {
            Err(failed(SafetensorsError::NotInFile { tensor: tensor.clone(), file: file.clone() }))
        }
        None => Ok(found),
    }
}
