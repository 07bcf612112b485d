//! Where the rows of published parameters are among a decoder's.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::{Map, Value};
use weightloom_checkpoint::{
    CheckpointError, Codec, FileId, Format, Index, StoredFile, TensorEntry, Tile, row_major,
};
use weightloom_layout::{DType, Region, Shape};
use weightloom_nn::NnError;

use crate::adapter::{AdapterError, apply_keys, is_transposed};
use crate::error::HubError;
use crate::family::AnyFamily;

/// A parameter of a decoder that is made of rows of a published one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecoderPart {
    /// The decoder's parameter.
    pub name: String,
    /// The rows of the published parameter, in the order of the outputs.
    pub rows: Range<usize>,
}

/// The parameters of a decoder that published ones become: one for most, several for
/// those that the family splits. `published` are names with numbers of outputs.
///
/// A parameter whose rows the family reorders is an error.
pub fn decoder_parts(
    family: &dyn AnyFamily,
    config: &Map<String, Value>,
    published: &[(String, usize)],
) -> Result<Vec<Vec<DecoderPart>>, HubError> {
    let entries: Result<BTreeMap<String, TensorEntry>, HubError> =
        published.iter().map(|(name, rows)| Ok((name.clone(), column(*rows)?))).collect();
    let longest = published.iter().map(|(_, rows)| *rows as u64).max().unwrap_or(0);
    let files = vec![StoredFile { name: "rows".to_owned(), length: longest }];
    let index = Index::new(Format::Peft, files, entries?).map_err(CheckpointError::from)?;
    let about = |problem| HubError::Config { about: "base model".to_owned(), problem };
    let keys = family.keys(config, &index).map_err(about)?;
    let parts = |(name, entry): (&String, &TensorEntry)| {
        let reordered = || HubError::from(AdapterError::FusedModule { module: name.clone() });
        let entry = match is_transposed(&keys, name) {
            true => entry.transpose(0, 1).map_err(|_| reordered())?,
            false => entry.clone(),
        };
        let found = apply_keys(&keys, &index, name, &entry)?;
        let part = |(name, part): (String, TensorEntry)| {
            let (_, start) = part.contiguous_location(&Region::whole(&part.shape)).ok_or_else(reordered)?;
            let start = usize::try_from(start).map_err(|_| reordered())?;
            Ok(DecoderPart { name, rows: start..start + part.shape.volume() })
        };
        found.into_iter().map(part).collect::<Result<Vec<DecoderPart>, HubError>>()
    };
    let found: Result<BTreeMap<&String, Vec<DecoderPart>>, HubError> =
        index.tensors().iter().map(|entry| Ok((entry.0, parts(entry)?))).collect();
    let found = found?;
    Ok(published.iter().map(|(name, _)| found.get(name).cloned().unwrap_or_default()).collect())
}

/// A column of bytes, each of which is at the offset that is its row.
fn column(rows: usize) -> Result<TensorEntry, HubError> {
    let shape = Shape::new(&[rows, 1]).map_err(NnError::from)?;
    let tile = Tile {
        region: Region::whole(&shape),
        file: FileId(0),
        offset: 0,
        strides: row_major(&shape, 1),
        codec: Codec::Raw,
    };
    Ok(TensorEntry { dtype: DType::U8, shape, tiles: vec![tile] })
}
