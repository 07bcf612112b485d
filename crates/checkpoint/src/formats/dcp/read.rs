//! Reading a folder with `.metadata`.

use std::collections::BTreeMap;

use serde_json::Value as Json;
use weightloom_layout::{DType, Region, Shape};

use super::records::{Chunk, Description, StorageInfo, TensorRecord, describe};
use super::{DcpError, MAX_CUT_DIMS, METADATA_FILE};
use crate::codec::Codec;
use crate::error::CheckpointError;
use crate::formats::FormatError;
use crate::formats::pickle::Pickle;
use crate::formats::safetensors::{self, Header, TensorInfo};
use crate::formats::torch::{Archive, dtype_of, place};
use crate::formats::window::Window;
use crate::index::{Blob, FileId, Format, Index, StoredFile, TensorEntry, Tile};
use crate::model_part::PATHS;
use crate::storage::Storage;

/// The longest metadata file that is read: some hundred bytes per chunk.
const MAX_METADATA: u64 = 512 << 20;

/// The longest header of the safetensors form.
const MAX_HEADER: u64 = 100_000_000;

/// The first bytes of an archive.
const ARCHIVE: &[u8] = b"PK\x03\x04";

/// The metadata files of a folder: one, or one per rank if the ranks saved
/// without communicating.
pub fn descriptions(files: &[StoredFile]) -> Vec<&str> {
    let rank = |name: &str| name.strip_prefix("__")?.strip_suffix(METADATA_FILE)?.parse::<u32>().ok();
    let names = || files.iter().map(|file| file.name.as_str());
    match names().find(|name| *name == METADATA_FILE) {
        Some(name) => vec![name],
        None => {
            let mut names: Vec<&str> = names().filter(|name| rank(name).is_some()).collect();
            names.sort_by_key(|name| rank(name));
            names
        }
    }
}

/// Indexes a folder by its metadata files.
pub fn read_folder(storage: &dyn Storage, descriptions: &[&str]) -> Result<Index, CheckpointError> {
    let mut inputs = Vec::new();
    for &name in descriptions {
        inputs.push((name, storage.read_all(name, MAX_METADATA)?));
    }
    let mut merged: Option<Description<'_>> = None;
    for (name, bytes) in &inputs {
        let failed = |error: FormatError| CheckpointError::format(name, error);
        let pickle = Pickle::read(bytes).map_err(|error| failed(error.into()))?;
        let description = describe(&pickle).map_err(failed)?;
        match &mut merged {
            Some(merged) => merged.merge(description).map_err(|error| failed(error.into()))?,
            None => merged = Some(description),
        }
    }
    let nothing = || CheckpointError::UnknownFormat { location: storage.location() };
    let description = merged.ok_or_else(nothing)?;
    let mut files = Files { storage, stored: Vec::new(), ids: BTreeMap::new() };
    let blobs = find_blobs(&description, &mut files)?;
    let tensors = find_tensors(&description, &mut files)?;
    let (tensors, blobs) = (renamed(tensors, &description)?, renamed(blobs, &description)?);
    let index = Index::new(Format::Dcp, files.stored, tensors)?.with_blobs(blobs)?;
    Ok(index.with_metadata(notes(&description)))
}

/// Entries under the names that they were saved with.
fn renamed<T>(
    entries: BTreeMap<String, T>,
    description: &Description<'_>,
) -> Result<BTreeMap<String, T>, CheckpointError> {
    let mut renamed = BTreeMap::new();
    for (torch_name, entry) in entries {
        let name = description.own_name(&torch_name).to_owned();
        if renamed.insert(name.clone(), entry).is_some() {
            return Err(CheckpointError::format(METADATA_FILE, DcpError::Twice { name }));
        }
    }
    Ok(renamed)
}

/// Metadata for the index: version and paths.
fn notes(description: &Description<'_>) -> BTreeMap<String, String> {
    let version = description.version.map(|version| ("dcp.version".to_owned(), version.to_owned()));
    let paths = match &description.paths {
        Json::Null => None,
        Json::Object(paths) => {
            let own = |(name, path): (&String, &Json)| (description.own_name(name).to_owned(), path.clone());
            Some(Json::Object(paths.iter().map(own).collect()))
        }
        other => Some(other.clone()),
    };
    version.into_iter().chain(paths.map(|paths| (PATHS.to_owned(), paths.to_string()))).collect()
}

