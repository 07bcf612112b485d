//! The manifest of a native checkpoint: what makes a folder of safetensors
//! files a checkpoint that can be trusted and resumed from.
//!
//! It is written last. A folder without one is no committed checkpoint.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use weightloom_errors::Hint;
use weightloom_layout::{DType, Shape};

use crate::error::CheckpointError;
use crate::fingerprint::{Fingerprint, Mixer};
use crate::state::{Paths, Section};
use crate::storage::Storage;

/// The manifest's file.
pub const MANIFEST_FILE: &str = "weightloom.json";

/// The longest manifest that is read.
const MAX_MANIFEST: u64 = 1 << 30;

/// The version that is written.
const VERSION: u32 = 1;

/// What a native checkpoint says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of this form.
    pub version: u32,
    /// What wrote it.
    pub writer: String,
    /// The step of the training, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// The fingerprint of all tensors.
    pub fingerprint: Fingerprint,
    /// The fingerprint of the model's tensors.
    pub model: Fingerprint,
    /// Bytes of one chunk; each chunk of a tensor has a checksum.
    #[serde(rename = "stretch")]
    pub chunk_size: u64,
    /// How the tensors lie in the files.
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
    /// The ways to names whose dots are not those of nested state.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub paths: Paths,
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

/// What the manifest says of one tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestTensor {
    /// The section that it belongs to.
    #[serde(rename = "part")]
    pub section: Section,
    /// Whether it is a tensor, or bytes kept as one.
    pub kind: EntryKind,
    /// The type of its elements.
    pub dtype: DType,
    /// Its global shape.
    pub shape: Shape,
    /// The layout that it was saved from, by number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<usize>,
    /// Its fingerprint.
    pub fingerprint: Fingerprint,
    /// The checksums of its stretches, 16 hexadecimal digits each.
    pub chunks: String,
}

/// What a stored tensor is.
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

/// What is wrong with a manifest, or with what it speaks of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ManifestError {
    /// It is not JSON of the right form.
    #[error("it is not a manifest: {message}")]
    Form { message: String },
    /// Its own digest does not fit.
    #[error("it was changed or damaged after it was written")]
    Digest,
    /// A version that we do not know.
    #[error("it has version {found}, and {VERSION} is the latest known here")]
    Version { found: u32 },
    /// A file that is not as long as it was.
    #[error("it has {found} bytes, but was saved with {expected}")]
    Length { expected: u64, found: u64 },
    /// A file whose header was changed.
    #[error("its header was changed or damaged after it was written")]
    Header,
    /// A tensor that its file does not have, or has otherwise.
    #[error("`{tensor}` is not in the files as it was saved")]
    Tensor { tensor: String },
    /// Checksums that are no numbers, or not as many as there should be.
    #[error("`{tensor}` has unreadable checksums")]
    Checksums { tensor: String },
}

impl Hint for ManifestError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Version { .. } => Some("update weightloom".to_owned()),
            _ => Some(format!(
                "copy the checkpoint again; to use the safetensors files as they are, remove `{MANIFEST_FILE}`"
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
    /// The manifest as the bytes of its file.
    pub fn to_bytes(&self) -> Result<Vec<u8>, ManifestError> {
        let failed = |error: serde_json::Error| ManifestError::Form { message: error.to_string() };
        let manifest = serde_json::value::to_raw_value(self).map_err(failed)?;
        let digest = digest_of(manifest.get().as_bytes());
        serde_json::to_vec(&Sealed { digest, manifest: &manifest }).map_err(failed)
    }

    /// Reads a manifest and checks that it is as it was written.
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

    /// Reads the manifest of a place.
    pub fn read(storage: &dyn Storage) -> Result<Self, CheckpointError> {
        let bytes = storage.read_all(MANIFEST_FILE, MAX_MANIFEST)?;
        Self::from_bytes(&bytes).map_err(|error| CheckpointError::format(MANIFEST_FILE, error))
    }
}

impl ManifestTensor {
    /// The checksums of its stretches.
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
