//! Scaled dot-product attention, block by block.
//!
//! Scores exist only for one block of queries and one of keys at a time (flash
//! attention). An online softmax keeps a running maximum and sum; their logarithm
//! is saved for the backward pass, which recomputes the scores.
//!
//! Heads are independent and their blocks are computed in order, so that results
//! do not depend on threads or on the rest of the batch.

mod backward;
mod documents;
mod forward;
mod weights;

use weightloom_layout::{DType, Shape};

pub(crate) use backward::attention_gradient;
pub(crate) use forward::attention;

pub(crate) use documents::check_documents;
use documents::{DocumentSpan, Documents};

use super::matmul::{Matrix, Vectors, as_columns};
use crate::backend::meta::{heads_inside_rows, output};
use crate::backend::{Cpu, Meta};
use crate::element::{Element, Float, with_float};
use crate::error::Result;
use crate::memory::Block;
use crate::storage::Storage;
use crate::tensor::Tensor;
use crate::view::View;

/// Attention kernels.
pub(crate) trait AttentionKernels {
    /// Attention, and the logarithm of each query's sum of weights.
    fn attention(&self, geometry: &Geometry, qkv: [&Tensor; 3], limit: KeyLimit<'_>) -> Result<[Tensor; 2]>;

    /// The gradients of queries, keys and values.
    fn attention_gradient(
        &self,
        geometry: &Geometry,
        qkv: [&Tensor; 3],
        limit: KeyLimit<'_>,
        out_and_logs: [&Tensor; 2],
        gradient: &Tensor,
    ) -> Result<[Tensor; 3]>;
}

impl AttentionKernels for Cpu {
    fn attention(&self, geometry: &Geometry, qkv: [&Tensor; 3], limit: KeyLimit<'_>) -> Result<[Tensor; 2]> {
        with_float!("attention", qkv[0].dtype(), T => attention::<T>(geometry, qkv, limit))
    }

    fn attention_gradient(
        &self,
        geometry: &Geometry,
        qkv: [&Tensor; 3],
        limit: KeyLimit<'_>,
        out_and_logs: [&Tensor; 2],
        gradient: &Tensor,
    ) -> Result<[Tensor; 3]> {
        with_float!("attention", qkv[0].dtype(), T => {
            attention_gradient::<T>(geometry, qkv, limit, out_and_logs, gradient)
        })
    }
}

/// Costs are those of whole rows: a meta tensor of document starts has no data.
impl AttentionKernels for Meta {
    fn attention(
        &self,
        geometry: &Geometry,
        [q, k, v]: [&Tensor; 3],
        _: KeyLimit<'_>,
    ) -> Result<[Tensor; 2]> {
        let logs = Shape::new(&[geometry.batch, geometry.heads, geometry.queries])?;
        let flops = geometry.scores() * (4 * geometry.width as u64 + 4);
        let out = output("attention", flops, &[q, k, v], q.shape(), q.dtype())?;
        Ok([heads_inside_rows(out)?, output("attention", 0, &[], &logs, Geometry::computed_in(q.dtype()))?])
    }

