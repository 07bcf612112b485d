//! Elements and slices chosen by index.

use num_traits::Zero as _;
use weightloom_layout::{DType, Shape};

use super::{make, make_as, rewrite, rewrite_bits, with_bits};
use crate::element::Float;
use crate::error::TensorError;
use crate::parallel::pieces;
use crate::tensor::Tensor;

/// The sizes before a dim, of it, and after it.
fn around(shape: &Shape, dim: usize) -> [usize; 3] {
    [shape[..dim].iter().product(), shape[dim], shape[dim + 1..].iter().product()]
}

/// Indices that all lie in 0..rows.
fn checked<'a>(op: &'static str, indices: &'a Tensor, rows: usize) -> Result<&'a [i64], TensorError> {
    let indices = indices.elements::<i64>(op)?;
    let outside = |&index: &i64| usize::try_from(index).map_or(true, |index| index >= rows);
    match indices.iter().position(outside) {
        None => Ok(indices),
        Some(position) => Err(TensorError::Index { op, index: indices[position], position, rows }),
    }
}

/// Slices along a dim, chosen by index.
pub(crate) fn index_select(
    op: &'static str,
    x: &Tensor,
    dim: usize,
    indices: &Tensor,
    shape: &Shape,
) -> Result<Tensor, TensorError> {
    let [_, rows, inner] = around(x.shape(), dim);
    let places = checked(op, indices, rows)?;
    with_bits!(x.dtype(), U => {
        let source = x.bits::<U>(op)?;
        make_as::<U>(x.dtype(), shape, |out| {
            if inner > 0 && !places.is_empty() {
                pieces(out, inner, |start, piece| {
                    for (slice, out) in piece.chunks_exact_mut(inner).enumerate() {
                        let number = start / inner + slice;
                        let (outer, index) = (number / places.len(), places[number % places.len()] as usize);
                        out.copy_from_slice(&source[(outer * rows + index) * inner..][..inner]);
                    }
                });
            }
            Ok(())
        })
    })
}

/// Slices added up where an index says, in order; the rest is zero.
///
/// Mostly few slices of many are hit, as by the tokens of a batch in a
/// vocabulary: only their sums are kept wide.
pub(crate) fn index_add<T: Float>(
    x: &Tensor,
    dim: usize,
    indices: &Tensor,
    shape: &Shape,
) -> Result<Tensor, TensorError> {
    let values = x.elements::<T>("index_add")?;
    let [outer, rows, inner] = around(shape, dim);
    let places = checked("index_add", indices, rows)?;
    let row_of = |number: usize| number / places.len() * rows + places[number % places.len()] as usize;
    let count = if inner == 0 { 0 } else { outer * places.len() };
    let mut hits: Vec<usize> = (0..count).collect();
    // Those of one row stay in order.
    hits.sort_by_key(|&number| row_of(number));
    make::<T>(shape, |out| {
        pieces(out, 1, |_, piece| piece.fill(T::narrow(T::Wide::zero())));
        let mut sum = vec![T::Wide::zero(); inner];
        for hits in hits.chunk_by(|a, b| row_of(*a) == row_of(*b)) {
            sum.fill(T::Wide::zero());
            for &number in hits {
                let x = &values[number * inner..][..inner];
                sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x.widen());
            }
            let row = &mut out[row_of(hits[0]) * inner..][..inner];
            row.iter_mut().zip(&sum).for_each(|(out, sum)| *out = T::narrow(*sum));
        }
        Ok(())
    })
}

/// For each index of a tensor of indices, the place in `shape` that it and its
/// own position choose.
fn places<'a>(
    op: &'static str,
    indices: &'a Tensor,
    shape: &'a Shape,
    dim: usize,
) -> Result<impl Iterator<Item = usize> + 'a, TensorError> {
    let chosen = checked(op, indices, shape[dim])?;
    let (strides, dims) = (shape.strides(), indices.shape());
    Ok(chosen.iter().enumerate().map(move |(position, &index)| {
        let mut rest = position;
        let mut place = index as usize * strides[dim];
        for axis in (0..dims.ndim()).rev() {
            if axis != dim {
                place += rest % dims[axis] * strides[axis];
            }
            rest /= dims[axis];
        }
        place
    }))
}

/// Elements along a dim, each chosen by its own index.
pub(crate) fn gather(x: &Tensor, dim: usize, indices: &Tensor) -> Result<Tensor, TensorError> {
    let places = places("gather", indices, x.shape(), dim)?;
    with_bits!(x.dtype(), U => {
        let source = x.bits::<U>("gather")?;
        make_as::<U>(x.dtype(), indices.shape(), |out| {
            out.iter_mut().zip(places).for_each(|(out, place)| *out = source[place]);
            Ok(())
        })
    })
}

/// Elements put along a dim, each where its own index says.
pub(crate) fn scatter(
    base: Tensor,
    dim: usize,
    indices: &Tensor,
    source: &Tensor,
) -> Result<Tensor, TensorError> {
    let shape = base.shape().clone();
    let places = places("scatter", indices, &shape, dim)?;
    with_bits!(base.dtype(), U => {
        let source = source.bits::<U>("scatter")?;
        rewrite_bits::<U>(base, "scatter", |out| {
            places.zip(source).for_each(|(place, x)| out[place] = *x);
            Ok(())
        })
    })
}

/// Elements added along a dim, each where its own index says, in order.
pub(crate) fn scatter_add<T: Float>(
    base: Tensor,
    dim: usize,
    indices: &Tensor,
    source: &Tensor,
) -> Result<Tensor, TensorError> {
    let shape = base.shape().clone();
    let places = places("scatter_add", indices, &shape, dim)?;
    let source = source.elements::<T>("scatter_add")?;
    if T::COMPUTES_IN_ITSELF {
        return rewrite::<T>(base, "scatter_add", |out| {
            places.zip(source).for_each(|(place, x)| out[place] = T::narrow(out[place].widen() + x.widen()));
            Ok(())
        });
    }
    // Many small additions lose what half types cannot hold.
    let mut sums: Vec<T::Wide> = base.elements::<T>("scatter_add")?.iter().map(|x| x.widen()).collect();
    places.zip(source).for_each(|(place, x)| sums[place] += x.widen());
    debug_assert!(base.dtype() != DType::F32);
    make::<T>(&shape, |out| {
        out.iter_mut().zip(sums).for_each(|(out, sum)| *out = T::narrow(sum));
        Ok(())
    })
}
