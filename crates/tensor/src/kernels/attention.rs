//! Scaled dot-product attention, block by block.
//!
//! Scores exist only for one block of queries and one of keys at a time. A
//! running maximum and sum make the softmax come out as if the whole row had
//! been there; their logarithm is kept for the backward pass, which computes
//! the scores again instead of keeping them.
//!
//! Every head of every batch is computed by itself and its blocks in order, so
//! results do not depend on threads or on the rest of the batch.

use rayon::prelude::*;

use super::elementwise::exponentiate;
use super::lanes;
use super::matmul::{Matrix, Multiply, Store, product};
use crate::element::Wide;
use crate::error::TensorError;

/// Queries and keys in a block: their scores fit in the L1 cache.
const BLOCK: usize = 64;

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
}

impl Geometry {
    /// Keys that a query sees. The last query stands at the last key, so that
    /// a cache of earlier keys needs no further argument.
    fn seen(&self, query: usize) -> std::ops::Range<usize> {
        let position = (query + self.keys).saturating_sub(self.queries);
        let end = if self.causal { (position + 1).min(self.keys) } else { self.keys };
        let start = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        // A query before the first key, with more queries than keys, sees none.
        let hidden = self.causal && query + self.keys < self.queries;
        if hidden { 0..0 } else { start.min(end)..end }
    }

    /// Key blocks that any of some queries sees.
    fn key_blocks(
        &self,
        queries: std::ops::Range<usize>,
    ) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
        let start = queries.clone().map(|query| self.seen(query).start).min().unwrap_or(0);
        let end = queries.map(|query| self.seen(query).end).max().unwrap_or(0);
        let keys = self.keys;
        (start / BLOCK..end.div_ceil(BLOCK)).map(move |block| block * BLOCK..((block + 1) * BLOCK).min(keys))
    }

    fn query_blocks(&self) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
        let queries = self.queries;
        (0..queries.div_ceil(BLOCK)).map(move |block| block * BLOCK..((block + 1) * BLOCK).min(queries))
    }

    /// The key-value head that a head uses, among all of all batches.
    fn kv_head(&self, head: usize) -> usize {
        head / self.heads * self.kv_heads + head % self.heads / (self.heads / self.kv_heads)
    }
}

fn rows<W>(matrix: &[W], range: &std::ops::Range<usize>, width: usize) -> std::ops::Range<usize> {
    debug_assert!(range.end * width <= matrix.len());
    range.start * width..range.end * width
}

/// Scaled scores of a block, with `-∞` where a query does not see a key.
fn scores<W: Wide + Multiply>(
    geometry: &Geometry,
    q: &[W],
    k: &[W],
    queries: &std::ops::Range<usize>,
    keys: &std::ops::Range<usize>,
    out: &mut [W],
) -> Result<(), TensorError> {
    let width = geometry.width;
    let lhs = Matrix::new(&q[rows(q, queries, width)], queries.len(), width);
    let rhs = Matrix::new(&k[rows(k, keys, width)], keys.len(), width).transposed();
    product(lhs, rhs, out, Store::Set)?;
    let scale = W::from_f64(geometry.scale).unwrap_or_else(W::one);
    for (row, query) in out.chunks_exact_mut(keys.len()).zip(queries.clone()) {
        let seen = geometry.seen(query);
        for (score, key) in row.iter_mut().zip(keys.clone()) {
            *score = if seen.contains(&key) { *score * scale } else { W::neg_infinity() };
        }
    }
    Ok(())
}

/// Writes `softmax(q kᵀ · scale) v` to `out` and the logarithm of each row's
/// sum to `logs`.
pub(crate) fn forward<W: Wide + Multiply>(
    geometry: &Geometry,
    q: &[W],
    k: &[W],
    v: &[W],
    out: &mut [W],
    logs: &mut [W],
) -> Result<(), TensorError> {
    let (queries, keys, width) = (geometry.queries, geometry.keys, geometry.width);
    out.par_chunks_mut((queries * width).max(1))
        .zip(logs.par_chunks_mut(queries.max(1)))
        .zip(q.par_chunks((queries * width).max(1)))
        .enumerate()
        .try_for_each(|(head, ((out, logs), q))| {
            let kv = geometry.kv_head(head) * keys * width..(geometry.kv_head(head) + 1) * keys * width;
            for block in geometry.query_blocks() {
                let range = rows(out, &block, width);
                forward_block(
                    geometry,
                    q,
                    &k[kv.clone()],
                    &v[kv.clone()],
                    &block,
                    &mut out[range],
                    &mut logs[block.clone()],
                )?;
            }
            Ok(())
        })
}

fn forward_block<W: Wide + Multiply>(
    geometry: &Geometry,
    q: &[W],
    k: &[W],
    v: &[W],
    queries: &std::ops::Range<usize>,
    out: &mut [W],
    logs: &mut [W],
) -> Result<(), TensorError> {
    let width = geometry.width;
    let mut most = [W::neg_infinity(); BLOCK];
    let mut sums = [W::zero(); BLOCK];
    let mut weights = [W::zero(); BLOCK * BLOCK];
    out.fill(W::zero());
    for keys in geometry.key_blocks(queries.clone()) {
        let weights = &mut weights[..queries.len() * keys.len()];
        scores(geometry, q, k, queries, &keys, weights)?;
        for (row, scores) in weights.chunks_exact_mut(keys.len()).enumerate() {
            let here = scores.iter().fold(most[row], |most, &score| if score > most { score } else { most });
            if here == W::neg_infinity() {
                scores.fill(W::zero());
                continue;
            }
            let shrink = (most[row] - here).exponential();
            exponentiate(scores, here);
            let sum = lanes::sum(scores, |weight| weight);
            sums[row] = sums[row] * shrink + sum;
            most[row] = here;
            if shrink != W::one() {
                out[row * width..(row + 1) * width].iter_mut().for_each(|x| *x = *x * shrink);
            }
        }
        let values = Matrix::new(&v[rows(v, &keys, width)], keys.len(), width);
        product(Matrix::new(weights, queries.len(), keys.len()), values, out, Store::Add)?;
    }
    for (row, out) in out.chunks_exact_mut(width.max(1)).enumerate().take(queries.len()) {
        // A query that sees nothing gets zeros.
        if sums[row] > W::zero() {
            let scale = W::one() / sums[row];
            out.iter_mut().for_each(|x| *x = *x * scale);
        }
    }
    for (row, log) in logs.iter_mut().enumerate() {
        *log = if sums[row] > W::zero() { most[row] + sums[row].ln() } else { W::infinity() };
    }
    Ok(())
}

