//! Committing: the manifest, last, and then the folder's name.

use std::collections::BTreeMap;
use std::fs;

use shardloom_gang::{Gang, GangExt};

use super::target::{Destination, Opened};
use super::write::Written;
use crate::error::CheckpointError;
use crate::fingerprint::Fingerprint;
use crate::manifest::{Asset, Kind, MANIFEST_FILE, Manifest, ManifestFile, ManifestTensor, digest_of};
use crate::state::Part;
use crate::storage::local::sync_folder;
use crate::storage::{LocalStorage, Storage, StorageError};
use crate::sums::Sums;
use crate::together;

/// The fingerprints of what was saved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fingerprints {
    pub(super) whole: Fingerprint,
    pub(super) model: Fingerprint,
}

impl Opened {
    /// Commits what this rank has written, if all ranks have, and says how
    /// many bytes it was. Every rank.
    pub(super) fn conclude(
        &self,
        written: Result<Written, CheckpointError>,
        gang: &dyn Gang,
    ) -> Result<(u64, Fingerprints), CheckpointError> {
        let committed =
            together(gang, written).and_then(|written| Ok((written.bytes, self.commit(written.sums, gang)?)));
        committed.inspect_err(|_| self.discard(gang))
    }

    /// Makes room again after a save that failed. Every rank, once all have
    /// stopped writing.
    pub(super) fn discard(&self, gang: &dyn Gang) {
        if let (Destination::Folder(folder), 0) = (&self.place, gang.rank()) {
            // The error that led here is the one to tell.
            let _ = fs::remove_dir_all(&folder.partial);
        }
    }

    /// Commits what all ranks have written. Every rank, after all are done.
    fn commit(&self, sums: Sums, gang: &dyn Gang) -> Result<Fingerprints, CheckpointError> {
        sums.combine(gang)?;
        let files = self.all_files(gang)?;
        let manifest = self.manifest(&sums, files);
        let committed = match gang.rank() {
            0 => self.finish(&manifest),
            _ => Ok(()),
        };
        together(gang, committed)?;
        Ok(Fingerprints { whole: manifest.fingerprint, model: manifest.model })
    }

    /// The files of all ranks.
    fn all_files(&self, gang: &dyn Gang) -> Result<Vec<ManifestFile>, CheckpointError> {
        let own: Vec<ManifestFile> = self
            .files
            .files
            .iter()
            .map(|file| ManifestFile {
                name: file.name.clone(),
                length: file.length,
                header: digest_of(&file.header),
            })
            .collect();
        match self.place {
            Destination::Folder(_) => Ok(own),
            Destination::Objects(_) => Ok(gang.all_gather_objects(&own)?.concat()),
        }
    }

    fn manifest(&self, sums: &Sums, files: Vec<ManifestFile>) -> Manifest {
        let mut layouts: Vec<String> =
            self.stored.values().filter_map(|stored| stored.layout.clone()).collect();
        layouts.sort_unstable();
        layouts.dedup();
        let mut totals = sums.totals();
        let mut tensors = BTreeMap::new();
        for (name, stored) in &self.stored {
            let Some(total) = totals.remove(name) else { continue };
            let entry = ManifestTensor {
                part: stored.part,
                kind: stored.kind,
                dtype: stored.dtype,
                shape: stored.shape.clone(),
                layout: stored.layout.as_ref().and_then(|layout| layouts.binary_search(layout).ok()),
                fingerprint: total.fingerprint,
                chunks: ManifestTensor::chunks_text(&total.chunks),
            };
            tensors.insert(name.clone(), entry);
        }
        let whole = |wanted: fn(&ManifestTensor) -> bool| {
            let tensors = tensors.iter().filter(|(_, tensor)| wanted(tensor));
            Fingerprint::of_whole(tensors.map(|(name, tensor)| (name.as_str(), tensor.fingerprint)))
        };
        let fingerprint = whole(|tensor| tensor.kind == Kind::Tensor);
        let model = whole(|tensor| tensor.part == Part::Model);
        let assets = self.assets().map(|(name, bytes)| {
            let asset = Asset { length: bytes.len() as u64, digest: digest_of(bytes) };
            (name.clone(), asset)
        });
        Manifest {
            version: Manifest::VERSION,
            writer: format!("shardloom {}", env!("CARGO_PKG_VERSION")),
            step: self.options.step,
            fingerprint,
            model,
            stretch: self.stretch,
            storage: self.arrangement(),
            layouts,
            files,
            assets: assets.collect(),
            paths: self.options.paths.clone(),
            tensors,
        }
    }

    fn assets(&self) -> impl Iterator<Item = (&String, &Vec<u8>)> {
        self.options.assets.iter().chain(self.index_file.as_ref().map(|(name, bytes)| (name, bytes)))
    }

    /// Writes what belongs to the whole, the manifest last.
    fn finish(&self, manifest: &Manifest) -> Result<(), CheckpointError> {
        let bytes = manifest.to_bytes().map_err(|error| CheckpointError::format(MANIFEST_FILE, error))?;
        match &self.place {
            Destination::Objects(objects) => {
                for (name, asset) in self.assets() {
                    objects.storage.put(name, asset)?;
                }
                objects.storage.put(MANIFEST_FILE, &bytes)?;
            }
            Destination::Folder(folder) => {
                for file in &self.files.files {
                    folder.complete(file)?;
                }
                let storage = LocalStorage::new(&folder.partial);
                for (name, asset) in self.assets() {
                    storage.put(name, asset)?;
                }
                storage.put(MANIFEST_FILE, &bytes)?;
                let path = folder.path.display().to_string();
                let failed = |error: &std::io::Error| StorageError::io("commit", path.clone(), error);
                fs::rename(&folder.partial, &folder.path).map_err(|error| failed(&error))?;
                if let Some(parent) = folder.path.parent() {
                    let parent =
                        if parent.as_os_str().is_empty() { std::path::Path::new(".") } else { parent };
                    sync_folder(parent).map_err(|error| failed(&error))?;
                }
            }
        }
        Ok(())
    }
}
