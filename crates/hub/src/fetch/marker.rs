//! What we know of a commit in the cache: its files, and which of them we have
//! compared with their hashes.
//!
//! It is what tells, without a network, a model that is complete and checked
//! from one of which something is there. It is beside `snapshots`, where
//! `huggingface_hub` does not mind it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::disk;
use super::error::FetchError;
use super::listing::{Entry, Listing};
use super::names;

const VERSION: u32 = 1;

/// What we know of a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Marker {
    version: u32,
    commit: String,
    files: BTreeMap<String, Marked>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Marked {
    size: u64,
    hash: String,
    #[serde(default)]
    checked: bool,
}

impl Marker {
    /// Nothing is checked yet.
    pub(super) fn new(listing: &Listing) -> Self {
        let marked = |(name, entry): (&String, &Entry)| {
            let hash = entry.digest.hex().to_owned();
            (name.clone(), Marked { size: entry.size, hash, checked: false })
        };
        Self {
            version: VERSION,
            commit: listing.commit.clone(),
            files: listing.files.iter().map(marked).collect(),
        }
    }

    /// Reads a marker; `None` if there is none that can be used.
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

    /// The files that there are.
    pub(super) fn listing(&self) -> Listing {
        let entry = |(name, marked): (&String, &Marked)| {
            Some((name.clone(), Entry { size: marked.size, digest: Digest::from_hex(&marked.hash)? }))
        };
        Listing { commit: self.commit.clone(), files: self.files.iter().filter_map(entry).collect() }
    }

    pub(super) fn is_checked(&self, name: &str) -> bool {
        self.files.get(name).is_some_and(|marked| marked.checked)
    }

    /// Notes that a file has the right hash.
    pub(super) fn check(&mut self, name: &str) {
        if let Some(marked) = self.files.get_mut(name) {
            marked.checked = true;
        }
    }

    /// The hashes of files that were compared.
    pub(super) fn checked(&self) -> impl Iterator<Item = &str> {
        self.files.values().filter(|marked| marked.checked).map(|marked| marked.hash.as_str())
    }
}
