//! Codecs: how stored bytes encode elements.

use smallvec::{SmallVec, smallvec};
use weightloom_layout::{DType, Region};

use crate::formats::gguf::BlockFormat;
use crate::index::{FileId, Tile};

/// Encoding of a tile's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Codec {
    /// Plain elements of the tensor's dtype.
    Raw,
    /// Quantised blocks that contain their scales, as in GGUF.
    Blocks(BlockCodec),
    /// Quantised elements with separate scales and biases, as in MLX.
    Affine(Box<AffineCodec>),
}

/// Elements packed into blocks along one dim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCodec {
    /// The encoding of a block.
    pub format: BlockFormat,
    /// The dim along which elements are packed.
    pub dim: usize,
    /// Elements of the first block before the region.
    pub lead: usize,
}

/// Elements packed into 32-bit words along one dim, lowest bits first, with
/// one scale and one bias for each group of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AffineCodec {
    /// Bits of one element: 2, 3, 4, 5, 6 or 8.
    pub bits: usize,
    /// Elements that share a scale and a bias.
    pub group: usize,
    /// The dim along which elements are packed.
    pub dim: usize,
    /// Elements of the row before the region.
    pub lead: usize,
    /// The first row's scales. They have the tensor's dtype.
    pub scales: GroupParams,
    /// The first row's biases. They have the tensor's dtype.
    pub biases: GroupParams,
}

/// Where the scales or the biases of the groups are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupParams {
    /// In which file.
    pub file: FileId,
    /// The offset of the first row's values.
    pub offset: u64,
    /// Bytes between rows along each dim of the tensor; 0 for the packed dim.
    pub strides: crate::index::Strides,
}

impl BlockCodec {
    /// Bytes of the blocks that hold `count` elements after the lead.
    pub(crate) fn row_bytes(&self, count: usize) -> u64 {
        let blocks = (self.lead + count).div_ceil(self.format.elements());
        blocks as u64 * self.format.bytes() as u64
    }
}

impl AffineCodec {
    /// Offset and length of the words that hold `count` elements after the
    /// lead, relative to the row's first word.
    pub(crate) fn word_bytes(&self, count: usize) -> (u64, u64) {
        let first = self.lead * self.bits / 32 * 4;
        let end = ((self.lead + count) * self.bits).div_ceil(32) * 4;
        (first as u64, (end - first) as u64)
    }

    /// Offset and length of the scales or biases of `count` elements.
    pub(crate) fn side_bytes(&self, count: usize, width: usize) -> (u64, u64) {
        let first = self.lead / self.group * width;
        let end = (self.lead + count).div_ceil(self.group) * width;
        (first as u64, (end - first) as u64)
    }
}

impl Codec {
    /// The name of the encoding; `None` for plain elements.
    pub fn name(&self) -> Option<String> {
        match self {
            Self::Raw => None,
            Self::Blocks(blocks) => Some(blocks.format.to_string()),
            Self::Affine(affine) => Some(format!("affine {} bits, groups of {}", affine.bits, affine.group)),
        }
    }

    /// The dim along which elements are packed, if they are.
    pub fn packed_dim(&self) -> Option<usize> {
        match self {
            Self::Raw => None,
            Self::Blocks(blocks) => Some(blocks.dim),
            Self::Affine(affine) => Some(affine.dim),
        }
    }

    /// The byte ranges that a tile covers, from its first to its last byte.
    pub(crate) fn spans(&self, tile: &Tile, dtype: DType) -> SmallVec<[(FileId, u64, u128); 3]> {
        if tile.region.is_empty() {
            return SmallVec::new();
        }
        let size = tile.region.size();
        let reach = |strides: &[u64], last: u128| -> u128 {
            let steps = strides.iter().zip(size).map(|(&stride, &n)| u128::from(stride) * (n as u128 - 1));
            steps.sum::<u128>() + last
        };
        match self {
            Self::Raw => {
                smallvec![(tile.file, tile.offset, reach(&tile.strides, dtype.size() as u128))]
            }
            Self::Blocks(blocks) => {
                let row = u128::from(blocks.row_bytes(size[blocks.dim]));
                smallvec![(tile.file, tile.offset, reach(&tile.strides, row))]
            }
            Self::Affine(affine) => {
                let count = size[affine.dim];
                let (skip, words) = affine.word_bytes(count);
                let (skipped, values) = affine.side_bytes(count, dtype.size());
                let side = |side: &GroupParams| {
                    let length = reach(&side.strides, u128::from(skipped + values));
                    (side.file, side.offset, length)
                };
                smallvec![
                    (tile.file, tile.offset, reach(&tile.strides, u128::from(skip + words))),
                    side(&affine.scales),
                    side(&affine.biases),
                ]
            }
        }
    }

    /// Bytes that a region's elements take as stored.
    pub(crate) fn stored_bytes(&self, region: &Region, dtype: DType) -> u64 {
        let volume = region.volume() as u64;
        let rows = |dim: usize| match region.size()[dim] as u64 {
            0 => 0,
            packed => volume / packed,
        };
        match self {
            Self::Raw => volume.saturating_mul(dtype.size() as u64),
            Self::Blocks(blocks) => rows(blocks.dim) * blocks.row_bytes(region.size()[blocks.dim]),
            Self::Affine(affine) => {
                let count = region.size()[affine.dim];
                let (_, words) = affine.word_bytes(count);
                let (_, values) = affine.side_bytes(count, dtype.size());
                rows(affine.dim) * (words + 2 * values)
            }
        }
    }
}
