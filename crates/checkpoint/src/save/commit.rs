//! Committing: the manifest, last, and then the folder's name.

use std::collections::BTreeMap;
use std::fs;

use weightloom_gang::{Gang, GangExt};
use weightloom_layout::{DType, Region, Shape};

use super::target::{Destination, OpenTarget, SaveFormat};
use super::write::Written;
use crate::chunk_sums::ChunkSums;
use crate::collective_result;
use crate::error::CheckpointError;
use crate::fingerprint::Fingerprint;
use crate::formats::dcp::{self, DcpItem, DcpRank, DcpValue, METADATA_FILE};
use crate::manifest::{
    Asset, EntryKind, FileSharing, MANIFEST_FILE, Manifest, ManifestFile, ManifestTensor, digest_of,
};
use crate::state::Section;
use crate::storage::local::sync_folder;
use crate::storage::{LocalStorage, Storage, StorageError};

/// The fingerprints of what was saved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fingerprints {
    pub(crate) whole: Fingerprint,
    pub(crate) model: Fingerprint,
}

/// The file that makes a folder a checkpoint, if there is one.
type LastFile = Option<(&'static str, Vec<u8>)>;

impl OpenTarget {
    /// Commits what this rank has written, if all ranks have, and says how
    /// many bytes it was. Every rank.
    pub(crate) fn conclude(
        &self,
        written: Result<Written, CheckpointError>,
        gang: &dyn Gang,
    ) -> Result<(u64, Fingerprints), CheckpointError> {
        let committed = collective_result(gang, written)
            .and_then(|written| Ok((written.bytes, self.commit(written.sums, gang)?)));
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
    fn commit(&self, sums: ChunkSums, gang: &dyn Gang) -> Result<Fingerprints, CheckpointError> {
        sums.combine(gang)?;
        // Everybody sees the same sums, so all go on or none does.
        if let Some(tensor) = self.unwritten(&sums) {
            return Err(CheckpointError::NotWrittenOnce { tensor });
        }
        let files = self.all_files(gang)?;
        let manifest = self.manifest(&sums, files);
        let last = match self.options.format {
            SaveFormat::Native => {
                let bytes =
                    manifest.to_bytes().map_err(|error| CheckpointError::format(MANIFEST_FILE, error))?;
                Some((MANIFEST_FILE, bytes))
            }
            SaveFormat::Dcp => Some((METADATA_FILE, self.dcp_metadata(gang)?)),
            SaveFormat::HuggingFace | SaveFormat::Peft => None,
        };
        let committed = match gang.rank() {
            0 => self.finish(last),
            _ => Ok(()),
        };
        collective_result(gang, committed)?;
        Ok(Fingerprints { whole: manifest.fingerprint, model: manifest.model })
    }

    /// A tensor of which an element was written by nobody, or twice.
    fn unwritten(&self, sums: &ChunkSums) -> Option<String> {
        let mut counted = sums.counted();
        let tensors = self.stored.iter().filter(|(_, stored)| stored.kind == EntryKind::Tensor);
        let wrong = tensors.map(|(name, stored)| {
            let found = counted.remove(name).unwrap_or_default();
            let elements = (self.chunk_size / stored.dtype.size() as u64).max(1);
            let volume = stored.shape.volume() as u64;
            let whole = found
                .iter()
                .enumerate()
                .all(|(number, stretch)| stretch.count == elements.min(volume - number as u64 * elements));
            (name, whole && found.len() as u64 == volume.div_ceil(elements))
        });
        wrong.filter(|(_, whole)| !whole).map(|(name, _)| name.clone()).next()
    }

    /// What all ranks wrote, in the words of DCP.
    fn dcp_metadata(&self, gang: &dyn Gang) -> Result<Vec<u8>, CheckpointError> {
        type Told = (Vec<(String, DType, Shape, Region)>, Vec<(String, String)>);
        let own = self.dcp.clone().unwrap_or_default();
        let items = own.items.into_iter().map(|item| (item.name, item.dtype, item.shape, item.region));
        let values = own.values.into_iter().map(|value| (value.name, value.value.to_string()));
        let told: Told = (items.collect(), values.collect());
        let ranks = gang.all_gather_objects(&told)?.into_iter().map(|(items, values)| DcpRank {
            items: items
                .into_iter()
                .map(|(name, dtype, shape, region)| DcpItem { name, dtype, shape, region })
                .collect(),
            values: values
                .into_iter()
                .map(|(name, value)| DcpValue {
                    name,
                    value: serde_json::from_str(&value).unwrap_or_default(),
                })
                .collect(),
        });
        let ranks: Vec<DcpRank> = ranks.collect();
        dcp::metadata(&ranks).map_err(|error| CheckpointError::format(METADATA_FILE, error))
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
        match self.sharing {
            FileSharing::Shared => Ok(own),
            FileSharing::PerRank => Ok(gang.all_gather_objects(&own)?.concat()),
        }
    }

    fn manifest(&self, sums: &ChunkSums, files: Vec<ManifestFile>) -> Manifest {
        let mut layouts: Vec<String> = self
            .stored
            .values()
            .filter_map(|stored| stored.layout)
            .map(|layout| layout.to_string())
            .collect();
        layouts.sort_unstable();
        layouts.dedup();
        let mut totals = sums.totals();
        let mut tensors = BTreeMap::new();
        for (name, stored) in &self.stored {
            let Some(total) = totals.remove(name) else { continue };
            let entry = ManifestTensor {
                section: stored.section,
                kind: stored.kind,
                dtype: stored.dtype,
                shape: stored.shape.clone(),
                layout: stored.layout.and_then(|layout| layouts.binary_search(&layout.to_string()).ok()),
                fingerprint: total.fingerprint,
                chunks: ManifestTensor::chunks_text(&total.chunks),
            };
            tensors.insert(name.clone(), entry);
        }
        let whole = |wanted: fn(&ManifestTensor) -> bool| {
            let tensors = tensors.iter().filter(|(_, tensor)| wanted(tensor));
            Fingerprint::of_whole(tensors.map(|(name, tensor)| (name.as_str(), tensor.fingerprint)))
        };
        let fingerprint = whole(|tensor| tensor.kind == EntryKind::Tensor);
        let model = whole(|tensor| tensor.section == Section::Model);
        let assets = self.assets().map(|(name, bytes)| {
            let asset = Asset { length: bytes.len() as u64, digest: digest_of(bytes) };
            (name.clone(), asset)
        });
        Manifest {
            version: Manifest::VERSION,
            writer: format!("weightloom {}", env!("CARGO_PKG_VERSION")),
            step: self.options.step,
            fingerprint,
            model,
            chunk_size: self.chunk_size,
            storage: self.sharing,
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

    /// Writes what belongs to the whole, and last what makes it a checkpoint.
    fn finish(&self, last: LastFile) -> Result<(), CheckpointError> {
        match &self.place {
            Destination::Objects(objects) => {
                for (name, asset) in self.assets() {
                    objects.storage.put(name, asset)?;
                }
                if let Some((name, bytes)) = last {
                    objects.storage.put(name, &bytes)?;
                }
            }
            Destination::Folder(folder) => {
                for file in &self.files.files {
                    folder.complete(file)?;
                }
                let storage = LocalStorage::new(&folder.partial);
                for (name, asset) in self.assets() {
                    storage.put(name, asset)?;
                }
                if let Some((name, bytes)) = last {
                    storage.put(name, &bytes)?;
                }
                sync_folder(&folder.partial).map_err(|error| {
                    StorageError::io("sync", folder.partial.display().to_string(), &error)
                })?;
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
