//! Keys and values of what was read before.
//!
//! Each row has its own length, and a token's place in the cache is its
//! position. So a row's keys stand where they would stand if it were alone, and
//! its results are the same bits in every batch.

use weightloom_dtensor::DTensor;
use weightloom_layout::{Layout, Shape};
use weightloom_tensor::Tensor;

use crate::error::NnError;

/// Keys and values of what was read before, for each layer and row.
#[derive(Debug, Default)]
pub struct Cache {
    layers: Vec<Option<[DTensor; 2]>>,
    lengths: Vec<usize>,
    capacity: usize,
}

impl Cache {
    /// An empty cache for so many rows, with room for so many positions. It
    /// grows if they are not enough.
    pub fn new(rows: usize, capacity: usize) -> Self {
        Self { layers: Vec::new(), lengths: vec![0; rows], capacity: capacity.max(1) }
    }

    /// How far each row has been read.
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// Forgets what stands behind a length, in all rows.
    pub fn truncate(&mut self, length: usize) {
        for row in &mut self.lengths {
            *row = (*row).min(length);
        }
    }

    /// A cache of so many rows that all begin with this one's first row.
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

    /// Keeps some rows alone, in the order given.
    pub(crate) fn keep(&mut self, rows: &[usize]) -> Result<(), NnError> {
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

    /// Writes keys and values of a layer into rows that are all empty, `[1,
    /// heads, length, width]` for each.
    pub(crate) fn fill(&mut self, layer: usize, rows: &[[DTensor; 2]]) -> Result<(), NnError> {
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
        self.extended(layer, [&side(0)?, &side(1)?])?;
        Ok(())
    }

    pub(crate) fn advance(&mut self, by: impl Iterator<Item = usize>) {
        for (length, by) in self.lengths.iter_mut().zip(by) {
            *length += by;
        }
    }

    /// Keys and values of a layer with new ones behind those of each row, as
    /// far as the longest row reaches.
    pub(crate) fn extended(&mut self, layer: usize, new: [&DTensor; 2]) -> Result<[DTensor; 2], NnError> {
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
                let mut larger = [empty(new[0], self.capacity)?, empty(new[1], self.capacity)?];
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

/// Zeros like some keys, with room for more positions.
fn empty(like: &DTensor, capacity: usize) -> Result<DTensor, NnError> {
    let mut shape = like.shape().to_vec();
    shape[2] = capacity;
    let shape = Shape::new(&shape)?;
    let layout: Layout = like.layout();
    let local = layout.local_shape(&shape, like.dist().rank())?;
    let zeros = Tensor::zeros(like.dtype(), &local, like.device())?;
    Ok(DTensor::from_local(like.dist(), zeros, layout, &shape)?)
}
