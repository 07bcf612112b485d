//! Commit of a save: the manifest last, then the final name of the folder.

use std::collections::BTreeMap;

use weightloom_gang::{Gang, GangExt};

use super::batch::WriteOutcome;
use super::file_plan::StoredEntry;
use super::open_target::{Destination, OpenTarget};
use super::target::SaveFormat;
use crate::chunk_sums::ChunkSums;
use crate::collective_result;
use crate::error::CheckpointError;
use crate::fingerprint::Fingerprint;
use crate::formats::FormatError;
use crate::formats::dcp::{self, DcpError, DcpItem, DcpRank, DcpValue, METADATA_FILE};
use crate::manifest::{
    Asset, EntryKind, FileSharing, MANIFEST_FILE, Manifest, ManifestFile, ManifestTensor, digest_of,
};
use crate::state::Section;
use crate::storage::{LocalStorage, Storage};

/// The fingerprints of what was saved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fingerprints {
    pub(crate) whole: Fingerprint,
    pub(crate) model: Fingerprint,
}

/// The file that makes a folder a checkpoint, if there is one.
type LastFile = Option<(&'static str, Vec<u8>)>;

impl OpenTarget {
    /// Commits if all ranks wrote their items, and otherwise discards what was
    /// written. Returns the bytes that this rank wrote. Every rank.
    pub(crate) fn conclude(
        &self,
        written: Result<WriteOutcome, CheckpointError>,
        gang: &dyn Gang,
    ) -> Result<(u64, Fingerprints), CheckpointError> {
        let committed = collective_result(gang, written)
            .and_then(|written| Ok((written.bytes, self.commit(written.sums, gang)?)));
        committed.inspect_err(|_| self.discard(gang))
    }

    /// Commits what all ranks wrote. Every rank.
    fn commit(&self, sums: ChunkSums, gang: &dyn Gang) -> Result<Fingerprints, CheckpointError> {
        sums.combine(gang)?;
        // All ranks see the same sums and decide alike.
        if let Some(tensor) = self.incomplete(&sums) {
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
            0 => self.finish(last, manifest.files.iter().map(|file| (file.name.clone(), file.length))),
            _ => Ok(()),
        };
        collective_result(gang, committed)?;
        Ok(Fingerprints { whole: manifest.fingerprint, model: manifest.model })
    }

    /// An entry that was not written exactly once.
    fn incomplete(&self, sums: &ChunkSums) -> Option<String> {
        let is_written_once = |(name, entry): &(&String, &StoredEntry)| match entry.kind {
            EntryKind::Tensor => sums.covers_once(name),
            EntryKind::Bytes => sums.has_entry_once(name),
        };
        let unwritten = self.stored.iter().find(|entry| !is_written_once(entry));
        unwritten.map(|(name, _)| name.clone())
    }

    /// The bytes of DCP's `.metadata` for the files of all ranks.
    fn dcp_metadata(&self, gang: &dyn Gang) -> Result<Vec<u8>, CheckpointError> {
        let own = self.dcp.clone().unwrap_or_default();
        // JSON values travel as text, since the wire format is not self-describing.
        let values = own.values.into_iter().map(|value| (value.name, value.value.to_string()));
        let own: (Vec<DcpItem>, Vec<(String, String)>) = (own.items, values.collect());
        let failed = |error: FormatError| CheckpointError::format(METADATA_FILE, error);
        let mut ranks = Vec::new();
        for (items, texts) in gang.all_gather_objects(&own)? {
            let mut values = Vec::with_capacity(texts.len());
            for (name, text) in texts {
                let value = serde_json::from_str(&text).map_err(|error| {
                    failed(DcpError::Value { name: name.clone(), message: error.to_string() }.into())
                })?;
                values.push(DcpValue { name, value });
            }
            ranks.push(DcpRank { items, values });
        }
        dcp::metadata_with_paths(&ranks, &self.options.paths).map_err(failed)
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
            planner_data: self.planner_data.clone(),
            storage_data: self.storage_data.clone(),
            tensors,
        }
    }

    fn assets(&self) -> impl Iterator<Item = (&String, &Vec<u8>)> {
        self.options.assets.iter().chain(self.index_file.as_ref().map(|(name, bytes)| (name, bytes)))
    }

    /// Writes the last files and makes the checkpoint visible. Rank 0.
    fn finish(
        &self,
        last: LastFile,
        all_files: impl Iterator<Item = (String, u64)>,
    ) -> Result<(), CheckpointError> {
        match &self.destination {
            Destination::Objects { storage, .. } => self.put_assets(&**storage, last)?,
            Destination::Folder(folder) => {
                for file in &self.files.files {
                    folder.complete(file)?;
                }
                let assets = self.assets().map(|(name, bytes)| (name.clone(), bytes.len() as u64));
                let mut expected: BTreeMap<String, u64> = assets.collect();
                expected.extend(last.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.len() as u64)));
                expected.extend(all_files);
                self.put_assets(&LocalStorage::new(folder.partial()), last)?;
                folder.commit(&expected)?;
            }
        }
        Ok(())
    }

    /// Writes the assets, then the file that makes it a checkpoint.
    fn put_assets(&self, storage: &dyn Storage, last: LastFile) -> Result<(), CheckpointError> {
        for (name, asset) in self.assets() {
            storage.put(name, asset)?;
        }
        if let Some((name, bytes)) = last {
            storage.put(name, &bytes)?;
        }
        Ok(())
    }
}
