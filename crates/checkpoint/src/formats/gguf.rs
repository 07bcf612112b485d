//! GGUF, versions 2 and 3, in one file or in parts.
//!
//! For known architectures, tensors get the names, shapes and row order of
//! Hugging Face checkpoints: tiles undo the converter's rearrangements without
//! touching an element. Packed tensors decode to `f32`.

mod header;
mod names;
mod quant;
mod tensor;
mod value;

pub use quant::BlockFormat;
pub use value::{GgufArray, GgufValue};

use std::collections::BTreeMap;

use weightloom_errors::Hint;
use weightloom_layout::{Shape, ShapeError};

use crate::error::CheckpointError;
use crate::index::{FileId, Format, Index, IndexError, StoredFile, TensorEntry};
use crate::storage::Storage;
use header::Header;
use names::Names;
use tensor::TensorLayout;

/// The default alignment of tensors.
const ALIGNMENT: u64 = 32;

/// Why a GGUF file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum GgufError {
    #[error("not a GGUF file")]
    NotGguf,
    #[error("unsupported byte order: big-endian")]
    BigEndian,
    #[error("unsupported GGUF version {version}; 2 and 3 are supported")]
    Version { version: u32 },
    #[error("the header needs {end} bytes, but the file has {length}")]
    Short { end: u64, length: u64 },
    #[error("the header is longer than {limit} bytes")]
    HeaderTooLong { limit: u64 },
    #[error("the text of {of} is not UTF-8")]
    NotText {
        /// A key, or a description of the text.
        of: String,
    },
    #[error("`{key}` has unknown value type {kind}")]
    ValueType { key: String, kind: u32 },
    #[error("`{key}` has arrays nested deeper than {limit}")]
    Depth { key: String, limit: usize },
    #[error("the key `{key}` occurs twice")]
    KeyTwice { key: String },
    #[error("the alignment {found} is not a power of two")]
    Alignment { found: String },
    #[error("`{tensor}` has {count} dims, more than {limit}")]
    Dims { tensor: String, count: u32, limit: u32 },
    #[error("`{tensor}` has an invalid shape: {problem}")]
    Shape { tensor: String, problem: ShapeError },
    #[error("`{tensor}` has unsupported type {kind}")]
    TensorType {
        tensor: String,
        /// The name of its type, or the number.
        kind: String,
    },
    #[error("`{tensor}` has rows of {row} elements, which is not a multiple of {format}'s block size")]
    Row { tensor: String, row: usize, format: BlockFormat },
    #[error("`{tensor}` has an invalid offset {offset}")]
    Offset { tensor: String, offset: u64 },
    #[error("`{tensor}` begins before `{before}` ends")]
    Overlap { tensor: String, before: String },
    #[error("the tensor `{tensor}` occurs twice")]
    Twice { tensor: String },
    #[error("cannot reorder the rows of `{tensor}`: `{key}` is missing")]
    NoCount { tensor: String, key: String },
    #[error("cannot reorder the rows of `{tensor}`: {rows} rows do not split into halves of {heads} heads")]
    Heads { tensor: String, rows: u64, heads: u64 },
    #[error("`{tensor}` should have three dims, experts first, but has shape {shape}")]
    Experts { tensor: String, shape: Shape },
    #[error("one of {count} parts without a part number in its name")]
    PartName { count: u64 },
    #[error("`{other}` is another checkpoint in the same folder")]
    Several { other: String },
}

impl Hint for GgufError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Short { .. } => Some("copy or download the file again; it is truncated".to_owned()),
            Self::BigEndian | Self::Version { .. } => {
                Some("convert the model again with a current llama.cpp".to_owned())
            }
            Self::TensorType { .. } => {
                let names: Vec<&str> = BlockFormat::ALL.iter().map(|format| format.name()).collect();
                Some(format!("use a file of type F32, F16, BF16, {}", names.join(", ")))
            }
            Self::PartName { count } => {
                Some(format!("name the parts `name-00001-of-{count:05}.gguf` and so on"))
            }
            Self::Several { .. } => Some("open one of the files".to_owned()),
            _ => None,
        }
    }
}

/// The metadata of a file, in file order. For a checkpoint in parts, that of the
/// first part.
pub fn read_metadata(storage: &dyn Storage, name: &str) -> Result<Vec<(String, GgufValue)>, CheckpointError> {
    let first = parts(name).first().cloned().unwrap_or_default();
    Ok(Header::read(storage, &first)?.metadata)
}

