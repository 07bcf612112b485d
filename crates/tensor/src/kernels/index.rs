//! Indexing.

use num_traits::Zero as _;
use weightloom_layout::{DType, Shape};

use super::{make, make_as, rewrite, rewrite_bits, with_bits};
use crate::backend::meta::{output, output_in_place, record, volume};
use crate::backend::{Cpu, Meta};
use crate::element::Float;
use crate::element::with_float;
use crate::error::{Result, TensorError};
use crate::parallel::pieces;
use crate::tensor::Tensor;

/// Indexing kernels.
pub(crate) trait IndexKernels {
    /// Slices at indices along a dim.
    fn index_select(
        &self,
        op: &'static str,
        x: &Tensor,
        dim: usize,
        indices: &Tensor,
        shape: &Shape,
    ) -> Result<Tensor>;

    /// Adds slices at indices, in order; the rest is zero.
    fn index_add(&self, x: &Tensor, dim: usize, indices: &Tensor, shape: &Shape) -> Result<Tensor>;

    /// Elements at indices along a dim.
    fn gather(&self, x: &Tensor, dim: usize, indices: &Tensor) -> Result<Tensor>;

    /// Writes elements at indices along a dim; of several with one target, the last
    /// wins.
    fn scatter(&self, base: Tensor, dim: usize, indices: &Tensor, source: &Tensor) -> Result<Tensor>;

    /// Adds elements at indices along a dim, in order.
    fn scatter_add(&self, base: Tensor, dim: usize, indices: &Tensor, source: &Tensor) -> Result<Tensor>;
}

impl IndexKernels for Cpu {
    fn index_select(
        &self,
        op: &'static str,
        x: &Tensor,
        dim: usize,
        indices: &Tensor,
        shape: &Shape,
    ) -> Result<Tensor> {
        index_select(op, x, dim, indices, shape)
    }

    fn index_add(&self, x: &Tensor, dim: usize, indices: &Tensor, shape: &Shape) -> Result<Tensor> {
        with_float!("index_add", x.dtype(), T => index_add::<T>(x, dim, indices, shape))
    }

    fn gather(&self, x: &Tensor, dim: usize, indices: &Tensor) -> Result<Tensor> {
        gather(x, dim, indices)
    }

    fn scatter(&self, base: Tensor, dim: usize, indices: &Tensor, source: &Tensor) -> Result<Tensor> {
        scatter(base, dim, indices, source)
    }

    fn scatter_add(&self, base: Tensor, dim: usize, indices: &Tensor, source: &Tensor) -> Result<Tensor> {
        with_float!("scatter_add", base.dtype(), T => scatter_add::<T>(base, dim, indices, source))
    }
}

impl IndexKernels for Meta {
    fn index_select(
        &self,
        op: &'static str,
        x: &Tensor,
        _: usize,
        indices: &Tensor,
        shape: &Shape,
    ) -> Result<Tensor> {
        // Only the selected slices are read.
        let out = Tensor::meta(shape.clone(), x.dtype());
        record(op, 0, &[indices, &out], &[&out]);
        Ok(out)
    }

    fn index_add(&self, x: &Tensor, _: usize, indices: &Tensor, shape: &Shape) -> Result<Tensor> {
        output("index_add", volume(x.shape()), &[x, indices], shape, x.dtype())
    }

    fn gather(&self, x: &Tensor, _: usize, indices: &Tensor) -> Result<Tensor> {
        let out = Tensor::meta(indices.shape().clone(), x.dtype());
        record("gather", 0, &[indices, &out], &[&out]);
        Ok(out)
    }

    fn scatter(&self, base: Tensor, _: usize, indices: &Tensor, source: &Tensor) -> Result<Tensor> {
        output_in_place("scatter", 0, &[indices, source], base)
    }

    fn scatter_add(&self, base: Tensor, _: usize, indices: &Tensor, source: &Tensor) -> Result<Tensor> {
        let (shape, dtype) = (base.shape().clone(), base.dtype());
        record("scatter_add", volume(source.shape()), &[&base, indices, source], &[&base]);
        drop(base);
        Ok(Tensor::meta(shape, dtype))
    }
}

/// The sizes before a dim, of it, and after it.
pub(crate) fn around(shape: &Shape, dim: usize) -> [usize; 3] {
    [shape[..dim].iter().product(), shape[dim], shape[dim + 1..].iter().product()]
}

