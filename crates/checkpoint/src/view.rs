//! Views of stored tensors: narrow, join, stack, transpose, regroup.
//!
//! A view only rearranges tiles and reads nothing, so that reading a region of
//! it reads that region alone.

use weightloom_layout::{Dims, Region, Shape};

use crate::codec::{Codec, GroupParams};
use crate::index::{Strides, TensorEntry, Tile};

/// Why a view is impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ViewError {
    #[error("dim {dim} is out of range for shape {shape}")]
    NoSuchDim { dim: usize, shape: Shape },
    #[error("range {start}..{end} is out of bounds for dim {dim} of shape {shape}")]
    Range { dim: usize, start: usize, end: usize, shape: Shape },
    #[error("cannot join {first} and {second} along dim {dim}")]
    Join { first: String, second: String, dim: usize },
    #[error("cannot join zero tensors")]
    Nothing,
    #[error(
        "cannot regroup dim {dim} of {shape}: it is not a multiple of {outer} × {inner}, or is stored in several tiles"
    )]
    Groups { dim: usize, shape: Shape, outer: usize, inner: usize },
}

impl Tile {
    /// The sub-tile in a region, which must be inside the tile.
    fn sub_tile(&self, region: &Region) -> Self {
        let ahead: Dims = region.start().iter().zip(self.region.start()).map(|(a, b)| a - b).collect();
        let distance = |strides: &Strides| -> u64 {
            ahead.iter().zip(strides).map(|(&steps, &stride)| steps as u64 * stride).sum()
        };
        let mut tile = self.clone();
        tile.region = region.clone();
        // The packed dim has stride 0; `lead` counts its elements.
        tile.offset += distance(&self.strides);
        match &mut tile.codec {
            Codec::Raw => {}
            Codec::Blocks(blocks) => {
                blocks.lead += ahead[blocks.dim];
                let whole = blocks.lead / blocks.format.elements();
                tile.offset += (whole * blocks.format.bytes()) as u64;
                blocks.lead %= blocks.format.elements();
            }
            Codec::Affine(affine) => {
                affine.lead += ahead[affine.dim];
                affine.scales.offset += distance(&affine.scales.strides);
                affine.biases.offset += distance(&affine.biases.strides);
            }
        }
        tile
    }

    /// The tile with its dims in another order.
    fn permuted(&self, order: &[usize]) -> Self {
        let sizes = |values: &[usize]| -> Dims { order.iter().map(|&dim| values[dim]).collect() };
        let strides = |values: &Strides| -> Strides { order.iter().map(|&dim| values[dim]).collect() };
        let place = |dim: usize| order.iter().position(|&from| from == dim).unwrap_or(dim);
        let mut tile = self.clone();
        tile.region = region(&sizes(self.region.start()), &sizes(self.region.size()));
        tile.strides = strides(&self.strides);
        match &mut tile.codec {
            Codec::Raw => {}
            Codec::Blocks(blocks) => blocks.dim = place(blocks.dim),
            Codec::Affine(affine) => {
                affine.dim = place(affine.dim);
                for side in [&mut affine.scales, &mut affine.biases] {
                    side.strides = strides(&side.strides);
                }
            }
        }
        tile
    }
}

fn region(start: &[usize], size: &[usize]) -> Region {
    Region::new(start, size).unwrap_or_else(|_| Region::whole(&Shape::default()))
}

impl TensorEntry {
    fn check_dim(&self, dim: usize) -> Result<(), ViewError> {
        if dim < self.shape.ndim() {
            Ok(())
        } else {
            Err(ViewError::NoSuchDim { dim, shape: self.shape.clone() })
        }
    }

    /// The tensor in a range of one dim.
    pub fn narrow(&self, dim: usize, range: std::ops::Range<usize>) -> Result<Self, ViewError> {
        self.check_dim(dim)?;
        if range.start > range.end || range.end > self.shape[dim] {
            let (start, end, shape) = (range.start, range.end, self.shape.clone());
            return Err(ViewError::Range { dim, start, end, shape });
        }
        let wanted = Region::whole(&self.shape).with_range(dim, range.clone());
        let tiles = self.tiles.iter().filter_map(|tile| {
            let part = tile.region.intersect(&wanted).filter(|part| !part.is_empty())?;
            let mut tile = tile.sub_tile(&part);
            let moved = part.range(dim).start - range.start;
            tile.region = part.with_range(dim, moved..moved + part.size()[dim]);
            Some(tile)
        });
        Ok(Self { dtype: self.dtype, shape: wanted.shape(), tiles: tiles.collect() })
    }

    /// Concatenates tensors along a dim.
    pub fn join(dim: usize, parts: &[Self]) -> Result<Self, ViewError> {
        let first = parts.first().ok_or(ViewError::Nothing)?;
        first.check_dim(dim)?;
        let mut sizes = first.shape.to_vec();
        let mut tiles = Vec::new();
        let mut start = 0;
        for part in parts {
            let alike = part.dtype == first.dtype
                && part.shape.ndim() == first.shape.ndim()
                && (0..sizes.len()).all(|other| other == dim || part.shape[other] == first.shape[other]);
            let shown = |entry: &Self| format!("{} {}", entry.dtype, entry.shape);
            let refused = || ViewError::Join { first: shown(first), second: shown(part), dim };
            if !alike {
                return Err(refused());
            }
            for tile in &part.tiles {
                let range = tile.region.range(dim);
                let region = tile.region.with_range(dim, range.start + start..range.end + start);
                tiles.push(Tile { region, ..tile.clone() });
            }
            start += part.shape[dim];
            sizes[dim] = start;
            Shape::new(&sizes).map_err(|_| refused())?;
        }
        let shape = Shape::new(&sizes).map_err(|_| ViewError::Nothing)?;
        Ok(Self { dtype: first.dtype, shape, tiles })
    }

