//! `consolidated.NN.pth`: one `torch.save` file per model-parallel rank, as Meta
//! publishes Llama.
//!
//! Only the tensors' names determine how they were split. An unknown name is an
//! error, since a guess could give a wrong model. Names stay unchanged.

use std::collections::BTreeMap;

use weightloom_errors::Hint;
use weightloom_layout::{DType, Region, Shape, ShapeError};

use super::torch::{Contents, read_contents};
use crate::error::CheckpointError;
use crate::index::{FileId, Format, Index, StoredFile, TensorEntry, Tile};
use crate::storage::Storage;

/// The first file, which identifies the format.
pub const FIRST_FILE: &str = "consolidated.00.pth";

/// Why a folder of consolidated files cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ConsolidatedError {
    #[error("`{file}` is missing, but a file with a higher number exists")]
    Missing { file: String },
    #[error("`{tensor}` is missing, but another file has it")]
    NotInFile { tensor: String },
    #[error("`{tensor}` is {found} of {dtype} here, but {expected} of {expected_dtype} in the first file")]
    Differs { tensor: String, found: Shape, dtype: DType, expected: Shape, expected_dtype: DType },
    #[error("cannot tell along which dim `{tensor}` was split into {files} files")]
    Unknown { tensor: String, files: usize },
    #[error("`{tensor}` is {shape} in each of {files} files, which does not fit a model of width {width}")]
    Width { tensor: String, shape: Shape, files: usize, width: usize },
    #[error("the merged shape of `{tensor}` is invalid: {problem}")]
    Shape { tensor: String, problem: ShapeError },
}

impl Hint for ConsolidatedError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Missing { .. } | Self::Width { .. } => {
                Some("copy or download the whole folder again".to_owned())
            }
            Self::NotInFile { .. } | Self::Differs { .. } => {
                Some("copy or download the folder again; it mixes files of two checkpoints".to_owned())
            }
            Self::Unknown { .. } => Some(
                "convert the checkpoint with the program that wrote it; only Llama's tensor names are supported"
                    .to_owned(),
            ),
            Self::Shape { .. } => None,
        }
    }
}

/// Indexes a folder, one tile for each file.
pub fn read_folder(storage: &dyn Storage, files: &[StoredFile]) -> Result<Index, CheckpointError> {
    let names = sequence(files)?;
    let mut stored = Vec::new();
    let mut ranks = Vec::new();
    for name in &names {
        let (contents, length) = read_contents(storage, name, FileId(stored.len() as u32))?;
        stored.push(StoredFile { name: name.clone(), length });
        ranks.push(contents);
    }
    let width = ranks[0].tensors.get("norm.weight").map(|entry| entry.shape.volume());
    let mut tensors = BTreeMap::new();
    for name in ranks.iter().flat_map(|rank| rank.tensors.keys()) {
        if !tensors.contains_key(name) {
            tensors.insert(name.clone(), merge(name, &names, &ranks, width)?);
        }
    }
    let plain = ranks.swap_remove(0).plain;
    Ok(Index::new(Format::Consolidated, stored, tensors)?.with_metadata(plain))
}

/// The names of the files, from number 0 on.
fn sequence(files: &[StoredFile]) -> Result<Vec<String>, CheckpointError> {
    let number = |file: &StoredFile| -> Option<usize> {
        let digits = file.name.strip_prefix("consolidated.")?.strip_suffix(".pth")?;
        if digits.len() == 2 { digits.parse().ok() } else { None }
    };
    let count = files.iter().filter_map(number).max().map_or(0, |highest| highest + 1);
    let names: Vec<String> = (0..count).map(|number| format!("consolidated.{number:02}.pth")).collect();
    match names.iter().find(|name| !files.iter().any(|file| file.name == **name)) {
        Some(missing) => {
            let error = ConsolidatedError::Missing { file: missing.clone() };
            Err(CheckpointError::format(FIRST_FILE, error))
        }
        None => Ok(names),
    }
}

