//! The forward pass: attention, and the log-sum-exp of the scores of each query.

use num_traits::{Float as _, FromPrimitive as _, One as _, Zero as _};
use weightloom_layout::Shape;

use super::weights::{ScoreBlock, SoftmaxState, online_softmax};
use super::{
    BLOCK, DocumentSpan, Documents, Geometry, Heads, KeyLimit, Mask, Range, Rows, Space, blocks, by_rows,
    narrow,
};
use crate::element::Float;
use crate::error::Result;
use crate::kernels::make;
use crate::kernels::matmul::{Matrix, Store, Vectors, product};
use crate::memory::Block;
use crate::parallel::try_share;
use crate::tensor::Tensor;

/// Queries of one task: enough to amortise transposing the keys.
const CHUNK: usize = 8 * BLOCK;

/// The rows and sums of some queries of the heads that share keys and values.
struct Task<'a, T: Float> {
    batch: usize,
    kv_head: usize,
    document: &'a DocumentSpan,
    /// Within the document.
    queries: Range,
    /// By head, then by query.
    out: Vec<Vec<&'a mut [T]>>,
    logs: Vec<&'a mut [T::Wide]>,
}

pub(crate) fn attention<T: Float<Wide: Vectors>>(
    geometry: &Geometry,
    [q, k, v]: [&Tensor; 3],
    limit: KeyLimit<'_>,
) -> Result<[Tensor; 2]> {
    let (q, k, v) = (Heads::<T>::new(q)?, Heads::<T>::new(k)?, Heads::<T>::new(v)?);
    let (mask, documents) = (Mask::new(limit, geometry)?, Documents::new(limit, geometry)?);
    let Geometry { batch, heads, queries, width, .. } = *geometry;
    let dims = [batch, heads, queries, width];
    let mut block = Block::new(dims.iter().product::<usize>() * T::DTYPE.size())?;
    let logs = make::<T::Wide>(&Shape::new(&dims[..3])?, |logs| {
        let out = Rows::new(bytemuck::cast_slice_mut(block.bytes_mut()), dims);
        let tasks = tasks(geometry, &documents, out, logs);
        try_share(tasks.into_iter(), |task| run(geometry, [&q, &k, &v], &mask, task))
    })?;
    Ok([by_rows::<T>(block, dims)?, logs])
}

fn tasks<'a, T: Float>(
    geometry: &Geometry,
    documents: &'a Documents,
    out: Rows<'a, T>,
    logs: &'a mut [T::Wide],
) -> Vec<Task<'a, T>> {
    let Geometry { queries, kv_heads, .. } = *geometry;
    if queries == 0 {
        return Vec::new();
    }
    let group = geometry.group();
    let mut tasks = Vec::new();
    let logs = logs.chunks_mut(group * queries);
    for (number, (out, logs)) in out.groups(group).into_iter().zip(logs).enumerate() {
        let (batch, kv_head) = (number / kv_heads, number % kv_heads);
        let mut chunks: Vec<Task<'a, T>> = Vec::new();
        for document in documents.of(batch) {
            let queries = document.queries.len();
            chunks.extend((0..queries).step_by(CHUNK).map(|start| Task {
                batch,
                kv_head,
                document,
                queries: start..(start + CHUNK).min(queries),
                out: Vec::with_capacity(group),
                logs: Vec::with_capacity(group),
            }));
        }
        for (rows, mut logs) in out.into_iter().zip(logs.chunks_mut(queries)) {
            let mut rows = rows.into_iter();
            for task in &mut chunks {
                task.out.push(rows.by_ref().take(task.queries.len()).collect());
                let (here, rest) = logs.split_at_mut(task.queries.len());
                task.logs.push(here);
                logs = rest;
            }
        }
        tasks.append(&mut chunks);
    }
    tasks
}

fn run<T: Float<Wide: Vectors>>(
    geometry: &Geometry,
    [q, k, v]: [&Heads<'_, T>; 3],
    mask: &Mask<'_>,
    task: Task<'_, T>,
) -> Result<()> {
    let width = geometry.width;
    let Task { batch, kv_head, document, queries, out, logs } = task;
    let geometry = &geometry.within(document);
    let (q, k, v) =
        (q.skip(document.queries.start), k.skip(document.keys.start), v.skip(document.keys.start));
    let mut key_blocks = geometry.key_blocks(&queries);
    let first = key_blocks.next().map_or(0, |keys| keys.start);
    let last = geometry.key_blocks(&queries).last().map_or(0, |keys| keys.end);
    let keys = first..last;
    let stride = keys.len().next_multiple_of(BLOCK);
    let mut transposed = Space::<T::Wide>::new(width * stride)?;
    let scale = T::Wide::from_f64(geometry.scale).unwrap_or_else(T::Wide::nan);
    k.transposed(batch, kv_head, &keys, scale, transposed.elements_mut());
    let transposed = transposed.elements();
    let mut value_space = Space::<T::Wide>::new(if T::COMPUTES_IN_ITSELF { 0 } else { keys.len() * width })?;
    let values = v.rows(batch, kv_head, &keys, value_space.elements_mut());
    let (mut query_space, mut sums) = (Space::new(BLOCK * width)?, Space::new(BLOCK * width)?);
    let mut scores = Space::<T::Wide>::new(BLOCK * BLOCK)?;
    for (member, (mut out, logs)) in out.into_iter().zip(logs).enumerate() {
        let head = kv_head * geometry.group() + member;
        for here in blocks(queries.clone()) {
            let rows = q.rows(batch, head, &here, query_space.elements_mut());
            let sums = &mut sums.elements_mut()[..here.len() * width];
            sums.fill(T::Wide::zero());
            let mut running = SoftmaxState::<T::Wide>::new();
            for block in geometry.key_blocks(&here) {
                let scores = &mut scores.elements_mut()[..here.len() * BLOCK];
                let columns = Matrix::new(&transposed[(block.start - first) * width..], width, BLOCK);
                product(rows, columns, scores, Store::Set)?;
                let mask = mask.of(batch, &block);
                online_softmax(
                    ScoreBlock { geometry, queries: &here, keys: &block, mask },
                    scores,
                    &mut running,
                );
                for (sums, &shrink) in sums.chunks_exact_mut(width).zip(&running.shrink) {
                    if shrink != T::Wide::one() {
                        sums.iter_mut().for_each(|sum| *sum = *sum * shrink);
                    }
                }
                let weights = Matrix::strided(scores, here.len(), block.len(), BLOCK);
                product(weights, values.rows(block.start - first, block.len()), sums, Store::Add)?;
            }
            let place = here.start - queries.start..here.end - queries.start;
            let results = out[place.clone()].iter_mut().zip(sums.chunks_exact_mut(width));
            for (row, ((out, sums), log)) in results.zip(&mut logs[place]).enumerate() {
                let total = running.sums[row];
                // A query without keys gets zeros.
                if total > T::Wide::zero() {
                    let scale = T::Wide::one() / total;
                    sums.iter_mut().for_each(|sum| *sum = *sum * scale);
                    *log = running.most[row] + total.ln();
                } else if total.is_nan() {
                    sums.fill(T::Wide::nan());
                    *log = T::Wide::nan();
                } else {
                    *log = T::Wide::infinity();
                }
                narrow(sums, out);
            }
        }
    }
    Ok(())
}
