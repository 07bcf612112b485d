//! Cumulative sum and sort.

use std::cmp::Ordering;

use num_traits::Zero as _;
use weightloom_layout::DType;

use super::{make, make_as};
use crate::backend::meta::{output, output_like};
use crate::backend::{Cpu, Meta};
use crate::element::{Element, Float, with_element, with_float};
use crate::error::Result;
use crate::parallel::rows;
use crate::tensor::Tensor;

/// Cumulative sum and sort kernels.
pub(crate) trait SortKernels {
    /// Cumulative sums of rows of this length.
    fn cumsum(&self, x: &Tensor, row: usize, direction: Direction) -> Result<Tensor>;

    /// Sorts rows of this length; returns values and indices.
    fn sort(&self, x: &Tensor, row: usize, order: Order) -> Result<[Tensor; 2]>;
}

impl SortKernels for Cpu {
    fn cumsum(&self, x: &Tensor, row: usize, direction: Direction) -> Result<Tensor> {
        with_float!("cumsum", x.dtype(), T => cumsum::<T>(x, row, direction))
    }

    fn sort(&self, x: &Tensor, row: usize, order: Order) -> Result<[Tensor; 2]> {
        sort(x, row, order)
    }
}

impl SortKernels for Meta {
    fn cumsum(&self, x: &Tensor, _: usize, _: Direction) -> Result<Tensor> {
        output_like("cumsum", 1, &[x])
    }

    fn sort(&self, x: &Tensor, row: usize, _: Order) -> Result<[Tensor; 2]> {
        let steps = u64::from(row.max(2).ilog2());
        Ok([output_like("sort", steps, &[x])?, output("sort", 0, &[], x.shape(), DType::I64)?])
    }
}

/// The direction of a cumulative sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Reverse,
}

/// Cumulative sums of rows of this length. Half types are summed in `f32`.
pub(crate) fn cumsum<T: Float>(x: &Tensor, row: usize, direction: Direction) -> Result<Tensor> {
    let values = x.elements::<T>("cumsum")?;
    make::<T>(x.shape(), |out| {
        let row = row.max(1);
        rows(out, row, |number, out| {
            let x = &values[number * row..][..row];
            let mut sum = T::Wide::zero();
            let mut step = |(out, x): (&mut T, &T)| {
                sum += x.widen();
                *out = T::narrow(sum);
            };
            match direction {
                Direction::Forward => out.iter_mut().zip(x).for_each(&mut step),
                Direction::Reverse => out.iter_mut().zip(x).rev().for_each(&mut step),
            }
        });
        Ok(())
    })
}

/// The order of a sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The smallest first.
    Ascending,
    /// The largest first.
    Descending,
}

/// Sorts rows of this length; returns values and indices. The sort is stable; NaN
/// counts as the largest.
pub(crate) fn sort(x: &Tensor, row: usize, order: Order) -> Result<[Tensor; 2]> {
    with_element!("sort", x.dtype(), T => sort_as::<T>(x, row, order))
}

fn by_value<T: PartialOrd>(a: &T, b: &T) -> Ordering {
    a.partial_cmp(b).unwrap_or_else(|| {
        // Only NaN is not comparable with itself.
        let (a, b) = (a.partial_cmp(a).is_none(), b.partial_cmp(b).is_none());
        a.cmp(&b)
    })
}

fn sort_as<T: Element + PartialOrd>(x: &Tensor, row: usize, order: Order) -> Result<[Tensor; 2]> {
    // Bools are stored as bytes.
    let values = x.bits::<T>("sort")?;
    let row = row.max(1);
    let indices = make_as::<i64>(DType::I64, x.shape(), |out| {
        rows(out, row, |number, out| {
            let x = &values[number * row..][..row];
            out.iter_mut().enumerate().for_each(|(place, out)| *out = place as i64);
            out.sort_by(|&a, &b| {
                let compared = by_value(&x[a as usize], &x[b as usize]);
                if order == Order::Ascending { compared } else { compared.reverse() }
            });
        });
        Ok(())
    })?;
    let places = indices.elements::<i64>("sort")?;
    let sorted = make_as::<T>(x.dtype(), x.shape(), |out| {
        rows(out, row, |number, out| {
            let x = &values[number * row..][..row];
            out.iter_mut().zip(&places[number * row..]).for_each(|(out, &place)| *out = x[place as usize]);
        });
        Ok(())
    })?;
    Ok([sorted, indices])
}
