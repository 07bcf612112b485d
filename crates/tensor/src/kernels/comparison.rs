//! Comparison and selection.

use weightloom_layout::DType;

use super::strides::Walk;
use super::{make_as, with_bits};
use crate::backend::meta::{output, volume};
use crate::backend::{Cpu, Meta};
use crate::element::{Element, with_element};
use crate::error::Result;
use crate::parallel::pieces;
use crate::tensor::Tensor;

/// Comparison and selection kernels.
pub(crate) trait ComparisonKernels {
    /// Compares elements, as bools; one shape, any strides.
    fn compare(&self, op: Comparison, a: &Tensor, b: &Tensor) -> Result<Tensor>;

    /// `a` where the condition holds, else `b`; one shape, any strides.
    fn select(&self, condition: &Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor>;
}

impl ComparisonKernels for Cpu {
    fn compare(&self, op: Comparison, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        compare(op, a, b)
    }

    fn select(&self, condition: &Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        select(condition, a, b)
    }
}

impl ComparisonKernels for Meta {
    fn compare(&self, op: Comparison, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        output(op.name(), volume(a.shape()), &[a, b], a.shape(), DType::Bool)
    }

    fn select(&self, condition: &Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        output("select", volume(a.shape()), &[condition, a, b], a.shape(), a.dtype())
    }
}

/// A comparison of two elements. With a NaN, only `ne` is true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    Different,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Equal => "eq",
            Self::Different => "ne",
            Self::Less => "lt",
            Self::LessOrEqual => "le",
            Self::Greater => "gt",
            Self::GreaterOrEqual => "ge",
        }
    }

    fn holds<T: PartialOrd>(self, a: &T, b: &T) -> bool {
        match self {
            Self::Equal => a == b,
            Self::Different => a != b,
            Self::Less => a < b,
            Self::LessOrEqual => a <= b,
            Self::Greater => a > b,
            Self::GreaterOrEqual => a >= b,
        }
    }
}

/// Compares elements, as bools.
pub(crate) fn compare(op: Comparison, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    with_element!(op.name(), a.dtype(), T => compare_as::<T>(op, a, b))
}

fn compare_as<T: Element + PartialOrd>(op: Comparison, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (xs, ys): (&[T], &[T]) = (a.storage_elements(op.name())?, b.storage_elements(op.name())?);
    let (va, vb) = (a.view(), b.view());
    let walk = Walk::new(a.shape(), [&va.strides, &vb.strides]);
    let (row, [sx, sy]) = (walk.row(), walk.row_strides());
    make_as::<u8>(DType::Bool, a.shape(), |out| {
        pieces(out, row, |start, piece| {
            let mut rows = piece.chunks_exact_mut(row);
            let first = start / row;
            walk.rows(first..first + rows.len(), |[ox, oy]| {
                let Some(out) = rows.next() else { return };
                for (place, out) in out.iter_mut().enumerate() {
                    let (x, y) = (&xs[va.offset + ox + place * sx], &ys[vb.offset + oy + place * sy]);
                    *out = u8::from(op.holds(x, y));
                }
            });
        });
        Ok(())
    })
}

/// `a` where the condition holds, else `b`.
pub(crate) fn select(condition: &Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    with_bits!(a.dtype(), U => select_bits::<U>(condition, a, b))
}

fn select_bits<U: bytemuck::Pod + Send + Sync>(condition: &Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let op = "select";
    let (xs, ys) = (a.storage_bits::<U>(op)?, b.storage_bits::<U>(op)?);
    let conditions = condition.storage_bits::<u8>(op)?;
    let (vc, va, vb) = (condition.view(), a.view(), b.view());
    let walk = Walk::new(a.shape(), [&vc.strides, &va.strides, &vb.strides]);
    let (row, [sc, sx, sy]) = (walk.row(), walk.row_strides());
    make_as::<U>(a.dtype(), a.shape(), |out| {
        pieces(out, row, |start, piece| {
            let mut rows = piece.chunks_exact_mut(row);
            let first = start / row;
            walk.rows(first..first + rows.len(), |[oc, ox, oy]| {
                let Some(out) = rows.next() else { return };
                let conditions = &conditions[vc.offset + oc..];
                let (xs, ys) = (&xs[va.offset + ox..], &ys[vb.offset + oy..]);
                for (place, out) in out.iter_mut().enumerate() {
                    *out = if conditions[place * sc] == 0 { ys[place * sy] } else { xs[place * sx] };
                }
            });
        });
        Ok(())
    })
}
