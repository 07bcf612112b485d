//! Folders that torch writes for Hugging Face: one safetensors file per rank,
//! with the offsets of its shards in the header.

use std::collections::BTreeMap;

use serde::Deserialize;
use weightloom_layout::{Region, Shape};

use super::{DcpError, MAX_CUT_DIMS};
use crate::error::CheckpointError;
use crate::formats::safetensors::{self, read_header};
use crate::index::{FileId, Format, Index, StoredFile, TensorEntry, Tile};
use crate::storage::Storage;

/// The header's key of the offsets.
const SHARDING: &str = "DCP_SHARDING_INFO";

/// The offsets of one shard.
#[derive(Debug, Deserialize)]
struct ShardingInfo {
    saved_offsets: Vec<usize>,
}

/// The per-rank files of a folder.
pub fn shards(files: &[StoredFile]) -> Vec<&str> {
    let is_shard = |name: &&str| name.starts_with("shard-") && name.ends_with(".safetensors");
    let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).filter(is_shard).collect();
    let indexed = files.iter().any(|file| file.name == safetensors::INDEX_FILE);
    // An index file lists whole tensors.
    if indexed { Vec::new() } else { names }
}

/// Indexes the files of all ranks.
pub fn read_sharded(storage: &dyn Storage, names: &[&str]) -> Result<Index, CheckpointError> {
    let mut files = Vec::new();
    let mut tensors: BTreeMap<String, TensorEntry> = BTreeMap::new();
    for &name in names {
        let (header, length) = read_header(storage, name)?;
        let failed = |error: DcpError| CheckpointError::format(name, error);
        let id = FileId(files.len() as u32);
        files.push(StoredFile { name: name.to_owned(), length });
        let malformed = |entry: String| failed(DcpError::Field { entry, field: SHARDING });
        let header_malformed = || malformed("the header".to_owned());
        let json = header.metadata.get(SHARDING).ok_or_else(header_malformed)?;
        let saved: BTreeMap<String, ShardingInfo> =
            serde_json::from_str(json).map_err(|_| header_malformed())?;
        for (tensor, info) in &header.tensors {
            let whole = safetensors::entry(tensor, info, header.data, id)
                .map_err(|error| CheckpointError::format(name, error))?;
            let start = &saved.get(tensor).ok_or_else(|| malformed(format!("`{tensor}`")))?.saved_offsets;
            let region = Region::new(start, &whole.shape)
                .map_err(|problem| failed(DcpError::Region { tensor: tensor.clone(), problem }))?;
            add(&mut tensors, tensor, whole, region).map_err(failed)?;
        }
    }
    for (name, entry) in &tensors {
        if entry.tiles.len() > 1 && entry.shape.ndim() > MAX_CUT_DIMS {
            let error = DcpError::Dims { tensor: name.clone(), dims: entry.shape.ndim() };
            return Err(CheckpointError::format(names[0], error));
        }
    }
    Ok(Index::new(Format::Dcp, files, tensors)?)
}

/// Adds a shard to its tensor, whose shape grows to hold it.
fn add(
    tensors: &mut BTreeMap<String, TensorEntry>,
    name: &str,
    part: TensorEntry,
    region: Region,
) -> Result<(), DcpError> {
    let needed: Vec<usize> = (0..region.ndim()).map(|dim| region.range(dim).end).collect();
    let shape = |sizes: &[usize]| {
        Shape::new(sizes).map_err(|problem| DcpError::Shape { tensor: name.to_owned(), problem })
    };
    // Ranks without a shard have empty ones.
    let tiles = part.tiles.into_iter().filter(|_| !region.is_empty());
    let tiles = tiles.map(|tile| Tile { region: region.clone(), ..tile });
    let Some(known) = tensors.get_mut(name) else {
        let entry = TensorEntry { dtype: part.dtype, shape: shape(&needed)?, tiles: tiles.collect() };
        tensors.insert(name.to_owned(), entry);
        return Ok(());
    };
    if known.dtype != part.dtype || known.shape.ndim() != needed.len() {
        return Err(DcpError::Disagree { tensor: name.to_owned() });
    }
    let sizes: Vec<usize> = known.shape.iter().zip(&needed).map(|(a, b)| *a.max(b)).collect();
    known.shape = shape(&sizes)?;
    // Every rank writes its replica.
    if !known.tiles.iter().any(|tile| tile.region == region) {
        known.tiles.extend(tiles);
    }
    Ok(())
}