/// The files that items are in.
struct Files<'a> {
    storage: &'a dyn Storage,
    stored: Vec<StoredFile>,
    ids: BTreeMap<String, FileId>,
}

impl Files<'_> {
    fn id(&mut self, name: &str) -> Result<FileId, CheckpointError> {
        if let Some(&id) = self.ids.get(name) {
            return Ok(id);
        }
        let id = FileId(self.stored.len() as u32);
        self.stored.push(StoredFile { name: name.to_owned(), length: self.storage.length(name)? });
        self.ids.insert(name.to_owned(), id);
        Ok(id)
    }
}

fn find_blobs(
    description: &Description<'_>,
    files: &mut Files<'_>,
) -> Result<BTreeMap<String, Blob>, CheckpointError> {
    let mut blobs = BTreeMap::new();
    for &name in &description.values {
        let no_place = || DcpError::NoPlace { name: name.to_owned(), offsets: Vec::new() };
        let place = description.places.get(&(name, None));
        let place = place.ok_or_else(|| CheckpointError::format(METADATA_FILE, no_place()))?;
        let file = files.id(place.file)?;
        blobs.insert(name.to_owned(), Blob { file, offset: place.offset, length: place.length });
    }
    Ok(blobs)
}

/// A chunk whose header must be read.
struct StoredChunk<'d, 'a> {
    tensor: usize,
    record: &'d TensorRecord<'a>,
    record_chunk: &'d Chunk,
    dtype: DType,
    region: Region,
    place: StorageInfo<'a>,
}

fn find_tensors(
    description: &Description<'_>,
    files: &mut Files<'_>,
) -> Result<BTreeMap<String, TensorEntry>, CheckpointError> {
    let failed = |error: DcpError| CheckpointError::format(METADATA_FILE, error);
    let mut entries = Vec::new();
    let mut parts: BTreeMap<&str, Vec<StoredChunk<'_, '_>>> = BTreeMap::new();
    for (tensor, record) in description.tensors.iter().enumerate() {
        let (entry, found) = plan(description, tensor, record).map_err(failed)?;
        entries.push(entry);
        for part in found {
            parts.entry(part.place.file).or_default().push(part);
        }
    }
    for (name, mut parts) in parts {
        let file = files.id(name)?;
        // In file order, the end of one item and the beginning of the next are
        // read at once.
        parts.sort_by_key(|part| part.place.offset);
        let mut reader = ChunkReader { window: Window::new(files.storage, name)?, end: 0, header: None };
        for part in parts {
            let tile = reader.tile(&part, file)?;
            entries[part.tensor].tiles.push(tile);
        }
    }
    let mut tensors = BTreeMap::new();
    for (record, entry) in description.tensors.iter().zip(entries) {
        if tensors.insert(record.name.to_owned(), entry).is_some() {
            return Err(failed(DcpError::Twice { name: record.name.to_owned() }));
        }
    }
    Ok(tensors)
}

/// A tensor without tiles, and its chunks.
fn plan<'d, 'a>(
    description: &'d Description<'a>,
    tensor: usize,
    record: &'d TensorRecord<'a>,
) -> Result<(TensorEntry, Vec<StoredChunk<'d, 'a>>), DcpError> {
    let name = || record.name.to_owned();
    let dtype = dtype_of(record.dtype)
        .ok_or_else(|| DcpError::DType { tensor: name(), dtype: record.dtype.to_owned() })?;
    let shape = Shape::new(&record.sizes).map_err(|problem| DcpError::Shape { tensor: name(), problem })?;
    if record.chunks.len() > 1 && shape.ndim() > MAX_CUT_DIMS {
        return Err(DcpError::Dims { tensor: name(), dims: shape.ndim() });
    }
    let mut parts = Vec::new();
    for chunk in &record.chunks {
        let region = Region::new(&chunk.offsets, &chunk.sizes)
            .map_err(|problem| DcpError::Region { tensor: name(), problem })?;
        region.check_inside(&shape).map_err(|problem| DcpError::Region { tensor: name(), problem })?;
        // Ranks without a shard have empty chunks.
        if region.is_empty() {
            continue;
        }
        let place = description.places.get(&(record.name, Some(chunk.offsets.clone())));
        let no_place = || DcpError::NoPlace { name: name(), offsets: chunk.offsets.clone() };
        let place = *place.ok_or_else(no_place)?;
        parts.push(StoredChunk { tensor, record, record_chunk: chunk, dtype, region, place });
    }
    Ok((TensorEntry { dtype, shape, tiles: Vec::new() }, parts))
}

