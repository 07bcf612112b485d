//! `consolidated.NN.pth`: one file of `torch.save` for each model-parallel
//! rank, as Meta publishes Llama.
//!
//! The files do not say how tensors were cut; their names do. A name that is
//! not known is an error, since a guess would give a wrong model. Names stay
//! as they are.

use std::collections::BTreeMap;

use weightloom_errors::Hint;
use weightloom_layout::{DType, Region, Shape, ShapeError};

use super::torch::{Contents, read_contents};
use crate::error::CheckpointError;
use crate::index::{FileId, Format, Index, StoredFile, TensorEntry, Tile};
use crate::storage::Storage;

/// The first file, by which such a folder is known.
pub const FIRST_FILE: &str = "consolidated.00.pth";

/// What is wrong with a folder of consolidated files.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ConsolidatedError {
    /// A gap in the numbers.
    #[error("`{file}` is missing, but there is one with a higher number")]
    Missing { file: String },
    /// A tensor that only some files have.
    #[error("it does not have `{tensor}`, which another file has")]
    NotInFile { tensor: String },
    /// A tensor whose parts differ in shape or dtype.
    #[error("`{tensor}` is {found} of {dtype} here, but {expected} of {expected_dtype} in the first file")]
    Differs { tensor: String, found: Shape, dtype: DType, expected: Shape, expected_dtype: DType },
    /// A name that does not say how the tensor was cut.
    #[error("nothing says how `{tensor}` was cut into {files} files")]
    Unknown { tensor: String, files: usize },
    /// Embeddings that do not add up to the width of the model.
    #[error("`{tensor}` is {shape} in each of {files} files, which does not fit a model of width {width}")]
    Width { tensor: String, shape: Shape, files: usize, width: usize },
    /// A shape that cannot be.
    #[error("`{tensor}` would have an impossible shape: {source}")]
    Shape { tensor: String, source: ShapeError },
}

impl Hint for ConsolidatedError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Missing { .. } | Self::Width { .. } => {
                Some("copy or download the folder again, with all of its files".to_owned())
            }
            Self::NotInFile { .. } | Self::Differs { .. } => {
                Some("the folder mixes files of two checkpoints; copy or download it again".to_owned())
            }
            Self::Unknown { .. } => Some(
                "only the names of Llama are known; convert the checkpoint with the program that wrote it"
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

/// How a tensor was cut.
enum Cut {
    /// Every file has all of it.
    Nowhere,
    /// Every file has a part along one dim.
    Along(usize),
}

fn cut(tensor: &str, shape: &Shape, files: usize, width: Option<usize>) -> Result<Cut, ConsolidatedError> {
    let unknown = || ConsolidatedError::Unknown { tensor: tensor.to_owned(), files };
    // A single file is checked only for being one of several.
    if tensor == "rope.freqs" || (files == 1 && (tensor != "tok_embeddings.weight" || width.is_none())) {
        return Ok(Cut::Nowhere);
    }
    let (path, kind) = tensor.rsplit_once('.').ok_or_else(unknown)?;
    let layer = path.rsplit('.').next().unwrap_or(path);
    let cut = match (layer, kind) {
        (norm, "weight" | "bias") if norm == "norm" || norm.ends_with("_norm") => Cut::Nowhere,
        ("wq" | "wk" | "wv" | "w1" | "w3" | "output", "weight" | "bias") => Cut::Along(0),
        ("wo" | "w2", "weight") => Cut::Along(1),
        ("wo" | "w2", "bias") => Cut::Nowhere,
        // Llama 3 cuts the vocabulary, earlier ones the width.
        ("tok_embeddings", "weight") => match (&shape[..], width) {
            (&[_, columns], Some(width)) if columns == width => Cut::Along(0),
            (&[_, columns], Some(width)) if columns.checked_mul(files) == Some(width) => Cut::Along(1),
            (_, Some(width)) => {
                let (tensor, shape) = (tensor.to_owned(), shape.clone());
                return Err(ConsolidatedError::Width { tensor, shape, files, width });
            }
            (_, None) => return Err(unknown()),
        },
        _ => return Err(unknown()),
    };
    match cut {
        Cut::Along(dim) if dim >= shape.ndim() => Err(unknown()),
        cut => Ok(cut),
    }
}

/// Puts the parts of a tensor together.
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
    let Cut::Along(dim) = cut(tensor, &first.shape, parts.len(), width).map_err(failed)? else {
        return Ok(first.clone());
    };
    let size = first.shape[dim];
    let mut sizes = first.shape.to_vec();
    sizes[dim] = size.saturating_mul(parts.len());
    let shape = Shape::new(&sizes)
        .map_err(|source| failed(ConsolidatedError::Shape { tensor: tensor.to_owned(), source }))?;
    let whole = Region::whole(&shape);
    let place = |(number, part): (usize, &&TensorEntry)| {
        let region = whole.with_range(dim, number * size..(number + 1) * size);
        Tile { region, ..part.tiles[0].clone() }
    };
    let tiles = parts.iter().enumerate().map(place).collect();
    Ok(TensorEntry { dtype: first.dtype, shape, tiles })
}
