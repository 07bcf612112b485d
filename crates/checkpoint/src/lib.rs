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
mod cast;
mod codec;
mod compare;
mod convert;
mod error;
mod file_layout;
mod fingerprint;
mod folder;
mod index;
mod keys;
mod load;
mod manifest;
mod observer;
pub mod plan;
mod read;
mod save;
mod state;
mod stats;
mod sums;
mod together;
mod verify;
mod view;
mod walk;

pub use affine::AffineRun;
pub use blocks::BlockFormat;
pub use cast::cast;
pub use codec::{Affine, Blocks, Codec, Side};
pub use compare::{Comparison, Difference, compare};
pub use convert::{ConvertOptions, ConvertReport, convert};
pub use error::CheckpointError;
pub use file_layout::{FileLayout, Place, PlannedFile};
pub use fingerprint::{ElementSum, Fingerprint, NoFingerprint};
pub use folder::{Better, CheckpointFolder, Retention, Saved};
pub use formats::{FormatError, Scope, Source};
pub use index::{Blob, FileId, Format, Index, IndexError, StoredFile, Strides, TensorEntry, Tile, row_major};
pub use keys::{KeyError, KeyMap, KeyRule};
pub use load::{Copies, LoadOptions, LoadReport, Verify, load, load_with};
pub use manifest::{
    Arrangement, Asset, Kind, MANIFEST_FILE, Manifest, ManifestError, ManifestFile, ManifestTensor,
};
pub use observer::Observer;
pub use read::{Extent, ReadOptions, ReadReport, Want, WantError, extents, read};
pub use save::{SaveFormat, SaveOptions, SaveReport, Saver, Target, TargetError};
pub use state::{
    Ambiguous, Bytes, Content, Held, Leaf, LocalTensor, NotJson, Part, Paths, State, Step, TensorSpec, Tree,
    flatten, unflatten,
};
pub use stats::{Fingerprints, TensorStats, fingerprint, stats};
pub use storage::{LocalStorage, MemoryStorage, Storage, StorageError, Upload};
#[cfg(feature = "object-store")]
pub use storage::{ObjectOptions, ObjectStorage};
pub use sums::{Sums, TensorTotals, stretch_for};
pub(crate) use together::together;
pub use verify::{Against, Damage, DamagedChunk, Verified, verify};
pub use view::ViewError;
