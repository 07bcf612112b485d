//! Checkpoints of any format, on any mesh.
//!
//! Every checkpoint is the same thing: tensors made up of tiles at byte
//! offsets. Each format is parsed into one [`Index`]; loading, resharding,
//! converting and inspecting are then one engine.
//!
//! This crate knows bytes, not tensors that compute.

pub mod formats;
pub mod storage;

mod cast;
mod chunk_sums;
mod codec;
mod collective_result;
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
mod scan;
mod state;
mod stats;
mod verify;
mod view;

pub use cast::cast;
pub use chunk_sums::{ChunkSums, TensorChecksums, chunk_size_for};
pub use codec::{AffineCodec, BlockCodec, Codec, GroupParams};
pub(crate) use collective_result::collective_result;
pub use compare::{Comparison, Difference, compare};
pub use convert::{ConvertOptions, ConvertReport, convert};
pub use error::CheckpointError;
pub use file_layout::{FileLayout, PlannedFile, TensorLocation};
pub use fingerprint::{ElementSum, Fingerprint, ParseFingerprintError};
pub use folder::{CheckpointFolder, Retention, SavedCheckpoint, ScoreOrder};
pub use formats::{FormatError, Scope, Source};
pub use index::{Blob, FileId, Format, Index, IndexError, StoredFile, Strides, TensorEntry, Tile, row_major};
pub use keys::{KeyError, KeyMap, KeyRule};
pub use load::{LoadOptions, LoadReport, ReplicaReads, Verify, load, load_with};
pub use manifest::{
    Asset, EntryKind, FileSharing, MANIFEST_FILE, Manifest, ManifestError, ManifestFile, ManifestTensor,
};
pub use observer::Observer;
pub use read::{Extent, ReadOptions, ReadReport, ReadRequest, ReadRequestError, extents, read};
pub use save::{SaveFormat, SaveOptions, SaveReport, Saver, Target, TargetError};
pub use state::{
    AmbiguousPath, Bytes, Leaf, LeafValue, LocalTensor, PathSegment, Paths, Section, SerializeError,
    Sharding, State, TensorSpec, Tree, flatten, unflatten,
};
pub use stats::{Fingerprints, TensorStats, fingerprint, stats};
pub use storage::{LocalStorage, MemoryStorage, Storage, StorageError, Upload};
#[cfg(feature = "object-store")]
pub use storage::{ObjectOptions, ObjectStorage};
pub use verify::{Damage, DamagedChunk, VerifyReport, verify};
pub use view::ViewError;
