//! One element at a time, with broadcasting.

use std::marker::PhantomData;

use num_traits::{Float as _, One as _, Zero as _};

use super::make;
use super::strides::Walk;
use crate::element::{Float, Wide};
use crate::error::TensorError;
use crate::parallel::{fill, kernel};
use crate::tensor::Tensor;
use crate::view::broadcast;

/// An operation on one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unary {
    Neg,
    Exp,
    Log,
    Sqrt,
    Rsqrt,
    Abs,
    Relu,
    Sigmoid,
    Tanh,
    Silu,
    Gelu,
    GeluTanh,
}

impl Unary {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Neg => "neg",
            Self::Exp => "exp",
            Self::Log => "log",
            Self::Sqrt => "sqrt",
            Self::Rsqrt => "rsqrt",
            Self::Abs => "abs",
            Self::Relu => "relu",
            Self::Sigmoid => "sigmoid",
            Self::Tanh => "tanh",
            Self::Silu => "silu",
            Self::Gelu => "gelu",
            Self::GeluTanh => "gelu_tanh",
        }
    }
}

#[inline(always)]
fn sigmoid<W: Wide>(x: W) -> W {
    W::one() / (W::one() + (-x).exponential())
}

fn constant<W: Wide>(value: f64) -> W {
    W::from_f64(value).unwrap_or_else(W::nan)
}

/// The inner function of the tanh approximation of gelu, and its derivative.
#[inline(always)]
fn gelu_inner<W: Wide>(x: W) -> (W, W) {
    let (a, b) = (constant::<W>(0.797_884_560_802_865_4), constant::<W>(0.044_715));
    (a * (x + b * x * x * x), a * (W::one() + constant::<W>(3.0) * b * x * x))
}

/// Calls `$body` with `$f` as the function of an operation, compiled for each.
macro_rules! with_unary {
    ($op:expr, $W:ty, $f:ident => $body:expr) => {{
        let one = <$W>::one();
        let half = constant::<$W>(0.5);
        match $op {
            Unary::Neg => {
                let $f = |x: $W| -x;
                $body
            }
            Unary::Exp => {
                let $f = |x: $W| x.exponential();
                $body
            }
            Unary::Log => {
                let $f = |x: $W| x.ln();
                $body
            }
            Unary::Sqrt => {
                let $f = |x: $W| x.sqrt();
                $body
            }
            Unary::Rsqrt => {
                let $f = |x: $W| one / x.sqrt();
                $body
            }
            Unary::Abs => {
                let $f = |x: $W| x.abs();
                $body
            }
            // A NaN stays a NaN.
            Unary::Relu => {
                let $f = |x: $W| if x <= <$W>::zero() { <$W>::zero() } else { x };
                $body
            }
            Unary::Sigmoid => {
                let $f = |x: $W| sigmoid(x);
                $body
            }
            Unary::Tanh => {
                let $f = |x: $W| x.tanh();
                $body
            }
            Unary::Silu => {
                let $f = |x: $W| x * sigmoid(x);
                $body
            }
            Unary::Gelu => {
                let root = constant::<$W>(std::f64::consts::FRAC_1_SQRT_2);
                let $f = |x: $W| half * x * (one + (x * root).error_function());
                $body
            }
            Unary::GeluTanh => {
                let $f = |x: $W| half * x * (one + gelu_inner(x).0.tanh());
                $body
            }
        }
    }};
}