/// The indices, all checked to be in `0..rows`.
fn checked<'a>(op: &'static str, indices: &'a Tensor, rows: usize) -> Result<&'a [i64]> {
    let indices = indices.elements::<i64>(op)?;
    check_indices(op, indices, rows)?;
    Ok(indices)
}

/// Checks that all indices are in `0..rows`.
pub(crate) fn check_indices(op: &'static str, indices: &[i64], rows: usize) -> Result<()> {
    let outside = |&index: &i64| usize::try_from(index).map_or(true, |index| index >= rows);
    match indices.iter().position(outside) {
        None => Ok(()),
        Some(position) => Err(TensorError::Index { op, index: indices[position], position, rows }),
    }
}

/// Slices at indices along a dim.
pub(crate) fn index_select(
    op: &'static str,
    x: &Tensor,
    dim: usize,
    indices: &Tensor,
    shape: &Shape,
) -> Result<Tensor> {
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

/// Adds slices at indices, in order; the rest is zero.
///
/// Mostly few of many slices are indexed, as by the tokens of a batch in a
/// vocabulary, so that only their sums are kept in wide numbers.
pub(crate) fn index_add<T: Float>(x: &Tensor, dim: usize, indices: &Tensor, shape: &Shape) -> Result<Tensor> {
    let values = x.elements::<T>("index_add")?;
    let [outer, rows, inner] = around(shape, dim);
    let places = checked("index_add", indices, rows)?;
    let row_of = |number: usize| number / places.len() * rows + places[number % places.len()] as usize;
    let count = if inner == 0 { 0 } else { outer * places.len() };
    let mut hits: Vec<usize> = (0..count).collect();
    // A stable sort: the hits of one row stay in order.
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

/// For each index of a tensor of indices, the offset in `shape` given by the index
/// and its own coordinates.
fn places<'a>(
    op: &'static str,
    indices: &'a Tensor,
    shape: &'a Shape,
    dim: usize,
) -> Result<impl Iterator<Item = usize> + 'a> {
    offsets(op, indices.elements::<i64>(op)?, (shape, indices.shape()), dim)
}

/// The same for indices in host memory, with the shape that they index and their own.
pub(crate) fn offsets<'a>(
    op: &'static str,
    chosen: &'a [i64],
    (shape, dims): (&'a Shape, &'a Shape),
    dim: usize,
) -> Result<impl Iterator<Item = usize> + 'a> {
    check_indices(op, chosen, shape[dim])?;
    let strides = shape.strides();
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

/// Elements at indices along a dim.
pub(crate) fn gather(x: &Tensor, dim: usize, indices: &Tensor) -> Result<Tensor> {
    let places = places("gather", indices, x.shape(), dim)?;
    with_bits!(x.dtype(), U => {
        let source = x.bits::<U>("gather")?;
        make_as::<U>(x.dtype(), indices.shape(), |out| {
            out.iter_mut().zip(places).for_each(|(out, place)| *out = source[place]);
            Ok(())
        })
    })
}

/// Writes elements at indices along a dim.
pub(crate) fn scatter(base: Tensor, dim: usize, indices: &Tensor, source: &Tensor) -> Result<Tensor> {
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

/// Adds elements at indices along a dim, in order.
pub(crate) fn scatter_add<T: Float>(
    base: Tensor,
    dim: usize,
    indices: &Tensor,
    source: &Tensor,
) -> Result<Tensor> {
    let shape = base.shape().clone();
    let places = places("scatter_add", indices, &shape, dim)?;
    let source = source.elements::<T>("scatter_add")?;
    if T::COMPUTES_IN_ITSELF {
        return rewrite::<T>(base, "scatter_add", |out| {
            places.zip(source).for_each(|(place, x)| out[place] = T::narrow(out[place].widen() + x.widen()));
            Ok(())
        });
    }
    // Half types would lose small additions.
    let mut sums: Vec<T::Wide> = base.elements::<T>("scatter_add")?.iter().map(|x| x.widen()).collect();
    places.zip(source).for_each(|(place, x)| sums[place] += x.widen());
    debug_assert!(base.dtype() != DType::F32);
    make::<T>(&shape, |out| {
        out.iter_mut().zip(sums).for_each(|(out, sum)| *out = T::narrow(sum));
        Ok(())
    })
}
