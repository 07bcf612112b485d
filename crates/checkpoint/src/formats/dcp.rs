//! Folders of `torch.distributed.checkpoint`.
//!
//! Three variants are read. The default one has a pickled `.metadata` and
//! `*.distcp` files of consecutive `torch.save` archives. The second has the
//! same `.metadata`, but the tensors of each file form one safetensors file
//! after the other items. The third, for Hugging Face, has no `.metadata`: each
//! rank's safetensors file contains the offsets of its shards.
//!
//! The first variant can also be written; see [`DcpRank`].

mod read;
mod records;
mod sharded;
mod value;
mod write;

pub use read::{descriptions, read_folder};
pub use sharded::{read_sharded, shards};
pub use value::read_value;
pub use write::{
    DcpFile, DcpItem, DcpItemLayout, DcpRank, DcpValue, file_name, metadata, metadata_with_paths,
};

use weightloom_errors::Hint;
use weightloom_layout::{RegionError, ShapeError, TilingError};

/// The metadata file.
pub const METADATA_FILE: &str = ".metadata";

/// The most dims of a sharded tensor: the cost of checking that its chunks
/// cover it doubles with each dim.
const MAX_CUT_DIMS: usize = 8;

/// Why a DCP folder cannot be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum DcpError {
    #[error("`{field}` of {entry} is missing or malformed")]
    Field { entry: String, field: &'static str },
    #[error("cannot locate the chunk of `{name}` at {offsets:?}")]
    NoPlace { name: String, offsets: Vec<usize> },
    #[error("cannot read `{name}`: it was transformed by {transforms} when it was written")]
    Transformed { name: String, transforms: String },
    #[error("`{tensor}` has unsupported dtype {dtype}")]
    DType { tensor: String, dtype: String },
    #[error("`{tensor}` has an invalid shape: {problem}")]
    Shape { tensor: String, problem: ShapeError },
    #[error("`{tensor}` has an invalid chunk: {problem}")]
    Region { tensor: String, problem: RegionError },
    #[error("`{tensor}` has {dims} dims, and a sharded tensor may have at most {MAX_CUT_DIMS}")]
    Dims { tensor: String, dims: usize },
    #[error("the chunk of `{tensor}` at byte {offset} does not match the checkpoint's metadata")]
    ChunkMismatch { tensor: String, offset: u64 },
    #[error("cannot decode the value `{name}`: {message}")]
    Value { name: String, message: String },
    #[error("chunks of `{tensor}` disagree about its shape or dtype")]
    Disagree { tensor: String },
    #[error("the name `{name}` occurs twice")]
    Twice { name: String },
    #[error("cannot assemble `{tensor}` from its chunks: {problem}")]
    Tiling { tensor: String, problem: TilingError },
}

impl Hint for DcpError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Transformed { .. } => {
                Some("save it again without extensions of the storage writer".to_owned())
            }
            Self::NoPlace { .. } | Self::ChunkMismatch { .. } => {
                Some("copy or save the folder again; it mixes files of two checkpoints".to_owned())
            }
            _ => None,
        }
    }
}
