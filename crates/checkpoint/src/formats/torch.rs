//! Files of `torch.save`: a zip archive with a pickle that describes tensors,
//! and one stored entry per storage.
//!
//! Dicts and lists become dotted names. Values other than tensors become JSON in
//! the index's metadata, under their dotted names.

mod archive;
mod tensor;

pub(crate) use archive::Archive;
pub(crate) use tensor::{Placed, dtype_name, dtype_of, place};

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use weightloom_errors::Hint;
use weightloom_layout::{Region, ShapeError};

use super::FormatError;
use super::pickle::{Budget, MAX_DEPTH, Node, Pickle, PickleError, Value};
use super::window::Window;
use crate::codec::Codec;
use crate::error::CheckpointError;
use crate::index::{FileId, Format, Index, StoredFile, TensorEntry, Tile};
use crate::storage::Storage;

/// The index file of a sharded model.
pub const INDEX_FILE: &str = "pytorch_model.bin.index.json";

/// The name of a model's only file.
pub const MODEL_FILE: &str = "pytorch_model.bin";

/// The name of a tensor that is not in a dict.
const BARE: &str = "tensor";

/// The longest index file that is read.
const MAX_INDEX: u64 = 100_000_000;

/// About the bytes that a value or a dict takes in an index besides its texts.
const PLAIN: usize = 96;

/// About the bytes that a tensor takes in an index.
const TENSOR: usize = 384;

/// Why a file of `torch.save` cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum TorchError {
    #[error("unsupported {form} format of old torch versions")]
    Legacy { form: &'static str },
    #[error("not a checkpoint, but a TorchScript program")]
    Script,
    #[error("not a file of `torch.save`")]
    Unknown,
    #[error("expected one `data.pkl`, found {count}")]
    Pickles { count: usize },
    #[error("unsupported byte order `{order}`")]
    ByteOrder { order: String },
    #[error("`{tensor}` is an unsupported {kind} tensor")]
    Kind { tensor: String, kind: String },
    #[error("`{tensor}` has unsupported dtype {dtype}")]
    DType { tensor: String, dtype: String },
    #[error("`{tensor}` has an invalid shape: {problem}")]
    Shape { tensor: String, problem: ShapeError },
    #[error("the description of `{tensor}` is malformed")]
    Description { tensor: String },
    #[error("`{tensor}` is in storage `{storage}`, which is missing")]
    Storage { tensor: String, storage: String },
    #[error("`{tensor}` needs {needed} bytes of a storage that has {length}")]
    PastStorage { tensor: String, needed: u128, length: u64 },
    #[error("the name `{name}` occurs twice")]
    Twice { name: String },
    #[error("malformed JSON: {message}")]
    Index { message: String },
    #[error("`{tensor}` is mapped to `{file}`, which does not have it")]
    NotInFile { tensor: String, file: String },
}

impl Hint for TorchError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Legacy { .. } => Some(
                "load it with a current torch and save it again: `torch.save(torch.load(old), new)`"
                    .to_owned(),
            ),
            Self::Script => Some("load it with `torch.jit.load` and save its `state_dict()`".to_owned()),
            Self::ByteOrder { .. } => {
                Some("load and save it with torch on a little-endian machine".to_owned())
            }
            Self::Kind { .. } => Some(
                "save it as a dense tensor, as `dequantize()`, `to_dense()` or `clone()` give".to_owned(),
            ),
            Self::NotInFile { .. } => {
                Some("copy or download the folder again; it mixes files of two checkpoints".to_owned())
            }
            Self::Storage { .. } | Self::PastStorage { .. } => {
                Some("copy or download the file again; it is damaged".to_owned())
            }
            _ => None,
        }
    }
}

/// What a file holds: tensors, and everything else as JSON.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contents {
    pub(crate) tensors: BTreeMap<String, TensorEntry>,
    pub(crate) plain: BTreeMap<String, String>,
    /// Dicts and lists inside other dicts.
    pub(crate) dicts: BTreeSet<String>,
    /// Those of them that are lists or tuples.
    pub(crate) lists: BTreeSet<String>,
}

/// Indexes one file.
pub fn read_file(storage: &dyn Storage, name: &str) -> Result<Index, CheckpointError> {
    let (contents, length) = read_contents(storage, name, FileId(0))?;
    let files = vec![StoredFile { name: name.to_owned(), length }];
    let index = Index::new(Format::Torch, files, contents.tensors)?;
    Ok(index.with_metadata(contents.plain).with_dicts(contents.dicts).with_lists(contents.lists))
}

/// A folder's index.
#[derive(Debug, Deserialize)]
struct FolderIndex {
    weight_map: BTreeMap<String, String>,
}