    /// The tensor with a new first dim of one element.
    fn lifted(&self) -> Result<Self, ViewError> {
        let lift = |values: &[usize], first: usize| -> Dims {
            std::iter::once(first).chain(values.iter().copied()).collect()
        };
        let strides =
            |values: &Strides| -> Strides { std::iter::once(0).chain(values.iter().copied()).collect() };
        let shape = Shape::new(&lift(&self.shape, 1)).map_err(|_| ViewError::Nothing)?;
        let tiles = self.tiles.iter().map(|tile| {
            let mut tile = tile.clone();
            tile.region = region(&lift(tile.region.start(), 0), &lift(tile.region.size(), 1));
            tile.strides = strides(&tile.strides);
            match &mut tile.codec {
                Codec::Raw => {}
                Codec::Blocks(blocks) => blocks.dim += 1,
                Codec::Affine(affine) => {
                    affine.dim += 1;
                    for side in [&mut affine.scales, &mut affine.biases] {
                        side.strides = strides(&side.strides);
                    }
                }
            }
            tile
        });
        Ok(Self { dtype: self.dtype, tiles: tiles.collect(), shape })
    }

    /// Stacks tensors of one shape along a new first dim.
    pub fn stack(parts: &[Self]) -> Result<Self, ViewError> {
        Self::join(0, &parts.iter().map(Self::lifted).collect::<Result<Vec<_>, _>>()?)
    }

    /// The inverse of [`stack`](Self::stack).
    pub fn unstack(&self) -> Result<Vec<Self>, ViewError> {
        self.check_dim(0)?;
        let lower = |values: &[usize]| -> Dims { values[1..].iter().copied().collect() };
        let strides = |values: &Strides| -> Strides { values[1..].iter().copied().collect() };
        let one = |number: usize| {
            let refused =
                || ViewError::Groups { dim: 0, shape: self.shape.clone(), outer: self.shape[0], inner: 1 };
            let mut part = self.narrow(0, number..number + 1)?;
            part.shape = Shape::new(&lower(&part.shape)).map_err(|_| ViewError::Nothing)?;
            for tile in &mut part.tiles {
                tile.region = region(&lower(tile.region.start()), &lower(tile.region.size()));
                tile.strides = strides(&tile.strides);
                match &mut tile.codec {
                    Codec::Raw => {}
                    Codec::Blocks(blocks) => blocks.dim = blocks.dim.checked_sub(1).ok_or_else(refused)?,
                    Codec::Affine(affine) => {
                        affine.dim = affine.dim.checked_sub(1).ok_or_else(refused)?;
                        for side in [&mut affine.scales, &mut affine.biases] {
                            side.strides = strides(&side.strides);
                        }
                    }
                }
            }
            Ok(part)
        };
        (0..self.shape[0]).map(one).collect()
    }

    /// Swaps two dims.
    pub fn transpose(&self, first: usize, second: usize) -> Result<Self, ViewError> {
        self.check_dim(first)?;
        self.check_dim(second)?;
        let mut order: Dims = (0..self.shape.ndim()).collect();
        order.swap(first, second);
        let sizes: Dims = order.iter().map(|&dim| self.shape[dim]).collect();
        let shape = Shape::new(&sizes).map_err(|_| ViewError::Nothing)?;
        let tiles = self.tiles.iter().map(|tile| tile.permuted(&order)).collect();
        Ok(Self { dtype: self.dtype, shape, tiles })
    }

    /// Transposes a dim of `outer × inner × rest` elements to
    /// `outer × rest × inner`: `regroup(0, heads, head_size / 2)` takes rotary
    /// weights from interleaved pairs to halves, and `regroup(0, heads, 2)`
    /// takes them back.
    pub fn regroup(&self, dim: usize, outer: usize, inner: usize) -> Result<Self, ViewError> {
        self.check_dim(dim)?;
        let size = self.shape[dim];
        let refused = || ViewError::Groups { dim, shape: self.shape.clone(), outer, inner };
        let groups = outer.checked_mul(inner).filter(|groups| *groups > 0).ok_or_else(refused)?;
        if !size.is_multiple_of(groups) {
            return Err(refused());
        }
        let rest = size / groups;
        let mut tiles = Vec::new();
        for tile in &self.tiles {
            if tile.region.size()[dim] != size || tile.codec.packed_dim() == Some(dim) {
                return Err(refused());
            }
            for group in 0..outer {
                for place in 0..rest {
                    // Elements `place`, `place + rest`, … of the group.
                    let from = group * inner * rest + place;
                    let to = (group * rest + place) * inner;
                    let one = tile.sub_tile(&tile.region.with_range(dim, from..from + 1));
                    let mut spread = one.clone();
                    spread.region = tile.region.with_range(dim, to..to + inner);
                    spread.strides[dim] *= rest as u64;
                    if let Codec::Affine(affine) = &mut spread.codec {
                        let widen = |side: &mut GroupParams| side.strides[dim] *= rest as u64;
                        widen(&mut affine.scales);
                        widen(&mut affine.biases);
                    }
                    tiles.push(spread);
                }
            }
        }
        Ok(Self { dtype: self.dtype, shape: self.shape.clone(), tiles })
    }
}
