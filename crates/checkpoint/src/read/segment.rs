//! Segments: runs of elements that are contiguous in a file, with their
//! destinations.

use weightloom_layout::{Dims, Region};

use crate::index::Tile;

/// Contiguous elements of a file, or one row of packed elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// The offset of the first byte in the file.
    pub(super) offset: u64,
    /// The destination of the first element, in elements.
    pub(super) target: usize,
    /// Number of elements.
    pub(super) count: usize,
    /// Their distance in the destination, in elements.
    pub(super) step: usize,
}

/// One dim of an iteration.
#[derive(Clone, Copy, Debug)]
struct Axis {
    size: usize,
    /// Bytes between neighbours in the file.
    source: u64,
    /// Elements between neighbours in the destination.
    target: usize,
}

/// Iterates over a region of a tile in file order.
pub(super) struct Segments {
    outer: Vec<Axis>,
    inner: Axis,
    /// Dims along which the same bytes repeat.
    repeats: Vec<Axis>,
    index: Vec<usize>,
    offset: u64,
    target: usize,
    remaining: usize,
}

impl Segments {
    /// The elements of `part`, which lies in both the tile and the job. For
    /// packed codecs, a segment is a row along the packed dim.
    pub(super) fn new(tile: &Tile, width: u64, part: &Region, job: &Region) -> Self {
        let strides = job.shape().strides();
        let packed = tile.codec.packed_dim();
        let (mut offset, mut target) = (tile.offset, 0);
        let mut axes = Vec::with_capacity(part.ndim());
        let mut repeats = Vec::new();
        let mut inner = Axis { size: 1, source: width, target: 1 };
        for dim in 0..part.ndim() {
            let ahead = part.start()[dim] - tile.region.start()[dim];
            target += (part.start()[dim] - job.start()[dim]) * strides[dim];
            let axis = Axis { size: part.size()[dim], source: tile.strides[dim], target: strides[dim] };
            if packed == Some(dim) {
                inner = axis;
                continue;
            }
            offset += ahead as u64 * tile.strides[dim];
            match (axis.size, axis.source) {
                (1, _) => {}
                (_, 0) if packed.is_none() => repeats.push(axis),
                _ => axes.push(axis),
            }
        }
        // File order: the smallest strides come last.
        axes.sort_by_key(|axis| std::cmp::Reverse(axis.source));
        if packed.is_none() {
            // Merge dims that are contiguous on both sides.
            while let Some(&axis) = axes.last() {
                let follows = inner.source * inner.size as u64 == axis.source;
                let alike = inner.size == 1 || inner.target * inner.size == axis.target;
                if !follows || !alike {
                    break;
                }
                let step = if inner.size == 1 { axis.target } else { inner.target };
                inner = Axis { size: inner.size * axis.size, source: width, target: step };
                axes.pop();
            }
        }
        let remaining = if part.is_empty() { 0 } else { axes.iter().map(|axis| axis.size).product() };
        Self { index: vec![0; axes.len()], outer: axes, inner, repeats, offset, target, remaining }
    }

    /// The destinations of repeated elements.
    pub(super) fn repeats(&self) -> Repeats {
        Repeats(self.repeats.clone())
    }
}

/// The destinations of an element that is stored once and repeated.
pub(super) struct Repeats(Vec<Axis>);

impl Repeats {
    pub(super) fn is_single(&self) -> bool {
        self.0.is_empty()
    }

    /// Distances from the first destination, in elements; the first one is 0.
    pub(super) fn each(&self) -> impl Iterator<Item = usize> {
        let count: usize = self.0.iter().map(|axis| axis.size).product();
        (0..count).map(|number| {
            let mut rest = number;
            let steps = self.0.iter().map(|axis| {
                let step = rest % axis.size;
                rest /= axis.size;
                step * axis.target
            });
            steps.sum()
        })
    }
}

impl Iterator for Segments {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        if self.remaining == 0 {
            return None;
        }
        self.remaining -= 1;
        let found = Segment {
            offset: self.offset,
            target: self.target,
            count: self.inner.size,
            step: self.inner.target,
        };
        for (axis, index) in self.outer.iter().zip(&mut self.index).rev() {
            *index += 1;
            self.offset += axis.source;
            self.target += axis.target;
            if *index < axis.size {
                break;
            }
            self.offset -= axis.source * axis.size as u64;
            self.target -= axis.target * axis.size;
            *index = 0;
        }
        Some(found)
    }
}

/// Whether a tile's elements are stored in the order of the tensor, so that a
/// range of the tensor is a range of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Tensor,
    Other,
}

/// The order of a tile's elements.
pub(crate) fn order(tile: &Tile) -> Order {
    let dims: Dims = (0..tile.region.ndim()).filter(|&dim| tile.region.size()[dim] > 1).collect();
    let last = dims.last().copied();
    if tile.codec.packed_dim().is_some_and(|packed| last.is_some_and(|last| last != packed)) {
        return Order::Other;
    }
    let strides =
        dims.iter().filter(|&&dim| tile.codec.packed_dim() != Some(dim)).map(|&dim| tile.strides[dim]);
    if strides.is_sorted_by(|a, b| a >= b) { Order::Tensor } else { Order::Other }
}