/// Indexes a folder of a model: its only file, or the files that its index
/// names.
pub fn read_folder(storage: &dyn Storage, files: &[StoredFile]) -> Result<Index, CheckpointError> {
    if !files.iter().any(|file| file.name == INDEX_FILE) {
        return read_file(storage, MODEL_FILE);
    }
    let failed = |error: TorchError| CheckpointError::format(INDEX_FILE, error);
    let json = storage.read_all(INDEX_FILE, MAX_INDEX)?;
    let FolderIndex { weight_map } = serde_json::from_slice(&json)
        .map_err(|error| failed(TorchError::Index { message: error.to_string() }))?;
    let mut names: Vec<&String> = weight_map.values().collect();
    names.sort_unstable();
    names.dedup();
    let mut stored = Vec::new();
    let mut tensors = BTreeMap::new();
    for name in names {
        let (contents, length) = read_contents(storage, name, FileId(stored.len() as u32))?;
        stored.push(StoredFile { name: name.clone(), length });
        // Tensors that the index does not list do not belong to the model.
        let wanted = contents.tensors.into_iter().filter(|(tensor, _)| weight_map.get(tensor) == Some(name));
        tensors.extend(wanted);
    }
    if let Some((tensor, file)) = weight_map.iter().find(|(tensor, _)| !tensors.contains_key(*tensor)) {
        return Err(failed(TorchError::NotInFile { tensor: tensor.clone(), file: file.clone() }));
    }
    Ok(Index::new(Format::Torch, stored, tensors)?)
}

/// Reads what a file holds, and its length.
pub(crate) fn read_contents(
    storage: &dyn Storage,
    name: &str,
    file: FileId,
) -> Result<(Contents, u64), CheckpointError> {
    let mut window = Window::new(storage, name)?;
    let length = window.length();
    archive::check_kind(&mut window)?;
    let archive = Archive::read(&mut window, 0, length)?;
    let failed = |error: FormatError| CheckpointError::format(name, error);
    let pickle = Pickle::read(&archive.pickle).map_err(|error| failed(error.into()))?;
    let budget = pickle.budget();
    let mut flattener =
        Flattener { pickle: &pickle, archive: &archive, file, budget, contents: Contents::default() };
    flattener.value("", pickle.root(), 0).map_err(failed)?;
    Ok((flattener.contents, length))
}

/// Flattens nested values to dotted names.
struct Flattener<'w, 'a> {
    pickle: &'w Pickle<'a>,
    archive: &'w Archive,
    file: FileId,
    budget: Budget,
    contents: Contents,
}

impl<'a> Flattener<'_, 'a> {
    fn value(&mut self, name: &str, value: Value<'a>, depth: usize) -> Result<(), FormatError> {
        self.budget.spend(name.len())?;
        if depth > MAX_DEPTH {
            return Err(PickleError::Deep { limit: MAX_DEPTH }.into());
        }
        let pickle = self.pickle;
        match pickle.node(value) {
            Some(Node::Dict(pairs)) if !pairs.is_empty() => {
                self.nested(name)?;
                for &(key, value) in pairs {
                    let name = match key {
                        Value::Text(key) => joined(name, key),
                        Value::Int(key) => joined(name, &key.to_string()),
                        _ => {
                            let expected = "a dict whose keys are texts or numbers";
                            return Err(PickleError::Unexpected { name: name.to_owned(), expected }.into());
                        }
                    };
                    self.value(&name, value, depth + 1)?;
                }
                Ok(())
            }
            // A list of plain values is one value.
            Some(Node::List(items) | Node::Tuple(items))
                if items.iter().any(|&item| self.has_parts(item)) =>
            {
                self.nested(name)?;
                self.contents.lists.insert(name.to_owned());
                for (number, &item) in items.iter().enumerate() {
                    self.value(&joined(name, &number.to_string()), item, depth + 1)?;
                }
                Ok(())
            }
            _ => self.leaf(name, value),
        }
    }

    fn nested(&mut self, name: &str) -> Result<(), PickleError> {
        if name.is_empty() {
            return Ok(());
        }
        // Lists are named twice.
        self.budget.spend(PLAIN + 2 * name.len())?;
        self.contents.dicts.insert(name.to_owned());
        Ok(())
    }

    fn has_parts(&self, value: Value<'a>) -> bool {
        matches!(
            self.pickle.node(value),
            Some(Node::Dict(_) | Node::List(_) | Node::Tuple(_) | Node::Object(_))
        )
    }

    fn leaf(&mut self, name: &str, value: Value<'a>) -> Result<(), FormatError> {
        let label = if name.is_empty() { BARE } else { name };
        let twice = || TorchError::Twice { name: label.to_owned() };
        let Some(placed) = place(self.pickle, self.archive, label, value)? else {
            self.budget.spend(PLAIN + label.len())?;
            let json = self.pickle.json_text(label, value, &mut self.budget)?;
            return match self.contents.plain.insert(label.to_owned(), json) {
                None => Ok(()),
                Some(_) => Err(twice().into()),
            };
        };
        self.budget.spend(TENSOR + label.len())?;
        let Placed { dtype, shape, offset, strides } = placed;
        let tile =
            Tile { region: Region::whole(&shape), file: self.file, offset, strides, codec: Codec::Raw };
        let entry = TensorEntry { dtype, shape, tiles: vec![tile] };
        match self.contents.tensors.insert(label.to_owned(), entry) {
            None => Ok(()),
            Some(_) => Err(twice().into()),
        }
    }
}

fn joined(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}
