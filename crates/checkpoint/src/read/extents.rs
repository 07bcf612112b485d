//! The byte extents of a region, without reading them.

use weightloom_layout::Region;

use super::segment::Segments;
use crate::codec::{AffineCodec, Codec, GroupParams};
use crate::index::{FileId, TensorEntry, Tile};

/// A contiguous byte range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// The file.
    pub file: FileId,
    /// The first byte.
    pub start: u64,
    /// One past the last.
    pub end: u64,
}

/// The extents that hold a region of a tensor, in file order. Extents at most
/// `gap` bytes apart are merged.
pub fn extents(entry: &TensorEntry, region: &Region, gap: u64) -> Vec<Extent> {
    let mut found = Vec::new();
    for tile in &entry.tiles {
        let Some(part) = tile.region.intersect(region).filter(|part| !part.is_empty()) else { continue };
        match &tile.codec {
            Codec::Raw => {
                let width = entry.dtype.size() as u64;
                for segment in Segments::new(tile, width, &part, region) {
                    let start = segment.offset;
                    found.push(Extent { file: tile.file, start, end: start + segment.count as u64 * width });
                }
            }
            Codec::Blocks(blocks) => {
                let (elements, bytes) = (blocks.format.elements(), blocks.format.bytes());
                let ahead = part.start()[blocks.dim] - tile.region.start()[blocks.dim] + blocks.lead;
                let skip = (ahead / elements * bytes) as u64;
                let row = ((ahead % elements + part.size()[blocks.dim]).div_ceil(elements) * bytes) as u64;
                rows(tile, &part, region, tile.file, skip, row, &mut found);
            }
            Codec::Affine(affine) => {
                let ahead = part.start()[affine.dim] - tile.region.start()[affine.dim];
                let here = AffineCodec { lead: affine.lead + ahead, ..(**affine).clone() };
                let count = part.size()[affine.dim];
                let (skip, words) = here.word_bytes(count);
                rows(tile, &part, region, tile.file, skip, words, &mut found);
                let (skip, values) = here.side_bytes(count, entry.dtype.size());
                for side in [&affine.scales, &affine.biases] {
                    rows(&params_tile(tile, side), &part, region, side.file, skip, values, &mut found);
                }
            }
        }
    }
    found.sort_unstable();
    let mut joined: Vec<Extent> = Vec::new();
    for extent in found {
        match joined.last_mut() {
            Some(last) if last.file == extent.file && extent.start <= last.end.saturating_add(gap) => {
                last.end = last.end.max(extent.end);
            }
            _ => joined.push(extent),
        }
    }
    joined
}

/// The tile with the rows of its scales or biases.
pub(super) fn params_tile(tile: &Tile, side: &GroupParams) -> Tile {
    Tile { file: side.file, offset: side.offset, strides: side.strides.clone(), ..tile.clone() }
}

fn rows(
    tile: &Tile,
    part: &Region,
    region: &Region,
    file: FileId,
    skip: u64,
    length: u64,
    found: &mut Vec<Extent>,
) {
    let starts = Segments::new(tile, 0, part, region).map(|segment| segment.offset + skip);
    found.extend(starts.map(|start| Extent { file, start, end: start + length }));
}