/// How a tensor was split.
enum Split {
    /// Replicated in every file.
    Replicated,
    /// Split along one dim.
    Along(usize),
}

fn split_of(
    tensor: &str,
    shape: &Shape,
    files: usize,
    width: Option<usize>,
) -> Result<Split, ConsolidatedError> {
    let unknown = || ConsolidatedError::Unknown { tensor: tensor.to_owned(), files };
    // A single file is checked only for being one of several.
    if tensor == "rope.freqs" || (files == 1 && (tensor != "tok_embeddings.weight" || width.is_none())) {
        return Ok(Split::Replicated);
    }
    let (path, kind) = tensor.rsplit_once('.').ok_or_else(unknown)?;
    let layer = path.rsplit('.').next().unwrap_or(path);
    let split = match (layer, kind) {
        (norm, "weight" | "bias") if norm == "norm" || norm.ends_with("_norm") => Split::Replicated,
        ("wq" | "wk" | "wv" | "w1" | "w3" | "output", "weight" | "bias") => Split::Along(0),
        ("wo" | "w2", "weight") => Split::Along(1),
        ("wo" | "w2", "bias") => Split::Replicated,
        // Llama 3 splits the vocabulary, earlier versions the width.
        ("tok_embeddings", "weight") => match (&shape[..], width) {
            (&[_, columns], Some(width)) if columns == width => Split::Along(0),
            (&[_, columns], Some(width)) if columns.checked_mul(files) == Some(width) => Split::Along(1),
            (_, Some(width)) => {
                let (tensor, shape) = (tensor.to_owned(), shape.clone());
                return Err(ConsolidatedError::Width { tensor, shape, files, width });
            }
            (_, None) => return Err(unknown()),
        },
        _ => return Err(unknown()),
    };
    match split {
        Split::Along(dim) if dim >= shape.ndim() => Err(unknown()),
        split => Ok(split),
    }
}

/// Merges the shards of a tensor.
fn merge(
    tensor: &str,
    names: &[String],
    ranks: &[Contents],
    width: Option<usize>,
) -> Result<TensorEntry, CheckpointError> {
    let mut parts = Vec::new();
    for (file, rank) in names.iter().zip(ranks) {
        let missing = || ConsolidatedError::NotInFile { tensor: tensor.to_owned() };
        let part = rank.tensors.get(tensor).ok_or_else(|| CheckpointError::format(file, missing()))?;
        let first = *parts.first().unwrap_or(&part);
        if (&part.shape, part.dtype) != (&first.shape, first.dtype) {
            let error = ConsolidatedError::Differs {
                tensor: tensor.to_owned(),
                found: part.shape.clone(),
                dtype: part.dtype,
                expected: first.shape.clone(),
                expected_dtype: first.dtype,
            };
            return Err(CheckpointError::format(file, error));
        }
        parts.push(part);
    }
    let failed = |error: ConsolidatedError| CheckpointError::format(FIRST_FILE, error);
    let first = parts[0];
    let Split::Along(dim) = split_of(tensor, &first.shape, parts.len(), width).map_err(failed)? else {
        return Ok(first.clone());
    };
    let size = first.shape[dim];
    let mut sizes = first.shape.to_vec();
    sizes[dim] = size.saturating_mul(parts.len());
    let shape = Shape::new(&sizes)
        .map_err(|problem| failed(ConsolidatedError::Shape { tensor: tensor.to_owned(), problem }))?;
    let whole = Region::whole(&shape);
    let place = |(number, part): (usize, &&TensorEntry)| {
        let region = whole.with_range(dim, number * size..(number + 1) * size);
        Tile { region, ..part.tiles[0].clone() }
    };
    let tiles = parts.iter().enumerate().map(place).collect();
    Ok(TensorEntry { dtype: first.dtype, shape, tiles })
}