/// The same for the derivative.
macro_rules! with_derivative {
    ($op:expr, $W:ty, $f:ident => $body:expr) => {{
        let (zero, one) = (<$W>::zero(), <$W>::one());
        let half = constant::<$W>(0.5);
        match $op {
            Unary::Neg => {
                let $f = |_: $W| -one;
                $body
            }
            Unary::Exp => {
                let $f = |x: $W| x.exponential();
                $body
            }
            Unary::Log => {
                let $f = |x: $W| one / x;
                $body
            }
            Unary::Sqrt => {
                let $f = |x: $W| half / x.sqrt();
                $body
            }
            Unary::Rsqrt => {
                let $f = |x: $W| -half / (x * x.sqrt());
                $body
            }
            Unary::Abs => {
                let $f = |x: $W| {
                    if x > zero {
                        one
                    } else if x < zero {
                        -one
                    } else {
                        zero
                    }
                };
                $body
            }
            Unary::Relu => {
                let $f = |x: $W| if x > zero { one } else { zero };
                $body
            }
            Unary::Sigmoid => {
                let $f = |x: $W| {
                    let s = sigmoid(x);
                    s * (one - s)
                };
                $body
            }
            Unary::Tanh => {
                let $f = |x: $W| {
                    let t = x.tanh();
                    one - t * t
                };
                $body
            }
            Unary::Silu => {
                let $f = |x: $W| {
                    let s = sigmoid(x);
                    s * (one + x * (one - s))
                };
                $body
            }
            Unary::Gelu => {
                let root = constant::<$W>(std::f64::consts::FRAC_1_SQRT_2);
                let density = constant::<$W>(0.398_942_280_401_432_7);
                let $f = |x: $W| {
                    half * (one + (x * root).error_function()) + x * density * (-half * x * x).exponential()
                };
                $body
            }
            Unary::GeluTanh => {
                let $f = |x: $W| {
                    let (inner, slope) = gelu_inner(x);
                    let t = inner.tanh();
                    half * (one + t) + half * x * (one - t * t) * slope
                };
                $body
            }
        }
    }};
}

kernel! {
    /// `f(x)` for every element.
    UnaryKernel<T: Float> { op: Unary, source: &'k [T] }
    |start, piece| {
        let source = &source[start..];
        with_unary!(op, T::Wide, f => {
            for (out, &x) in piece.iter_mut().zip(source) {
                *out = T::narrow(f(x.widen()));
            }
        });
    }
}

kernel! {
    /// `gradient · f'(x)` for every element.
    DerivativeKernel<T: Float> { op: Unary, source: &'k [T], gradient: &'k [T] }
    |start, piece| {
        let (source, gradient) = (&source[start..], &gradient[start..]);
        with_derivative!(op, T::Wide, f => {
            for ((out, &x), &g) in piece.iter_mut().zip(source).zip(gradient) {
                *out = T::narrow(g.widen() * f(x.widen()));
            }
        });
    }
}

pub(crate) fn unary<T: Float>(op: Unary, x: &Tensor) -> Result<Tensor, TensorError> {
    let source = x.elements::<T>(op.name())?;
    make::<T>(x.shape(), |out| {
        fill(out, 1, &UnaryKernel { op, source, element: PhantomData });
        Ok(())
    })
}

/// `gradient · f'(x)`, in one pass.
pub(crate) fn unary_gradient<T: Float>(
    op: Unary,
    x: &Tensor,
    gradient: &Tensor,
) -> Result<Tensor, TensorError> {
    let source = x.elements::<T>(op.name())?;
    let gradient = gradient.elements::<T>(op.name())?;
    make::<T>(x.shape(), |out| {
        fill(out, 1, &DerivativeKernel { op, source, gradient, element: PhantomData });
        Ok(())
    })
}

kernel! {
    /// `exp(x - shift)` in place.
    ExponentialKernel<W: Wide> { shift: W }
    |_start, piece| {
        for x in piece.iter_mut() {
            *x = (*x - shift).exponential();
        }
    }
}

/// `exp(x - shift)` of a short row, in place.
pub(crate) fn exponentiate<W: Wide>(values: &mut [W], shift: W) {
    fill(values, values.len(), &ExponentialKernel { shift, element: PhantomData });
}

/// An operation on two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    /// `silu(a) · b`.
    SwiGlu,
}

impl Binary {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Sub => "sub",
            Self::Mul => "mul",
            Self::Div => "div",
            Self::SwiGlu => "swiglu",
        }
    }
}

/// Two operands expanded to one shape.
struct Operands<'a, T> {
    walk: Walk<2>,
    xs: &'a [T],
    ys: &'a [T],
}