/// What the backward pass reads.
pub(crate) struct Saved<'a, W> {
    pub(crate) q: &'a [W],
    pub(crate) k: &'a [W],
    pub(crate) v: &'a [W],
    pub(crate) out: &'a [W],
    pub(crate) logs: &'a [W],
    pub(crate) gradient: &'a [W],
}

/// Writes the gradients of queries, keys and values. One key-value head with
/// all the heads that use it is one piece of work, so sums have one order.
pub(crate) fn backward<W: Wide + Multiply>(
    geometry: &Geometry,
    saved: &Saved<'_, W>,
    dq: &mut [W],
    dk: &mut [W],
    dv: &mut [W],
) -> Result<(), TensorError> {
    let (queries, keys, width) = (geometry.queries, geometry.keys, geometry.width);
    let group = geometry.heads / geometry.kv_heads;
    let (per_head, per_kv) = (queries * width, keys * width);
    dq.par_chunks_mut((group * per_head).max(1))
        .zip(dk.par_chunks_mut(per_kv.max(1)))
        .zip(dv.par_chunks_mut(per_kv.max(1)))
        .enumerate()
        .try_for_each(|(kv_head, ((dq, dk), dv))| {
            dq.fill(W::zero());
            dk.fill(W::zero());
            dv.fill(W::zero());
            let kv = kv_head * per_kv..(kv_head + 1) * per_kv;
            for (member, dq) in dq.chunks_exact_mut(per_head.max(1)).enumerate() {
                let head = kv_head * group + member;
                let of_head = head * per_head..(head + 1) * per_head;
                let saved = Saved {
                    q: &saved.q[of_head.clone()],
                    k: &saved.k[kv.clone()],
                    v: &saved.v[kv.clone()],
                    out: &saved.out[of_head.clone()],
                    logs: &saved.logs[head * queries..(head + 1) * queries],
                    gradient: &saved.gradient[of_head],
                };
                backward_head(geometry, &saved, dq, dk, dv)?;
            }
            Ok(())
        })
}

fn backward_head<W: Wide + Multiply>(
    geometry: &Geometry,
    saved: &Saved<'_, W>,
    dq: &mut [W],
    dk: &mut [W],
    dv: &mut [W],
) -> Result<(), TensorError> {
    let width = geometry.width;
    let scale = W::from_f64(geometry.scale).unwrap_or_else(W::one);
    let mut weights = [W::zero(); BLOCK * BLOCK];
    let mut slopes = [W::zero(); BLOCK * BLOCK];
    for queries in geometry.query_blocks() {
        let range = rows(dq, &queries, width);
        let (out, gradient) = (&saved.out[range.clone()], &saved.gradient[range.clone()]);
        let dots: Vec<W> = out
            .chunks_exact(width)
            .zip(gradient.chunks_exact(width))
            .map(|(out, gradient)| out.iter().zip(gradient).map(|(&o, &g)| o * g).sum())
            .collect();
        let of_queries = Matrix::new(&saved.q[range.clone()], queries.len(), width);
        let of_gradient = Matrix::new(gradient, queries.len(), width);
        for keys in geometry.key_blocks(queries.clone()) {
            let size = queries.len() * keys.len();
            let (weights, slopes) = (&mut weights[..size], &mut slopes[..size]);
            scores(geometry, saved.q, saved.k, &queries, &keys, weights)?;
            for (row, log) in weights.chunks_exact_mut(keys.len()).zip(&saved.logs[queries.clone()]) {
                exponentiate(row, *log);
            }
            let key_range = rows(saved.k, &keys, width);
            let values = Matrix::new(&saved.v[key_range.clone()], keys.len(), width);
            product(of_gradient, values.transposed(), slopes, Store::Set)?;
            for ((slopes, weights), &dot) in
                slopes.chunks_exact_mut(keys.len()).zip(weights.chunks_exact(keys.len())).zip(&dots)
            {
                slopes
                    .iter_mut()
                    .zip(weights)
                    .for_each(|(slope, &weight)| *slope = weight * (*slope - dot) * scale);
            }
            let of_weights = Matrix::new(weights, queries.len(), keys.len());
            let of_slopes = Matrix::new(slopes, queries.len(), keys.len());
            let of_keys = Matrix::new(&saved.k[key_range.clone()], keys.len(), width);
            product(of_weights.transposed(), of_gradient, &mut dv[key_range.clone()], Store::Add)?;
            product(of_slopes.transposed(), of_queries, &mut dk[key_range], Store::Add)?;
            product(of_slopes, of_keys, &mut dq[range.clone()], Store::Add)?;
        }
    }
    Ok(())
}
