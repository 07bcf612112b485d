//! Native checkpoints: a Hugging Face folder with a manifest.

use std::collections::BTreeMap;

use weightloom_layout::Region;

use super::safetensors::{self, Header};
use crate::error::CheckpointError;
use crate::index::{Blob, FileId, Format, Index, StoredFile, TensorEntry};
use crate::manifest::{
    EntryKind, FileSharing, MANIFEST_FILE, Manifest, ManifestError, ManifestFile, ManifestTensor, digest_of,
};
use crate::storage::Storage;

/// Indexes the checkpoint of a manifest. Every file must have the length and the
/// header that it was committed with.
pub fn index(storage: &dyn Storage, manifest: &Manifest) -> Result<Index, CheckpointError> {
    let mut files = Vec::new();
    let mut tensors: BTreeMap<String, TensorEntry> = BTreeMap::new();
    let mut blobs = BTreeMap::new();
    for file in &manifest.files {
        let id = FileId(files.len() as u32);
        let header = header_of(storage, file)?;
        files.push(StoredFile { name: file.name.clone(), length: file.length });
        for (name, info) in &header.tensors {
            let wrong = || damaged(ManifestError::Tensor { tensor: name.clone() });
            let said = manifest.tensors.get(name).ok_or_else(wrong)?;
            let stored = safetensors::entry(name, info, header.data, id)
                .map_err(|error| CheckpointError::format(&file.name, error))?;
            let entry = placed(manifest.storage, name, said, stored, &header).ok_or_else(wrong)?;
            match said.kind {
                EntryKind::Tensor => match tensors.get_mut(name) {
                    Some(known) => known.tiles.extend(entry.tiles),
                    None => {
                        tensors.insert(name.clone(), entry);
                    }
                },
                EntryKind::Bytes => {
                    let tile = &entry.tiles[0];
                    let blob = Blob { file: id, offset: tile.offset, length: entry.bytes() };
                    if blobs.insert(name.clone(), blob).is_some() {
                        return Err(wrong());
                    }
                }
            }
        }
    }
    for (name, said) in &manifest.tensors {
        let found = tensors.contains_key(name) || blobs.contains_key(name);
        // No rank writes a shard of an empty tensor.
        let unwritten = manifest.storage == FileSharing::PerRank && said.shape.volume() == 0;
        if !found && !unwritten {
            return Err(damaged(ManifestError::Tensor { tensor: name.clone() }));
        }
    }
    for (name, said) in &manifest.tensors {
        if said.kind == EntryKind::Tensor && !tensors.contains_key(name) {
            let entry = TensorEntry { dtype: said.dtype, shape: said.shape.clone(), tiles: Vec::new() };
            tensors.insert(name.clone(), entry);
        }
    }
    let mut metadata = BTreeMap::new();
    if let Some(step) = manifest.step {
        metadata.insert("step".to_owned(), step.to_string());
    }
    let index = Index::new(Format::Native, files, tensors)?.with_blobs(blobs)?.with_metadata(metadata);
    Ok(index.with_planner_data(manifest.planner_data.clone(), manifest.storage_data.clone()))
}

fn damaged(error: ManifestError) -> CheckpointError {
    CheckpointError::format(MANIFEST_FILE, error)
}

fn header_of(storage: &dyn Storage, file: &ManifestFile) -> Result<Header, CheckpointError> {
    let found = storage.length(&file.name)?;
    if found != file.length {
        let wrong = ManifestError::Length { expected: file.length, found };
        return Err(CheckpointError::format(&file.name, wrong));
    }
    let (bytes, length) = safetensors::read_header_bytes(storage, &file.name)?;
    if digest_of(&bytes) != file.header {
        return Err(CheckpointError::format(&file.name, ManifestError::Header));
    }
    Header::parse(&bytes[8..], length).map_err(|error| CheckpointError::format(&file.name, error))
}

/// The stored tensor as a tile of the manifest's tensor; `None` if they differ.
fn placed(
    arrangement: FileSharing,
    name: &str,
    said: &ManifestTensor,
    mut stored: TensorEntry,
    header: &Header,
) -> Option<TensorEntry> {
    if stored.dtype != said.dtype {
        return None;
    }
    match arrangement {
        FileSharing::Shared => (stored.shape == said.shape).then_some(stored),
        FileSharing::PerRank => {
            let start: Vec<usize> = serde_json::from_str(header.metadata.get(name)?).ok()?;
            let region = Region::new(&start, &stored.shape).ok()?;
            stored.tiles[0].region = region;
            stored.shape = said.shape.clone();
            Some(stored)
        }
    }
}

/// The file of one rank's shards. A tensor has one shard in a file, so further
/// ones are in further files: number `rank + ranks`, `rank + 2 * ranks` and so
/// on.
pub(crate) fn chunks_file(number: usize) -> String {
    format!("chunks-{number:05}.safetensors")
}

/// Whether a file is named like one of a rank's shards.
pub(crate) fn is_chunks_file(name: &str) -> bool {
    let rank = name.strip_prefix("chunks-").and_then(|rest| rest.strip_suffix(".safetensors"));
    rank.is_some_and(|rank| rank.len() >= 5 && rank.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The offsets of a rank's shards, as header metadata with one entry per tensor.
pub(crate) fn chunk_metadata<'a>(
    parts: impl IntoIterator<Item = (&'a str, &'a Region)>,
) -> BTreeMap<String, String> {
    let text = |region: &Region| serde_json::to_string(region.start()).unwrap_or_default();
    parts.into_iter().map(|(name, region)| (name.to_owned(), text(region))).collect()
}
