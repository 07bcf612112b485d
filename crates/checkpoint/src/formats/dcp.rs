//! Folders of `torch.distributed.checkpoint`.
//!
//! Three forms are read. The usual one has a pickled `.metadata` and
//! `*.distcp` files whose items are archives of `torch.save`, one after
//! another. The second has the same `.metadata`, but each file's tensors are
//! one safetensors file behind the other items. The third, which is meant for
//! Hugging Face, has no `.metadata`: each rank's safetensors file says where
//! its parts begin.
//!
//! The first form is written, too: see [`DcpRank`].

mod read;
mod records;
mod sharded;
mod value;
mod write;

pub use read::{descriptions, read_folder};
pub use sharded::{read_sharded, shards};
pub use value::read_value;
pub use write::{DcpFile, DcpItem, DcpItemLayout, DcpRank, DcpValue, file_name, metadata};

use weightloom_errors::Hint;
use weightloom_layout::{RegionError, ShapeError, TilingError};

/// The name of the file that describes the others.
pub const METADATA_FILE: &str = ".metadata";

/// The most dims that a tensor in several parts may have: proving that the
/// parts make it up takes time that doubles with each dim.
const MAX_CUT_DIMS: usize = 8;

/// What is wrong with a distributed checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum DcpError {
    #[error("`{field}` of {entry} is missing or malformed")]
    Field { entry: String, field: &'static str },
    /// A part that is in no file.
    #[error("it does not say which file has the part of `{name}` at {offsets:?}")]
    NoPlace { name: String, offsets: Vec<usize> },
    /// Data that were compressed or encrypted on their way into the file.
    #[error("`{name}` was changed by {transforms} when it was written")]
    Transformed { name: String, transforms: String },
    /// A dtype that we do not have.
    #[error("`{tensor}` has dtype {dtype}, which is not supported")]
    DType { tensor: String, dtype: String },
    /// A shape that cannot be.
    #[error("`{tensor}` has an impossible shape: {source}")]
    Shape { tensor: String, source: ShapeError },
    /// A part that cannot be.
    #[error("`{tensor}` has an impossible part: {source}")]
    Region { tensor: String, source: RegionError },
    /// A tensor in parts with too many dims.
    #[error("`{tensor}` has {dims} dims, but in parts it may have at most {MAX_CUT_DIMS}")]
    Dims { tensor: String, dims: usize },
    /// What is in the file is not what the description says.
    #[error("the part of `{tensor}` at byte {offset} is not what the checkpoint's description says")]
    ChunkMismatch { tensor: String, offset: u64 },
    #[error("cannot decode the value `{name}`: {message}")]
    Value { name: String, message: String },
    /// Two parts that disagree about their tensor.
    #[error("parts of `{tensor}` disagree about its shape or dtype")]
    Disagree { tensor: String },
    /// Two values of one name.
    #[error("there are two values `{name}`")]
    Twice { name: String },
    /// Parts that do not make up their tensor.
    #[error("the parts of `{tensor}` do not make it up: {source}")]
    Tiling { tensor: String, source: TilingError },
}

impl Hint for DcpError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Transformed { .. } => Some("save it again without extensions".to_owned()),
            Self::NoPlace { .. } | Self::ChunkMismatch { .. } => {
                Some("the folder mixes files of two checkpoints; copy or save it again".to_owned())
            }
            _ => None,
        }
    }
}
