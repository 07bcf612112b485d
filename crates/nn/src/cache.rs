//! Key-value cache.
//!
//! Each row has its own length, and a token's index in the cache is its
//! position. A row's keys are therefore where they would be in a batch of one,
//! and its results have the same bits in every batch.

use std::ops::Range;

use weightloom_dtensor::DTensor;
use weightloom_layout::{Layout, Shape};
use weightloom_tensor::Tensor;

use crate::error::NnError;
use crate::prefix_tree::concat_spans;

/// Keys and values of earlier tokens, per layer and row.
#[derive(Debug, Default)]
pub struct Cache {
    layers: Vec<Option<[DTensor; 2]>>,
    lengths: Vec<usize>,
    capacity: usize,
}

impl Cache {
    /// An empty cache with room for `capacity` positions. It grows as needed.
    pub fn new(rows: usize, capacity: usize) -> Self {
        Self { layers: Vec::new(), lengths: vec![0; rows], capacity: capacity.max(1) }
    }

    /// The number of positions in each row.
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// Drops the positions from `length` on in all rows.
    pub fn truncate(&mut self, length: usize) {
        for row in &mut self.lengths {
            *row = (*row).min(length);
        }
    }

    /// Repeats the first row.
    pub fn repeated(&self, rows: usize) -> Result<Self, NnError> {
        let repeat = |x: &DTensor| -> Result<DTensor, NnError> {
            let mut times = vec![1; x.shape().ndim()];
            times[0] = rows;
            Ok(x.narrow(0, 0, 1)?.repeat(&times)?)
        };
        let mut layers = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            layers.push(match layer {
                Some([keys, values]) => Some([repeat(keys)?, repeat(values)?]),
                None => None,
            });
        }
        let length = self.lengths.first().copied().unwrap_or(0);
        Ok(Self { layers, lengths: vec![length; rows], capacity: self.capacity })
    }

    /// Keeps only the given rows, in the given order.
    pub(crate) fn retain_rows(&mut self, rows: &[usize]) -> Result<(), NnError> {
        let chosen: Vec<i64> = rows.iter().map(|&row| row as i64).collect();
        let chosen = Tensor::from_slice(&chosen, &[rows.len()])?;
        for held in self.layers.iter_mut().flatten() {
            let layout = Layout::replicated(held[0].layout().mesh());
            let chosen = DTensor::distribute(held[0].dist(), &chosen, layout)?;
            for side in held.iter_mut() {
                *side = side.index_select(0, &chosen)?;
            }
        }
        self.lengths = rows.iter().map(|&row| self.lengths[row]).collect();
        Ok(())
    }

    /// Makes a cache with a row for each list of spans of the first row of
    /// another, which it frees layer by layer.
    pub(crate) fn from_row(
        mut other: Self,
        rows: &[Vec<Range<usize>>],
        capacity: usize,
    ) -> Result<Self, NnError> {
        let mut cache = Self::new(rows.len(), capacity);
        for layer in 0..other.layers.len() {
            let Some([keys, values]) = other.layers[layer].take() else { continue };
            let rows: Result<Vec<[DTensor; 2]>, NnError> = rows
                .iter()
                .map(|spans| Ok([concat_spans(&keys, spans)?, concat_spans(&values, spans)?]))
                .collect();
            cache.fill(layer, &rows?)?;
        }
        cache.advance(rows.iter().map(|spans| spans.iter().map(Range::len).sum()));
        Ok(cache)
    }

    /// Writes the keys and values of a layer, `[1, heads, length, width]` per
    /// row, to an empty cache.
    fn fill(&mut self, layer: usize, rows: &[[DTensor; 2]]) -> Result<(), NnError> {
        let longest = rows.iter().map(|[keys, _]| keys.shape()[2]).max().unwrap_or(0);
        let side = |side: usize| -> Result<DTensor, NnError> {
            let rows: Result<Vec<DTensor>, NnError> = rows
                .iter()
                .map(|row| {
                    let missing = longest - row[side].shape()[2];
                    Ok(if missing == 0 { row[side].clone() } else { row[side].pad(2, 0, missing, 0.0)? })
                })
                .collect();
            Ok(DTensor::cat(&rows?.iter().collect::<Vec<_>>(), 0)?)
        };
        self.append(layer, [&side(0)?, &side(1)?])?;
        Ok(())
    }

    pub(crate) fn advance(&mut self, by: impl Iterator<Item = usize>) {
        for (length, by) in self.lengths.iter_mut().zip(by) {
            *length += by;
        }
    }

    /// Appends keys and values of a layer to each row, and returns all up to the
    /// length of the longest row.
    pub(crate) fn append(&mut self, layer: usize, new: [&DTensor; 2]) -> Result<[DTensor; 2], NnError> {
        let time = new[0].shape()[2];
        let reach = self.lengths.iter().max().map_or(0, |longest| longest + time);
        if self.layers.len() <= layer {
            self.layers.resize_with(layer + 1, || None);
        }
        if reach > self.capacity {
            self.capacity = reach.next_multiple_of(64).max(self.capacity * 3 / 2);
        }
        let held = match self.layers[layer].take() {
            Some(held) if held[0].shape()[2] >= self.capacity => held,
            held => {
                let mut larger = [zeros_like(new[0], self.capacity)?, zeros_like(new[1], self.capacity)?];
                for (larger, old) in larger.iter_mut().zip(held.iter().flatten()) {
                    larger.assign(2, 0, old)?;
                }
                larger
            }
        };
        let [mut keys, mut values] = held;
        let starts = &self.lengths;
        if starts.iter().all(|start| *start == starts[0]) {
            let start = starts.first().copied().unwrap_or(0);
            keys.assign(2, start, new[0])?;
            values.assign(2, start, new[1])?;
        } else {
            keys.assign_at(starts, new[0])?;
            values.assign_at(starts, new[1])?;
        }
        let seen = [keys.narrow(2, 0, reach)?, values.narrow(2, 0, reach)?];
        self.layers[layer] = Some([keys, values]);
        Ok(seen)
    }
}

/// Zeros in the layout of `like`, with `capacity` positions.
fn zeros_like(like: &DTensor, capacity: usize) -> Result<DTensor, NnError> {
    let mut shape = like.shape().to_vec();
    shape[2] = capacity;
    let shape = Shape::new(&shape)?;
    let layout: Layout = like.layout();
    let local = layout.local_shape(&shape, like.dist().rank())?;
    let zeros = Tensor::zeros(like.dtype(), &local, like.device())?;
    Ok(DTensor::from_local(like.dist(), zeros, layout, &shape)?)
}