/// Indexes one file, or all parts of a checkpoint if it is one of several.
pub fn read_file(storage: &dyn Storage, name: &str) -> Result<Index, CheckpointError> {
    let names = parts(name);
    let headers: Vec<Header> =
        names.iter().map(|name| Header::read(storage, name)).collect::<Result<_, _>>()?;
    // The first part has the metadata.
    let metadata = headers.first().map_or(&[][..], |header| &header.metadata);
    let tensor_names = Names::new(metadata);
    let mut files = Vec::new();
    let mut tensors = BTreeMap::new();
    for (name, header) in names.iter().zip(&headers) {
        let failed = |error: GgufError| CheckpointError::format(name, error);
        let count = count_at(&header.metadata, "split.count").unwrap_or(1);
        if count > 1 && names.len() == 1 {
            return Err(failed(GgufError::PartName { count }));
        }
        let id = FileId(files.len() as u32);
        files.push(StoredFile { name: name.clone(), length: header.length });
        for (tensor, entry) in entries(header, &tensor_names, name, id)? {
            if tensors.insert(tensor.clone(), entry).is_some() {
                return Err(failed(GgufError::Twice { tensor }));
            }
        }
    }
    let text = metadata.iter().map(|(key, value)| (key.clone(), value.to_string())).collect();
    Ok(Index::new(Format::Gguf, files, tensors)?.with_metadata(text))
}

/// Indexes a folder that has one file, or the parts of one checkpoint.
pub fn read_folder(storage: &dyn Storage, files: &[StoredFile]) -> Result<Option<Index>, CheckpointError> {
    let mut names = files.iter().map(|file| &file.name).filter(|name| name.ends_with(".gguf"));
    let Some(first) = names.next() else { return Ok(None) };
    let parts = parts(first);
    if let Some(other) = names.find(|name| !parts.contains(name)) {
        return Err(CheckpointError::format(first, GgufError::Several { other: other.clone() }));
    }
    read_file(storage, first).map(Some)
}

/// The tensors of one file.
fn entries(
    header: &Header,
    names: &Names<'_>,
    name: &str,
    id: FileId,
) -> Result<Vec<(String, TensorEntry)>, CheckpointError> {
    let failed = |error: GgufError| CheckpointError::format(name, error);
    let alignment = alignment(&header.metadata).map_err(failed)?;
    let data = header.end.next_multiple_of(alignment);
    let mut order: Vec<&header::TensorInfo> = header.tensors.iter().collect();
    order.sort_by_key(|info| info.offset);
    let mut entries = Vec::new();
    let mut before: Option<(&str, u64)> = None;
    for info in order {
        let layout = TensorLayout::new(info, id, data).map_err(failed)?;
        if info.offset % alignment != 0 {
            return Err(failed(GgufError::Offset { tensor: info.name.clone(), offset: info.offset }));
        }
        if let Some((before, end)) = before
            && info.offset < end
        {
            return Err(failed(GgufError::Overlap { tensor: info.name.clone(), before: before.to_owned() }));
        }
        let end = info.offset + layout.bytes;
        before = Some((&info.name, end));
        // Checked here rather than by the index, so that tiles are only made of
        // tensors that exist.
        if data + end > header.length {
            let (tensor, file, start) = (info.name.clone(), name.to_owned(), data + info.offset);
            let (end, length) = (u128::from(data + end), header.length);
            return Err(IndexError::PastEnd { tensor, file, start, end, length }.into());
        }
        let hf_tensor = names.hf_tensor(&info.name).map_err(failed)?;
        entries.extend(layout.entries(hf_tensor).map_err(failed)?);
    }
    Ok(entries)
}

fn alignment(metadata: &[(String, GgufValue)]) -> Result<u64, GgufError> {
    let Some(value) = value_at(metadata, "general.alignment") else {
        return Ok(ALIGNMENT);
    };
    // Limited so that sums cannot overflow.
    value
        .as_count()
        .filter(|&count| count.is_power_of_two() && count <= 1 << 30)
        .ok_or_else(|| GgufError::Alignment { found: value.to_string() })
}

fn value_at<'a>(metadata: &'a [(String, GgufValue)], key: &str) -> Option<&'a GgufValue> {
    metadata.iter().find(|(found, _)| found == key).map(|(_, value)| value)
}

fn count_at(metadata: &[(String, GgufValue)], key: &str) -> Option<u64> {
    value_at(metadata, key).and_then(GgufValue::as_count)
}

/// The files of a checkpoint: all of `name-00001-of-00003.gguf`, or a single
/// file.
fn parts(name: &str) -> Vec<String> {
    let of = |name: &str| -> Option<Vec<String>> {
        let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| {
            let all = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            all.then(|| text.parse::<u32>().ok()).flatten()
        };
        let (number, total) = (digits(number)?, digits(count)?);
        (1..=total)
            .contains(&number)
            .then(|| (1..=total).map(|part| format!("{stem}-{part:05}-of-{count}.gguf")).collect())
    };
    of(name).unwrap_or_else(|| vec![name.to_owned()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_recognized_by_name() {
        assert_eq!(parts("a-b-00002-of-00002.gguf"), ["a-b-00001-of-00002.gguf", "a-b-00002-of-00002.gguf"]);
        for single in
            ["a.gguf", "a-00003-of-00002.gguf", "a-1-of-2.gguf", "a-00000-of-00001.gguf", "-of-.gguf"]
        {
            assert_eq!(parts(single), [single]);
        }
    }
}
