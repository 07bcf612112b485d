//! GGUF, versions 2 and 3, in one file or in parts.
//!
//! Tensors get the names, shapes and order of rows that they have in Hugging
//! Face checkpoints, where the architecture is known: what a converter
//! rearranged is put back by tiles, so that no element is touched. Packed
//! tensors are `f32` once decoded.

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

/// Tensors begin at multiples of this unless the file says otherwise.
const ALIGNMENT: u64 = 32;

/// What is wrong with a GGUF file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum GgufError {
    /// It does not begin as such files do.
    #[error("it is no GGUF file")]
    NotGguf,
    /// The other byte order.
    #[error("it is in big-endian byte order, which is not supported")]
    BigEndian,
    /// A version that we do not know.
    #[error("it has version {version}; versions 2 and 3 are supported")]
    Version { version: u32 },
    /// The file ends before what it claims to hold.
    #[error("it needs {end} bytes, but has {length}")]
    Short { end: u64, length: u64 },
    /// Metadata of absurd length.
    #[error("its metadata are longer than {limit} bytes")]
    HeaderTooLong { limit: u64 },
    /// Text that is not UTF-8.
    #[error("the text of {of} is not valid UTF-8")]
    NotText {
        /// What the text is of: a key, or what it is called.
        of: String,
    },
    /// A type of metadata that we do not know.
    #[error("`{key}` has values of unknown type {kind}")]
    ValueType { key: String, kind: u32 },
    /// Arrays nested too deeply.
    #[error("`{key}` has arrays nested deeper than {limit}")]
    Depth { key: String, limit: usize },
    /// A key comes twice.
    #[error("it has the key `{key}` twice")]
    KeyTwice { key: String },
    /// An alignment that is no power of two.
    #[error("its alignment is {found}, which is no power of two")]
    Alignment { found: String },
    /// Too many dims.
    #[error("`{tensor}` has {count} dims, more than {limit}")]
    Dims { tensor: String, count: u32, limit: u32 },
    /// A shape that cannot be.
    #[error("`{tensor}` has an impossible shape: {source}")]
    Shape { tensor: String, source: ShapeError },
    /// A type of elements that we do not decode.
    #[error("`{tensor}` has type {kind}, which is not supported")]
    TensorType {
        tensor: String,
        /// The name of its type, or the number.
        kind: String,
    },
    /// Rows that are not whole blocks.
    #[error("`{tensor}` has rows of {row} elements, which are no whole blocks of {format}")]
    Row { tensor: String, row: usize, format: BlockFormat },
    /// An offset that cannot be.
    #[error("`{tensor}` is said to begin at byte {offset} of the data, which cannot be")]
    Offset { tensor: String, offset: u64 },
    /// Two tensors share bytes.
    #[error("`{tensor}` begins before `{before}` ends")]
    Overlap { tensor: String, before: String },
    /// Two tensors have one name.
    #[error("it has `{tensor}` twice")]
    Twice { tensor: String },
    /// Rows cannot be put in order without the number of heads.
    #[error("the order of rows of `{tensor}` depends on `{key}`, which is missing")]
    NoCount { tensor: String, key: String },
    /// Rows that heads cannot share.
    #[error("`{tensor}` has {rows} rows, which {heads} heads cannot have halves of")]
    Heads { tensor: String, rows: u64, heads: u64 },
    /// Stacked experts that are none.
    #[error("`{tensor}` should stack experts in the first of three dims, but has shape {shape}")]
    Experts { tensor: String, shape: Shape },
    /// One of several parts, but under a name of its own.
    #[error("it is one of {count} parts, but is not named as such")]
    PartName { count: u64 },
    /// More than one checkpoint in a folder.
    #[error("`{other}` is another checkpoint in the same folder")]
    Several { other: String },
}

impl Hint for GgufError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Short { .. } => Some("the file was cut off; copy or download it again".to_owned()),
            Self::BigEndian | Self::Version { .. } => {
                Some("convert the model again with a present llama.cpp".to_owned())
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

/// All metadata of a file, with types, in the order of the file. Of a
/// checkpoint in parts, that of the first, whichever is named.
pub fn read_metadata(storage: &dyn Storage, name: &str) -> Result<Vec<(String, GgufValue)>, CheckpointError> {
    let first = parts(name).first().cloned().unwrap_or_default();
    Ok(Header::read(storage, &first)?.metadata)
}

/// Indexes one file, or all parts if it is one of several.
pub fn read_file(storage: &dyn Storage, name: &str) -> Result<Index, CheckpointError> {
    let names = parts(name);
    let headers: Vec<Header> =
        names.iter().map(|name| Header::read(storage, name)).collect::<Result<_, _>>()?;
    // What a checkpoint says of itself is in its first part.
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
        // Checked here rather than by the index, so that parts are made only
        // of tensors that are really there.
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
    // Up to a size that cannot make sums overflow.
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

/// The files that a checkpoint is in: those of `name-00001-of-00003.gguf`, or
/// the one that is named.
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
    fn parts_are_told_by_their_names() {
        assert_eq!(parts("a-b-00002-of-00002.gguf"), ["a-b-00001-of-00002.gguf", "a-b-00002-of-00002.gguf"]);
        for single in
            ["a.gguf", "a-00003-of-00002.gguf", "a-1-of-2.gguf", "a-00000-of-00001.gguf", "-of-.gguf"]
        {
            assert_eq!(parts(single), [single]);
        }
    }
}
