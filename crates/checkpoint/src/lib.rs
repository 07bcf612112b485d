//! Checkpoints of any format, on any mesh.
//!
//! Every checkpoint is a set of tensors made up of tiles at byte offsets. Each
//! format is parsed into one [`Index`]; loading, resharding, converting and
//! inspecting then share one engine. This crate handles bytes and knows nothing
//! about tensors that compute.
//!
//! ```
//! use weightloom_checkpoint::plan::LoadState;
//! use weightloom_checkpoint::{
//!     LoadOptions, LocalTensor, SaveOptions, Saver, Sharding, Source, State, Target, TensorSpec, load,
//! };
//! use weightloom_gang::{GangOptions, solo};
//! use weightloom_layout::{DType, Region, Shape};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("step_1");
//! let shape = Shape::new(&[2, 4])?;
//! let sharding = Sharding::Region(Region::whole(&shape));
//! let spec = TensorSpec { dtype: DType::U8, shape, sharding };
//!
//! // Save a tensor from one rank.
//! let mut state = State::new();
//! state.model("w", LocalTensor { spec: spec.clone(), bytes: vec![7; 8].into() });
//! let gang = solo(GangOptions::default());
//! Saver::new(gang.clone())?.save(&state, &Target::Folder(path.clone()), &SaveOptions::default(), &())?;
//!
//! // Open the checkpoint and load the tensor again.
//! let source = Source::open(&path)?;
//! let mut bytes = [0; 8];
//! let mut wanted = LoadState::new();
//! wanted.tensor("w", spec, &mut bytes);
//! load(&source, wanted, &*gang, &LoadOptions::default(), &())?;
//! assert_eq!(bytes, [7; 8]);
//! # Ok(())
//! # }
//! ```

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
mod model_part;
mod observer;
mod parts;
pub mod plan;
mod read;
mod save;
mod scan;
mod signature;
mod state;
mod stats;
mod stored_tree;
mod tree;
mod verify;
mod view;

pub use cast::cast;
pub use chunk_sums::{ChunkSums, TensorChecksums, chunk_size_for};
pub use codec::{AffineCodec, BlockCodec, Codec, GroupParams};
pub(crate) use collective_result::{Vote, collective_result, collective_vote};
pub use compare::{Comparison, Difference, compare};
pub use convert::{ConvertOptions, ConvertReport, convert};
pub use error::CheckpointError;
pub use file_layout::{FileLayout, PlannedFile, TensorLocation};
pub use fingerprint::{ElementSum, Fingerprint, ParseFingerprintError};
pub use folder::{CheckpointFolder, Retention, SavedCheckpoint, ScoreOrder};
pub use formats::{FormatError, Formats, Scope, Source};
pub use index::{Blob, FileId, Format, Index, IndexError, StoredFile, Strides, TensorEntry, Tile, row_major};
pub use keys::{KeyError, KeyMap, KeyRule, TensorView};
pub use load::{LoadOptions, LoadReport, ReplicaReads, Verify, load, load_groups, load_planned, load_with};
pub use manifest::{
    Asset, EntryKind, FileSharing, MANIFEST_FILE, Manifest, ManifestError, ManifestFile, ManifestTensor,
};
pub use model_part::{ModelPart, ModelPartError};
pub use observer::Observer;
pub use parts::{Part, Parts};
pub use read::{Extent, ReadOptions, ReadReport, ReadRequest, ReadRequestError, extents, read};
pub use save::{SaveFormat, SaveOptions, SaveReport, Saver, Target, TargetError};
pub use signature::{
    PublicKey, SIGNATURE_FILE, SignatureError, SignedFiles, SigningKey, sign, verify_signature,
};
pub use state::{
    Bytes, DeviceBytes, DeviceReadError, Leaf, LeafValue, LocalTensor, Section, SerializeError, Sharding,
    State, TensorSpec,
};
pub use stats::{Fingerprints, TensorStats, fingerprint, stats};
pub use storage::{LocalStorage, MemoryStorage, Storage, StorageError, Upload};
#[cfg(feature = "object-store")]
pub use storage::{ObjectOptions, ObjectStorage};
pub use tree::{AmbiguousPath, PathSegment, Paths, Tree, flatten, unflatten};
pub use verify::{Damage, DamagedChunk, VerifyReport, verify, verify_model};
pub use view::ViewError;
