//! The backward pass: gradients of queries, keys and values.

use num_traits::{Float as _, FromPrimitive as _, One as _};

use super::weights::{ScoreBlock, score_gradients};
use super::{
    BLOCK, DocumentSpan, Documents, Geometry, Heads, KeyLimit, Mask, Rows, Space, blocks, by_rows, narrow,
};
use crate::element::Float;
use crate::error::Result;
use crate::kernels::lanes;
use crate::kernels::matmul::{Matrix, Store, Vectors, product};
use crate::memory::Block;
use crate::parallel::try_share;
use crate::tensor::Tensor;

/// Inputs of the backward pass.
struct Saved<'a, T: Float> {
    q: Heads<'a, T>,
    k: Heads<'a, T>,
    v: Heads<'a, T>,
    out: Heads<'a, T>,
    gradient: Heads<'a, T>,
    logs: &'a [T::Wide],
    mask: Mask<'a>,
}

/// One head of keys and values with all query heads that share it, so that sums
/// have one order.
struct Task<'a, T> {
    batch: usize,
    kv_head: usize,
    /// By head, then by query.
    of_q: Vec<Vec<&'a mut [T]>>,
    of_k: Vec<&'a mut [T]>,
    of_v: Vec<&'a mut [T]>,
}

pub(crate) fn attention_gradient<T: Float<Wide: Vectors>>(
    geometry: &Geometry,
    [q, k, v]: [&Tensor; 3],
    limit: KeyLimit<'_>,
    [out, logs]: [&Tensor; 2],
    gradient: &Tensor,
) -> Result<[Tensor; 3]> {
    let saved = Saved::<T> {
        q: Heads::new(q)?,
        k: Heads::new(k)?,
        v: Heads::new(v)?,
        out: Heads::new(out)?,
        gradient: Heads::new(gradient)?,
        logs: logs.elements("attention")?,
        mask: Mask::new(limit, geometry)?,
    };
    let documents = Documents::new(limit, geometry)?;
    let Geometry { batch, heads, kv_heads, queries, keys, width, .. } = *geometry;
    let (q_dims, kv_dims) = ([batch, heads, queries, width], [batch, kv_heads, keys, width]);
    let new = |dims: [usize; 4]| Block::new(dims.iter().product::<usize>() * T::DTYPE.size());
    let (mut of_q, mut of_k, mut of_v) = (new(q_dims)?, new(kv_dims)?, new(kv_dims)?);
    {
        let by_query =
            Rows::<T>::new(bytemuck::cast_slice_mut(of_q.bytes_mut()), q_dims).groups(geometry.group());
        let by_key = Rows::<T>::new(bytemuck::cast_slice_mut(of_k.bytes_mut()), kv_dims).rows;
        let by_value = Rows::<T>::new(bytemuck::cast_slice_mut(of_v.bytes_mut()), kv_dims).rows;
        let tasks: Vec<Task<'_, T>> = by_query
            .into_iter()
            .zip(by_key)
            .zip(by_value)
            .enumerate()
            .map(|(number, ((of_q, of_k), of_v))| Task {
                batch: number / kv_heads,
                kv_head: number % kv_heads,
                of_q,
                of_k,
                of_v,
            })
            .collect();
        try_share(tasks.into_iter(), |mut task| {
            documents
                .of(task.batch)
                .iter()
                .try_for_each(|document| run(geometry, &saved, &mut task, document))
        })?;
    }
    Ok([by_rows::<T>(of_q, q_dims)?, by_rows::<T>(of_k, kv_dims)?, by_rows::<T>(of_v, kv_dims)?])
}

