//! Rows in order: running sums and sorting.

use std::cmp::Ordering;

use num_traits::Zero as _;
use weightloom_layout::DType;

use super::{make, make_as};
use crate::element::{Element, Float, with_element};
use crate::error::TensorError;
use crate::parallel::rows;
use crate::tensor::Tensor;

/// From which end a running sum runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    FromFirst,
    FromLast,
}

/// Running sums of rows of this length. Half types add up in `f32`.
pub(crate) fn cumsum<T: Float>(x: &Tensor, row: usize, direction: Direction) -> Result<Tensor, TensorError> {
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
                Direction::FromFirst => out.iter_mut().zip(x).for_each(&mut step),
                Direction::FromLast => out.iter_mut().zip(x).rev().for_each(&mut step),
            }
        });
        Ok(())
    })
}

/// Which comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The smallest.
    Ascending,
    /// The largest.
    Descending,
}

/// Rows of this length sorted, and where each element came from. Equal elements
/// keep their order; a NaN counts as the largest.
pub(crate) fn sort(x: &Tensor, row: usize, order: Order) -> Result<[Tensor; 2], TensorError> {
    with_element!("sort", x.dtype(), T => sort_as::<T>(x, row, order))
}

fn by_value<T: PartialOrd>(a: &T, b: &T) -> Ordering {
    a.partial_cmp(b).unwrap_or_else(|| {
        // Only a NaN differs from itself.
        let (a, b) = (a.partial_cmp(a).is_none(), b.partial_cmp(b).is_none());
        a.cmp(&b)
    })
}

fn sort_as<T: Element + PartialOrd>(
    x: &Tensor,
    row: usize,
    order: Order,
) -> Result<[Tensor; 2], TensorError> {
    // Bools are held as bytes.
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
