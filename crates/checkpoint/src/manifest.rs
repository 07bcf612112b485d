//! The manifest of a native checkpoint, which adds checksums and training state
//! to a folder of safetensors files.
//!
//! It is written last: a folder without one is not a committed checkpoint.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use weightloom_errors::Hint;
use weightloom_layout::{DType, Shape};

use crate::error::CheckpointError;
use crate::fingerprint::{Fingerprint, Mixer};
use crate::plan::{PlanData, StorageData, storage_data_pairs};
use crate::state::Section;
use crate::storage::Storage;
use crate::tree::Paths;

/// The manifest's file.
pub const MANIFEST_FILE: &str = "weightloom.json";

/// The longest manifest that is read.
const MAX_MANIFEST: u64 = 1 << 30;

/// The version that is written.
const VERSION: u32 = 1;

/// Manifest of a native checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of the manifest format.
    pub version: u32,
    /// The program that wrote it.
    pub writer: String,
    /// The training step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// The fingerprint of all tensors.
    pub fingerprint: Fingerprint,
    /// The fingerprint of the model's tensors.
    pub model: Fingerprint,
    /// Bytes of one chunk; each chunk of a tensor has a checksum.
    #[serde(rename = "stretch")]
    pub chunk_size: u64,
    /// How ranks divided the files.
    pub storage: FileSharing,
    /// The layouts that tensors were saved from.
    pub layouts: Vec<String>,
    /// The files with tensors.
    pub files: Vec<ManifestFile>,
    /// The tensors.
    pub tensors: BTreeMap<String, ManifestTensor>,
    /// Other files, such as `config.json`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub assets: BTreeMap<String, Asset>,
    /// The paths of names of nested state.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub paths: Paths,
    /// Data of the planner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planner_data: Option<PlanData>,
    /// Data of the planner about single items.
    #[serde(default, skip_serializing_if = "StorageData::is_empty", with = "storage_data_pairs")]
    pub storage_data: StorageData,
}

/// How ranks divide the files of a checkpoint among themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileSharing {
    /// All ranks write to the same files, each of which holds whole tensors.
    Shared,
    /// Each rank writes its own file with its shards.
    #[serde(rename = "chunks")]
    PerRank,
}

/// A file with tensors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestFile {
    /// Its name.
    pub name: String,
    /// Its length.
    pub length: u64,
    /// A hash of its header.
    pub header: Fingerprint,
}

/// A tensor of the manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestTensor {
    /// The section that it belongs to.
    #[serde(rename = "part")]
    pub section: Section,
    /// Whether it is a tensor, or bytes stored as one.
    pub kind: EntryKind,
    /// Its dtype.
    pub dtype: DType,
    /// Its global shape.
    pub shape: Shape,
    /// The layout that it was saved from, as an index of `layouts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<usize>,
    /// Its fingerprint.
    pub fingerprint: Fingerprint,
    /// The checksums of its chunks, 16 hexadecimal digits each.
    pub chunks: String,
}

/// Kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryKind {
    /// A tensor.
    Tensor,
    /// Bytes.
    Bytes,
}

/// A file without tensors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asset {
    /// Its length.
    pub length: u64,
    /// A hash of its bytes.
    pub digest: Fingerprint,
}

/// Why a manifest, or a file that it lists, is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ManifestError {
    #[error("malformed manifest: {message}")]
    Form { message: String },
    #[error("the manifest was changed or damaged after it was written")]
    Digest,
    #[error("unsupported manifest version {found}; {VERSION} is the newest supported")]
    Version { found: u32 },
    #[error("the file has {found} bytes, but was saved with {expected}")]
    Length { expected: u64, found: u64 },
    #[error("the header was changed or damaged after it was written")]
    Header,
    #[error("`{tensor}` is missing from the files, or has another dtype or shape")]
    Tensor { tensor: String },
    #[error("`{tensor}` has malformed checksums")]
    Checksums { tensor: String },
}

impl Hint for ManifestError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Version { .. } => Some("update weightloom".to_owned()),
            _ => Some(format!(
                "copy the checkpoint again, or remove `{MANIFEST_FILE}` to use the safetensors files unverified"
            )),
        }
    }
}

/// A manifest with a digest around it.
#[derive(Serialize, Deserialize)]
struct Sealed<'a> {
    digest: Fingerprint,
    #[serde(borrow)]
    manifest: &'a RawValue,
}

/// A hash of bytes.
pub(crate) fn digest_of(bytes: &[u8]) -> Fingerprint {
    let mut hash = Mixer::new();
    hash.bytes(bytes);
    hash.finish()
}

impl Manifest {
    /// Serializes the manifest with its digest.
    pub fn to_bytes(&self) -> Result<Vec<u8>, ManifestError> {
        let failed = |error: serde_json::Error| ManifestError::Form { message: error.to_string() };
        let manifest = serde_json::value::to_raw_value(self).map_err(failed)?;
        let digest = digest_of(manifest.get().as_bytes());
        serde_json::to_vec(&Sealed { digest, manifest: &manifest }).map_err(failed)
    }

    /// Parses a manifest and compares it with its digest.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ManifestError> {
        let failed = |error: serde_json::Error| ManifestError::Form { message: error.to_string() };
        let sealed: Sealed<'_> = serde_json::from_slice(bytes).map_err(failed)?;
        if digest_of(sealed.manifest.get().as_bytes()) != sealed.digest {
            return Err(ManifestError::Digest);
        }
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let Versioned { version } = serde_json::from_str(sealed.manifest.get()).map_err(failed)?;
        if version != VERSION {
            return Err(ManifestError::Version { found: version });
        }
        serde_json::from_str(sealed.manifest.get()).map_err(failed)
    }

    /// The version that is written.
    pub(crate) const VERSION: u32 = VERSION;

    /// Reads the manifest of a storage.
    pub fn read(storage: &dyn Storage) -> Result<Self, CheckpointError> {
        let bytes = storage.read_all(MANIFEST_FILE, MAX_MANIFEST)?;
        Self::from_bytes(&bytes).map_err(|error| CheckpointError::format(MANIFEST_FILE, error))
    }
}

impl ManifestTensor {
    /// Parses the checksums of its chunks.
    pub fn checksums(&self, name: &str, stretch: u64) -> Result<Vec<u64>, ManifestError> {
        let failed = || ManifestError::Checksums { tensor: name.to_owned() };
        let elements = (stretch / self.dtype.size() as u64).max(1);
        let count = (self.shape.volume() as u64).div_ceil(elements);
        if self.chunks.len() as u64 != count * 16 || !self.chunks.is_ascii() {
            return Err(failed());
        }
        let digits =
            self.chunks.as_bytes().chunks(16).map(|digits| std::str::from_utf8(digits).unwrap_or(""));
        digits.map(|digits| u64::from_str_radix(digits, 16).map_err(|_| failed())).collect()
    }

    /// Checksums as text.
    pub(crate) fn chunks_text(chunks: &[u64]) -> String {
        chunks.iter().map(|chunk| format!("{chunk:016x}")).collect()
    }
}
