//! NumPy archives: a zip of `.npy` files, as `numpy.savez` and MLX write them.
//!
//! Only stored entries can be indexed in place. Entries other than arrays are
//! kept as bytes.

mod header;

use std::collections::BTreeMap;

use weightloom_errors::Hint;
use weightloom_layout::{Region, Shape, ShapeError};

use super::window::Window;
use super::zip;
use crate::codec::Codec;
use crate::error::CheckpointError;
use crate::index::{Blob, FileId, Format, Index, StoredFile, TensorEntry, Tile, row_major};
use crate::storage::Storage;
use header::{Header, Order};

/// Why an array of an archive cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum NpzError {
    #[error("`{array}` is not a NumPy array")]
    NotArray { array: String },
    #[error("`{array}` has unsupported NumPy format version {major}.{minor}")]
    Version { array: String, major: u8, minor: u8 },
    #[error("the header of `{array}` claims {claimed} bytes, and at most {limit} fit")]
    HeaderLength { array: String, claimed: u64, limit: u64 },
    #[error("the header of `{array}` is malformed")]
    Header { array: String },
    #[error("`{array}` has unsupported dtype {dtype}")]
    DType { array: String, dtype: String },
    #[error("`{array}` has an invalid shape: {problem}")]
    Shape { array: String, problem: ShapeError },
    #[error("`{array}` has {found} bytes of data instead of {expected}")]
    Length { array: String, expected: u64, found: u64 },
}

impl Hint for NpzError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Length { .. } | Self::HeaderLength { .. } => {
                Some("copy or download the file again; it is damaged".to_owned())
            }
            Self::DType { .. } => Some("save arrays of little-endian numbers".to_owned()),
            _ => None,
        }
    }
}

/// Indexes an archive.
pub fn read_file(storage: &dyn Storage, name: &str) -> Result<Index, CheckpointError> {
    let mut window = Window::new(storage, name)?;
    let length = window.length();
    let mut tensors = BTreeMap::new();
    let mut blobs = BTreeMap::new();
    for entry in zip::read_directory(&mut window, 0, length)? {
        let range = entry.range().map_err(|error| CheckpointError::format(name, error))?;
        match entry.name.strip_suffix(".npy") {
            Some(array) => {
                let header = Header::read(&mut window, array, range.clone())?;
                let entry =
                    place(array, &header, range.end).map_err(|error| CheckpointError::format(name, error))?;
                tensors.insert(array.to_owned(), entry);
            }
            None => {
                blobs
                    .insert(entry.name, Blob { file: FileId(0), offset: entry.offset, length: entry.length });
            }
        }
    }
    let files = vec![StoredFile { name: name.to_owned(), length }];
    Ok(Index::new(Format::Npz, files, tensors)?.with_blobs(blobs)?)
}

fn place(array: &str, header: &Header, end: u64) -> Result<TensorEntry, NpzError> {
    let array = || array.to_owned();
    let shape = Shape::new(&header.shape).map_err(|problem| NpzError::Shape { array: array(), problem })?;
    let dtype = header.dtype;
    let (expected, found) = (shape.volume() as u64 * dtype.size() as u64, end - header.data);
    if expected != found {
        return Err(NpzError::Length { array: array(), expected, found });
    }
    let width = dtype.size() as u64;
    let strides = match header.order {
        Order::Rows => row_major(&shape, width),
        Order::Columns => {
            let turned: Vec<usize> = shape.iter().rev().copied().collect();
            row_major(&turned, width).into_iter().rev().collect()
        }
    };
    let region = Region::whole(&shape);
    let tile = Tile { region, file: FileId(0), offset: header.data, strides, codec: Codec::Raw };
    Ok(TensorEntry { dtype, shape, tiles: vec![tile] })
}
