//! Scaled dot-product attention, block by block.
//!
//! Scores exist only for one block of queries and one of keys at a time. A
//! running maximum and sum make the softmax come out as if the whole row had
//! been there; their logarithm is kept for the backward pass, which computes
//! the scores again instead of keeping them.
//!
//! Every head of every batch is computed by itself and its blocks in order, so
//! results do not depend on threads or on the rest of the batch.

mod backward;
mod forward;
mod weights;

use weightloom_layout::{DType, Shape};

pub(crate) use backward::attention_gradient;
pub(crate) use forward::attention;

use super::matmul::{Matrix, Vectors, as_columns};
use crate::element::{Element, Float};
use crate::error::TensorError;
use crate::memory::Block;
use crate::storage::Storage;
use crate::tensor::Tensor;
use crate::view::View;

/// Queries and keys in a block: their scores fit in the L1 cache.
const BLOCK: usize = 64;

type Range = std::ops::Range<usize>;

/// Sizes and options of one attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub(crate) batch: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    pub(crate) width: usize,
    pub(crate) scale: f64,
    pub(crate) causal: bool,
    pub(crate) window: Option<usize>,
    pub(crate) soft_cap: Option<f64>,
}

impl Geometry {
    /// What attention to tensors of this dtype is computed in.
    pub(crate) fn computed_in(dtype: DType) -> DType {
        if dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }

    /// How many scores there are in all.
    pub(crate) fn scores(&self) -> u64 {
        let seen: usize = (0..self.queries).map(|query| self.seen(query).len()).sum();
        (seen * self.batch * self.heads) as u64
    }

    /// Keys that a query sees. The last query stands at the last key, so that
    /// a cache of earlier keys needs no further argument.
    fn seen(&self, query: usize) -> Range {
        let position = (query + self.keys).saturating_sub(self.queries);
        let end = if self.causal { (position + 1).min(self.keys) } else { self.keys };
        let start = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        // A query before the first key, with more queries than keys, sees none.
        let hidden = self.causal && query + self.keys < self.queries;
        if hidden { 0..0 } else { start.min(end)..end }
    }

    /// Key blocks that any of some queries sees.
    fn key_blocks(&self, queries: &Range) -> impl Iterator<Item = Range> + use<> {
        let start = queries.clone().map(|query| self.seen(query).start).min().unwrap_or(0);
        let end = queries.clone().map(|query| self.seen(query).end).max().unwrap_or(0);
        let keys = self.keys;
        (start / BLOCK..end.div_ceil(BLOCK)).map(move |block| block * BLOCK..((block + 1) * BLOCK).min(keys))
    }

    /// Heads that share keys and values.
    fn group(&self) -> usize {
        // Without heads there is nothing to group.
        (self.heads / self.kv_heads.max(1)).max(1)
    }
}

fn blocks(range: Range) -> impl Iterator<Item = Range> {
    range.clone().step_by(BLOCK).map(move |start| start..(start + BLOCK).min(range.end))
}

/// `[batch, heads, rows, width]` with the elements of a row side by side.
#[derive(Clone, Copy)]
struct Heads<'a, T> {
    elements: &'a [T],
    offset: usize,
    strides: [usize; 3],
    width: usize,
}

impl<'a, T: Element> Heads<'a, T> {
    fn new(x: &'a Tensor) -> Result<Self, TensorError> {
        let strides = x.strides();
        debug_assert!(strides[3] == 1 || x.shape()[3] == 1 || x.shape().volume() == 0);
        Ok(Self {
            elements: x.storage_elements("attention")?,
            offset: x.view().offset,
            strides: [strides[0], strides[1], strides[2]],
            width: x.shape()[3],
        })
    }

    /// One row.
    fn row(&self, batch: usize, head: usize, row: usize) -> &'a [T] {
        let [b, h, r] = self.strides;
        &self.elements[self.offset + batch * b + head * h + row * r..][..self.width]
    }
}

