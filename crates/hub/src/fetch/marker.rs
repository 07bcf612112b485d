//! Record of a commit in the cache: its files, and which have a verified hash.
//!
//! Without a network it distinguishes a complete, verified model from a partial
//! one. It lies beside `snapshots`, where `huggingface_hub` ignores it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::disk;
use super::error::FetchError;
use super::listing::{ListedFile, Listing};
use super::names;

const VERSION: u32 = 1;

/// Record of a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Marker {
    version: u32,
    commit: String,
    files: BTreeMap<String, MarkedFile>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct MarkedFile {
    size: u64,
    hash: String,
    #[serde(default)]
    checked: bool,
}

impl Marker {
    /// A record without verified files.
    pub(super) fn new(listing: &Listing) -> Self {
        let marked = |(name, entry): (&String, &ListedFile)| {
            let hash = entry.digest.hex().to_owned();
            (name.clone(), MarkedFile { size: entry.size, hash, checked: false })
        };
        Self {
            version: VERSION,
            commit: listing.commit.clone(),
            files: listing.files.iter().map(marked).collect(),
        }
    }

    /// Reads a record; `None` if it is missing or unusable.
    pub(super) fn load(path: &Path, commit: &str) -> Option<Self> {
        let marker: Self = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
        let usable = marker.version == VERSION
            && marker.commit == commit
            && marker.files.iter().all(|(name, marked)| {
                names::check_file(name).is_ok() && Digest::from_hex(&marked.hash).is_some()
            });
        usable.then_some(marker)
    }

    pub(super) fn store(&self, path: &Path) -> Result<(), FetchError> {
        disk::write_atomic(path, &serde_json::to_vec_pretty(self).unwrap_or_default())
    }

    /// The file list of the commit.
    pub(super) fn listing(&self) -> Listing {
        let entry = |(name, marked): (&String, &MarkedFile)| {
            Some((name.clone(), ListedFile { size: marked.size, digest: Digest::from_hex(&marked.hash)? }))
        };
        Listing { commit: self.commit.clone(), files: self.files.iter().filter_map(entry).collect() }
    }

    pub(super) fn is_checked(&self, name: &str) -> bool {
        self.files.get(name).is_some_and(|marked| marked.checked)
    }

    /// Records that the hash of a file is right.
    pub(super) fn mark_checked(&mut self, name: &str) {
        if let Some(marked) = self.files.get_mut(name) {
            marked.checked = true;
        }
    }

    /// The hashes of verified files.
    pub(super) fn checked_hashes(&self) -> impl Iterator<Item = &str> {
        self.files.values().filter(|marked| marked.checked).map(|marked| marked.hash.as_str())
    }
}