    fn attention_gradient(
        &self,
        geometry: &Geometry,
        [q, k, v]: [&Tensor; 3],
        _: KeyLimit<'_>,
        [out, logs]: [&Tensor; 2],
        gradient: &Tensor,
    ) -> Result<[Tensor; 3]> {
        let flops = geometry.scores() * (10 * geometry.width as u64 + 6);
        let of_q = output("attention", flops, &[q, k, v, out, logs, gradient], q.shape(), q.dtype())?;
        let like = |x: &Tensor| heads_inside_rows(output("attention", 0, &[], x.shape(), x.dtype())?);
        Ok([heads_inside_rows(of_q)?, like(k)?, like(v)?])
    }
}

/// What limits the keys of a query besides its position.
#[derive(Clone, Copy)]
pub(crate) enum KeyLimit<'a> {
    /// Nothing.
    None,
    /// A padding mask of bools, `[batch, keys]`.
    Padding(&'a Tensor),
    /// The first position of each position's document, `[batch, keys]` of `i64`.
    Documents(&'a Tensor),
}

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
    /// The dtype that attention of tensors of this dtype is computed in.
    pub(crate) fn computed_in(dtype: DType) -> DType {
        if dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }

    /// The number of scores that are not masked by position.
    pub(crate) fn scores(&self) -> u64 {
        let seen: usize = (0..self.queries).map(|query| self.seen(query).len()).sum();
        (seen * self.batch * self.heads) as u64
    }

    /// The keys that a query attends to. The last query has the position of the
    /// last key, so that a cache of earlier keys needs no further argument.
    fn seen(&self, query: usize) -> Range {
        let position = (query + self.keys).saturating_sub(self.queries);
        let end = if self.causal { (position + 1).min(self.keys) } else { self.keys };
        let start = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        // With more queries than keys, the first queries attend to none.
        let hidden = self.causal && query + self.keys < self.queries;
        if hidden { 0..0 } else { start.min(end)..end }
    }

    /// The key blocks that some queries attend to.
    fn key_blocks(&self, queries: &Range) -> impl Iterator<Item = Range> + use<> {
        let start = queries.clone().map(|query| self.seen(query).start).min().unwrap_or(0);
        let end = queries.clone().map(|query| self.seen(query).end).max().unwrap_or(0);
        let keys = self.keys;
        (start / BLOCK..end.div_ceil(BLOCK)).map(move |block| block * BLOCK..((block + 1) * BLOCK).min(keys))
    }

    /// The attention of one document by itself.
    fn within(&self, span: &DocumentSpan) -> Self {
        Self { queries: span.queries.len(), keys: span.keys.len(), ..*self }
    }

    /// Heads that share keys and values.
    fn group(&self) -> usize {
        (self.heads / self.kv_heads.max(1)).max(1)
    }
}

fn blocks(range: Range) -> impl Iterator<Item = Range> {
    range.clone().step_by(BLOCK).map(move |start| start..(start + BLOCK).min(range.end))
}

/// `[batch, heads, rows, width]` with contiguous rows.
#[derive(Clone, Copy)]
struct Heads<'a, T> {
    elements: &'a [T],
    offset: usize,
    strides: [usize; 3],
    width: usize,
}

impl<'a, T: Element> Heads<'a, T> {
    fn new(x: &'a Tensor) -> Result<Self> {
        let strides = x.strides();
        debug_assert!(strides[3] == 1 || x.shape()[3] == 1 || x.shape().volume() == 0);
        Ok(Self {
            elements: x.storage_elements("attention")?,
            offset: x.view().offset,
            strides: [strides[0], strides[1], strides[2]],
            width: x.shape()[3],
        })
    }

    /// Without the first rows.
    fn skip(self, rows: usize) -> Self {
        Self { offset: self.offset + rows * self.strides[2], ..self }
    }

    /// One row.
    fn row(&self, batch: usize, head: usize, row: usize) -> &'a [T] {
        let [b, h, r] = self.strides;
        &self.elements[self.offset + batch * b + head * h + row * r..][..self.width]
    }
}

impl<'a, T: Float> Heads<'a, T> {
    /// Some rows of a head as a matrix of wide numbers: in place if they are wide
    /// already, else in `space`.
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

    /// Rows of a head, transposed and scaled, one block of rows after another: for
    /// each block and each column [`BLOCK`] elements, padded with zeros.
    fn transposed(&self, batch: usize, head: usize, rows: &Range, factor: T::Wide, out: &mut [T::Wide])
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

/// The padding mask.
#[derive(Clone, Copy)]
struct Mask<'a> {
    /// `[batch, keys]`, or none without padding.
    seen: Option<&'a [u8]>,
    keys: usize,
}

impl<'a> Mask<'a> {
    fn new(limit: KeyLimit<'a>, geometry: &Geometry) -> Result<Self> {
        let seen = match limit {
            KeyLimit::Padding(mask) => Some(mask.bytes("attention")?),
            KeyLimit::None | KeyLimit::Documents(_) => None,
        };
        Ok(Self { seen, keys: geometry.keys })
    }

    fn of(&self, batch: usize, keys: &Range) -> Option<&'a [u8]> {
        self.seen.map(|seen| &seen[batch * self.keys + keys.start..batch * self.keys + keys.end])
    }
}

/// Scratch memory for wide numbers.
struct Space<W> {
    block: Block,
    element: std::marker::PhantomData<W>,
}

impl<W: Vectors> Space<W> {
    fn new(count: usize) -> Result<Self> {
        Ok(Self { block: Block::new(count * size_of::<W>())?, element: std::marker::PhantomData })
    }

    fn zeros(count: usize) -> Result<Self> {
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

/// The rows of a new `[batch, heads, rows, width]` tensor, stored as
/// `[batch, rows, heads, width]`, as projections read and write it.
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

/// The tensor that [`Rows`] filled.
fn by_rows<T: Element>(block: Block, [batch, heads, rows, width]: [usize; 4]) -> Result<Tensor> {
    let shape = Shape::new(&[batch, rows, heads, width])?;
    Ok(Tensor::new(Storage::cpu(block), View::contiguous(shape).permute(&[0, 2, 1, 3]), T::DTYPE))
}