impl<'a, T: Float> Heads<'a, T> {
    /// Some rows of a head as a matrix of wide numbers: in place if they are
    /// that already, else in `space`.
    fn rows<'b>(
        &self,
        batch: usize,
        head: usize,
        rows: &Range,
        space: &'b mut [T::Wide],
    ) -> Matrix<'b, T::Wide>
    where
        'a: 'b,
    {
        if rows.is_empty() {
            return Matrix::new(&[], 0, self.width);
        }
        if T::COMPUTES_IN_ITSELF {
            let [b, h, r] = self.strides;
            let start = self.offset + batch * b + head * h + rows.start * r;
            return Matrix::strided(&bytemuck::cast_slice(self.elements)[start..], rows.len(), self.width, r);
        }
        for (out, row) in space.chunks_exact_mut(self.width).zip(rows.clone()) {
            widen(self.row(batch, head, row), out);
        }
        Matrix::new(&space[..rows.len() * self.width], rows.len(), self.width)
    }

    /// Rows of a head as columns, times a factor, a block of rows at a time: for
    /// each block and each column its [`BLOCK`] elements, zeros at the end of
    /// the last block.
    fn turned(&self, batch: usize, head: usize, rows: &Range, factor: T::Wide, out: &mut [T::Wide])
    where
        T::Wide: Vectors,
    {
        debug_assert_eq!(out.len(), rows.len().next_multiple_of(BLOCK) * self.width);
        let [b, h, r] = self.strides;
        for (here, out) in blocks(rows.clone()).zip(out.chunks_exact_mut((BLOCK * self.width).max(1))) {
            let start = self.offset + batch * b + head * h + here.start * r;
            let lines = Matrix::strided(&self.elements[start..], here.len(), self.width, r);
            as_columns(lines, BLOCK, factor, out);
        }
    }
}

fn widen<T: Float>(row: &[T], out: &mut [T::Wide]) {
    for (out, x) in out.iter_mut().zip(row) {
        *out = x.widen();
    }
}

fn narrow<T: Float>(row: &[T::Wide], out: &mut [T]) {
    for (out, &x) in out.iter_mut().zip(row) {
        *out = T::narrow(x);
    }
}

/// Which keys of a batch take part at all.
#[derive(Clone, Copy)]
struct Mask<'a> {
    /// `[batch, keys]`, or nothing if all do.
    seen: Option<&'a [u8]>,
    keys: usize,
}

impl<'a> Mask<'a> {
    fn new(mask: Option<&'a Tensor>, geometry: &Geometry) -> Result<Self, TensorError> {
        let seen = mask.map(|mask| mask.bytes("attention")).transpose()?;
        Ok(Self { seen, keys: geometry.keys })
    }

    fn of(&self, batch: usize, keys: &Range) -> Option<&'a [u8]> {
        self.seen.map(|seen| &seen[batch * self.keys + keys.start..batch * self.keys + keys.end])
    }
}

/// Memory for wide numbers while a head is computed.
struct Space<W> {
    block: Block,
    element: std::marker::PhantomData<W>,
}

impl<W: Vectors> Space<W> {
    fn new(count: usize) -> Result<Self, TensorError> {
        Ok(Self { block: Block::new(count * size_of::<W>())?, element: std::marker::PhantomData })
    }

    fn zeros(count: usize) -> Result<Self, TensorError> {
        let mut space = Self::new(count)?;
        space.elements_mut().fill(W::ZERO);
        Ok(space)
    }

    fn elements(&self) -> &[W] {
        bytemuck::cast_slice(self.block.bytes())
    }

    fn elements_mut(&mut self) -> &mut [W] {
        bytemuck::cast_slice_mut(self.block.bytes_mut())
    }
}

/// A new `[batch, heads, rows, width]` tensor whose rows are handed to those
/// who compute them. In memory heads lie inside rows, as projections make and
/// want them.
struct Rows<'a, T> {
    /// By batch and head.
    rows: Vec<Vec<&'a mut [T]>>,
}

impl<'a, T> Rows<'a, T> {
    fn new(out: &'a mut [T], [batch, heads, rows, width]: [usize; 4]) -> Self {
        let mut by_head: Vec<Vec<&'a mut [T]>> =
            (0..batch * heads).map(|_| Vec::with_capacity(rows)).collect();
        if out.is_empty() {
            return Self { rows: by_head };
        }
        for (number, row) in out.chunks_exact_mut(width).enumerate() {
            by_head[number / heads / rows * heads + number % heads].push(row);
        }
        Self { rows: by_head }
    }

    /// The rows of each `count` neighbouring heads.
    fn groups(self, count: usize) -> Vec<Vec<Vec<&'a mut [T]>>> {
        let mut groups = Vec::new();
        for (number, rows) in self.rows.into_iter().enumerate() {
            if number % count == 0 {
                groups.push(Vec::with_capacity(count));
            }
            if let Some(group) = groups.last_mut() {
                group.push(rows);
            }
        }
        groups
    }
}

/// The memory of a tensor as [`Rows`] fills it.
fn by_rows<T: Element>(block: Block, [batch, heads, rows, width]: [usize; 4]) -> Result<Tensor, TensorError> {
    let shape = Shape::new(&[batch, rows, heads, width])?;
    Ok(Tensor::new(Storage::cpu(block), View::contiguous(shape).permute(&[0, 2, 1, 3]), T::DTYPE))
}
