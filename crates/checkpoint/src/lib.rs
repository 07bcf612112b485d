//! Checkpoints of any format, on any mesh.
//!
//! Every checkpoint is the same thing: tensors made up of tiles at byte
//! offsets. Each format is parsed into one [`Index`]; loading, resharding,
//! converting and inspecting are then one engine.
//!
//! This crate knows bytes, not tensors that compute.

pub mod formats;
pub mod storage;

mod affine;
mod blocks;
mod codec;
mod error;
mod index;

pub use affine::AffineRun;
pub use blocks::BlockFormat;
pub use codec::{Affine, Blocks, Codec, Side};
pub use error::CheckpointError;
pub use formats::{FormatError, Source};
pub use index::{Blob, FileId, Format, Index, IndexError, StoredFile, Strides, TensorEntry, Tile, row_major};
pub use storage::{LocalStorage, Storage, StorageError};