/// Reads the chunk headers of one file.
struct ChunkReader<'a> {
    window: Window<'a>,
    /// Where the previous item ends.
    end: u64,
    /// The safetensors header that was read last.
    header: Option<EmbeddedHeader>,
}

/// A safetensors header inside a file.
struct EmbeddedHeader {
    /// Where it begins.
    start: u64,
    /// Where the data begin, from there on.
    data: u64,
    tensors: BTreeMap<String, TensorInfo>,
}

impl ChunkReader<'_> {
    fn tile(&mut self, chunk: &StoredChunk<'_, '_>, file: FileId) -> Result<Tile, CheckpointError> {
        let offset = chunk.place.offset;
        let begins =
            self.window.length().checked_sub(offset).is_some_and(|left| left >= ARCHIVE.len() as u64);
        if begins && self.window.bytes(offset, ARCHIVE.len())? == ARCHIVE {
            self.archived(chunk, file)
        } else {
            self.bare(chunk, file)
        }
    }

    fn differs(&self, chunk: &StoredChunk<'_, '_>) -> CheckpointError {
        let error =
            DcpError::ChunkMismatch { tensor: chunk.record.name.to_owned(), offset: chunk.place.offset };
        CheckpointError::format(self.window.name(), error)
    }

    /// A chunk stored as a `torch.save` archive.
    fn archived(&mut self, chunk: &StoredChunk<'_, '_>, file: FileId) -> Result<Tile, CheckpointError> {
        let StorageInfo { offset, length, .. } = chunk.place;
        // Items must not overlap.
        if offset < self.end {
            return Err(self.differs(chunk));
        }
        self.end = offset.saturating_add(length);
        let archive = Archive::read(&mut self.window, offset, length)?;
        let failed = |error: FormatError| CheckpointError::format(self.window.name(), error);
        let pickle = Pickle::read(&archive.pickle).map_err(|error| failed(error.into()))?;
        let placed = place(&pickle, &archive, chunk.record.name, pickle.root()).map_err(failed)?;
        let placed = placed.ok_or_else(|| self.differs(chunk))?;
        if placed.dtype != chunk.dtype || placed.shape[..] != chunk.record_chunk.sizes[..] {
            return Err(self.differs(chunk));
        }
        let region = chunk.region.clone();
        Ok(Tile { region, file, offset: placed.offset, strides: placed.strides, codec: Codec::Raw })
    }

    /// A chunk in a safetensors file at the offset that all chunks of this file
    /// share.
    fn bare(&mut self, chunk: &StoredChunk<'_, '_>, file: FileId) -> Result<Tile, CheckpointError> {
        let start = chunk.place.offset;
        if self.header.as_ref().is_none_or(|held| held.start != start) {
            let held = self.read_header(start)?.ok_or_else(|| self.differs(chunk))?;
            self.header = Some(held);
        }
        let name = chunk.record.name;
        let found = self.header.as_ref().and_then(|held| Some((held.data, held.tensors.get(name)?)));
        let (data, info) = found.ok_or_else(|| self.differs(chunk))?;
        let entry = safetensors::entry(name, info, start + data, file)
            .map_err(|error| CheckpointError::format(self.window.name(), error))?;
        if entry.dtype != chunk.dtype || entry.shape[..] != chunk.record_chunk.sizes[..] {
            return Err(self.differs(chunk));
        }
        Ok(Tile { region: chunk.region.clone(), ..entry.tiles[0].clone() })
    }

    fn read_header(&mut self, start: u64) -> Result<Option<EmbeddedHeader>, CheckpointError> {
        let Some(left) = self.window.length().checked_sub(start).filter(|&left| left >= 8) else {
            return Ok(None);
        };
        let claimed = self.window.bytes(start, 8)?.try_into().map_or(u64::MAX, u64::from_le_bytes);
        if claimed > (left - 8).min(MAX_HEADER) {
            return Ok(None);
        }
        let json = self.window.bytes(start + 8, claimed as usize)?.to_vec();
        let header =
            Header::parse(&json, left).map_err(|error| CheckpointError::format(self.window.name(), error))?;
        Ok(Some(EmbeddedHeader { start, data: header.data, tensors: header.tensors.into_iter().collect() }))
    }
}