/// The gradients of one document.
fn run<T: Float<Wide: Vectors>>(
    whole: &Geometry,
    saved: &Saved<'_, T>,
    task: &mut Task<'_, T>,
    document: &DocumentSpan,
) -> Result<()> {
    let geometry = &whole.within(document);
    let Geometry { keys, width, .. } = *geometry;
    let Task { batch, kv_head, of_q, of_k, of_v } = task;
    let (batch, kv_head) = (*batch, *kv_head);
    let (first_query, first_key) = (document.queries.start, document.keys.start);
    let (q, out, gradients) =
        (saved.q.skip(first_query), saved.out.skip(first_query), saved.gradient.skip(first_query));
    let (k, v) = (saved.k.skip(first_key), saved.v.skip(first_key));
    let stride = keys.next_multiple_of(BLOCK);
    let scale = T::Wide::from_f64(geometry.scale).unwrap_or_else(T::Wide::nan);
    let (mut transposed_keys, mut transposed_values) =
        (Space::new(width * stride)?, Space::new(width * stride)?);
    k.transposed(batch, kv_head, &(0..keys), scale, transposed_keys.elements_mut());
    v.transposed(batch, kv_head, &(0..keys), T::Wide::one(), transposed_values.elements_mut());
    let (transposed_keys, transposed_values) = (transposed_keys.elements(), transposed_values.elements());
    let copied = if T::COMPUTES_IN_ITSELF { 0 } else { keys * width };
    let mut key_space = Space::<T::Wide>::new(copied)?;
    let keys_as_rows = k.rows(batch, kv_head, &(0..keys), key_space.elements_mut());
    let (mut dk, mut dv) = (Space::<T::Wide>::zeros(keys * width)?, Space::<T::Wide>::zeros(keys * width)?);
    let (mut query_space, mut gradient_space) = (Space::new(BLOCK * width)?, Space::new(BLOCK * width)?);
    let (mut scores, mut slopes) = (Space::new(BLOCK * BLOCK)?, Space::new(BLOCK * BLOCK)?);
    let mut dq = Space::<T::Wide>::new(BLOCK * width)?;
    for (member, of_q) in of_q.iter_mut().enumerate() {
        let head = kv_head * geometry.group() + member;
        let first_log = (batch * geometry.heads + head) * whole.queries + first_query;
        let of_q = &mut of_q[document.queries.clone()];
        for here in blocks(0..geometry.queries) {
            let dots: Vec<T::Wide> = here
                .clone()
                .map(|row| {
                    let (out, gradient) = (out.row(batch, head, row), gradients.row(batch, head, row));
                    lanes::sum2(out, gradient, |out, gradient| out * gradient)
                })
                .collect();
            let logs = &saved.logs[first_log + here.start..first_log + here.end];
            let rows = q.rows(batch, head, &here, query_space.elements_mut());
            let gradient = gradients.rows(batch, head, &here, gradient_space.elements_mut());
            let dq = &mut dq.elements_mut()[..here.len() * width];
            dq.fill(<T::Wide as Vectors>::ZERO);
            for block in geometry.key_blocks(&here) {
                let size = here.len() * BLOCK;
                let scores: &mut [T::Wide] = &mut scores.elements_mut()[..size];
                let slopes: &mut [T::Wide] = &mut slopes.elements_mut()[..size];
                let from = block.start * width;
                let column = |transposed| Matrix::new(transposed, width, BLOCK);
                product(rows, column(&transposed_keys[from..]), scores, Store::Set)?;
                product(gradient, column(&transposed_values[from..]), slopes, Store::Set)?;
                let mask = saved.mask.of(batch, &block);
                score_gradients(
                    ScoreBlock { geometry, queries: &here, keys: &block, mask },
                    scores,
                    slopes,
                    logs,
                    &dots,
                );
                let of_weights = Matrix::strided(scores, here.len(), block.len(), BLOCK);
                let of_slopes = Matrix::strided(slopes, here.len(), block.len(), BLOCK);
                let part = block.start * width..block.end * width;
                product(of_weights.transposed(), gradient, &mut dv.elements_mut()[part.clone()], Store::Add)?;
                product(of_slopes.transposed(), rows, &mut dk.elements_mut()[part], Store::Add)?;
                product(of_slopes, keys_as_rows.rows(block.start, block.len()), dq, Store::Add)?;
            }
            for (out, row) in of_q[here].iter_mut().zip(dq.chunks_exact(width)) {
                narrow(row, out);
            }
        }
    }
    for (sums, out) in [(dk, of_k), (dv, of_v)] {
        for (out, row) in out[document.keys.clone()].iter_mut().zip(sums.elements().chunks_exact(width)) {
            narrow(row, out);
        }
    }
    Ok(())
}