kernel! {
    /// `f(x, y)` for every element, along rows of any strides.
    BinaryKernel<T: Float> { op: Binary, operands: &'k Operands<'k, T> }
    |start, piece| {
        let walk = &operands.walk;
        let (row, strides) = (walk.row(), walk.row_strides());
        if walk.dims.len() == 1 {
            let [sx, sy] = strides;
            combine::<T>(op, piece, &operands.xs[start * sx..], &operands.ys[start * sy..], strides);
        } else {
            let first = start / row;
            let mut rows = piece.chunks_exact_mut(row);
            walk.rows(first..first + rows.len(), |[ox, oy]| {
                if let Some(out) = rows.next() {
                    combine::<T>(op, out, &operands.xs[ox..], &operands.ys[oy..], strides);
                }
            });
        }
    }
}

/// Combines two tensors of shapes that broadcast; any strides.
pub(crate) fn binary<T: Float>(op: Binary, a: &Tensor, b: &Tensor) -> Result<Tensor, TensorError> {
    let name = op.name();
    let mismatch = || TensorError::Shapes { op: name, shapes: vec![a.shape().clone(), b.shape().clone()] };
    let shape = broadcast(a.shape(), b.shape()).ok_or_else(mismatch)?;
    let (va, vb) =
        (a.view().expand(&shape).ok_or_else(mismatch)?, b.view().expand(&shape).ok_or_else(mismatch)?);
    let (xs, ys): (&[T], &[T]) = (a.storage_elements(name)?, b.storage_elements(name)?);
    let walk = Walk::new(&shape, [&va.strides, &vb.strides]);
    // A single row has no need to stay whole.
    let unit = if walk.dims.len() == 1 { 1 } else { walk.row() };
    let operands = Operands { walk, xs: &xs[va.offset.min(xs.len())..], ys: &ys[vb.offset.min(ys.len())..] };
    make::<T>(&shape, |out| {
        fill(out, unit, &BinaryKernel { op, operands: &operands, element: PhantomData });
        Ok(())
    })
}

/// One row of a result.
#[inline(always)]
fn combine<T: Float>(op: Binary, out: &mut [T], xs: &[T], ys: &[T], strides: [usize; 2]) {
    match op {
        Binary::Add => combine_by(out, xs, ys, strides, |a, b| a + b),
        Binary::Sub => combine_by(out, xs, ys, strides, |a, b| a - b),
        Binary::Mul => combine_by(out, xs, ys, strides, |a, b| a * b),
        Binary::Div => combine_by(out, xs, ys, strides, |a, b| a / b),
        Binary::SwiGlu => combine_by(out, xs, ys, strides, |a, b| a * sigmoid(a) * b),
    }
}

#[inline(always)]
fn combine_by<T: Float>(
    out: &mut [T],
    xs: &[T],
    ys: &[T],
    strides: [usize; 2],
    f: impl Fn(T::Wide, T::Wide) -> T::Wide,
) {
    match strides {
        [1, 1] => {
            for ((out, &x), &y) in out.iter_mut().zip(xs).zip(ys) {
                *out = T::narrow(f(x.widen(), y.widen()));
            }
        }
        [1, 0] => {
            let y = ys[0].widen();
            for (out, &x) in out.iter_mut().zip(xs) {
                *out = T::narrow(f(x.widen(), y));
            }
        }
        [0, 1] => {
            let x = xs[0].widen();
            for (out, &y) in out.iter_mut().zip(ys) {
                *out = T::narrow(f(x, y.widen()));
            }
        }
        [sx, sy] => {
            for (i, out) in out.iter_mut().enumerate() {
                *out = T::narrow(f(xs[i * sx].widen(), ys[i * sy].widen()));
            }
        }
    }
}

/// A tensor of one value.
pub(crate) fn full<T: Float>(shape: &shardloom_layout::Shape, value: f64) -> Result<Tensor, TensorError> {
    let value = T::narrow(constant::<T::Wide>(value));
    make::<T>(shape, |out| {
        out.fill(value);
        Ok(())
    })
}
