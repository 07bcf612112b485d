//! One element at a time, with broadcasting.

use num_traits::{Float as _, One as _, Zero as _};

use super::make;
use super::strides::Walk;
use crate::element::{Float, Wide};
use crate::error::TensorError;
use crate::parallel::pieces;
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

fn sigmoid<W: Wide>(x: W) -> W {
    W::one() / (W::one() + (-x).exp())
}

fn constant<W: Wide>(value: f64) -> W {
    W::from_f64(value).unwrap_or_else(W::nan)
}

/// The inner function of the tanh approximation of gelu, and its derivative.
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
                let $f = |x: $W| x.exp();
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
                let $f = |x: $W| half * x * (one + (x * root).erf());
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
                let $f = |x: $W| x.exp();
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
                let $f = |x: $W| half * (one + (x * root).erf()) + x * density * (-half * x * x).exp();
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

pub(crate) fn unary<T: Float>(op: Unary, x: &Tensor) -> Result<Tensor, TensorError> {
    let source = x.elements::<T>(op.name())?;
    make::<T>(x.shape(), |out| {
        with_unary!(op, T::Wide, f => pieces(out, 1, |start, piece| {
            for (out, &x) in piece.iter_mut().zip(&source[start..]) {
                *out = T::narrow(f(x.widen()));
            }
        }));
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
        with_derivative!(op, T::Wide, f => pieces(out, 1, |start, piece| {
            for ((out, &x), &g) in piece.iter_mut().zip(&source[start..]).zip(&gradient[start..]) {
                *out = T::narrow(g.widen() * f(x.widen()));
            }
        }));
        Ok(())
    })
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

pub(crate) fn binary<T: Float>(op: Binary, a: &Tensor, b: &Tensor) -> Result<Tensor, TensorError> {
    match op {
        Binary::Add => zip::<T>(op.name(), a, b, |a, b| a + b),
        Binary::Sub => zip::<T>(op.name(), a, b, |a, b| a - b),
        Binary::Mul => zip::<T>(op.name(), a, b, |a, b| a * b),
        Binary::Div => zip::<T>(op.name(), a, b, |a, b| a / b),
        Binary::SwiGlu => zip::<T>(op.name(), a, b, |a, b| a * sigmoid(a) * b),
    }
}

/// Combines two tensors of shapes that broadcast; any strides.
fn zip<T: Float>(
    op: &'static str,
    a: &Tensor,
    b: &Tensor,
    f: impl Fn(T::Wide, T::Wide) -> T::Wide + Sync,
) -> Result<Tensor, TensorError> {
    let mismatch = || TensorError::Shapes { op, shapes: vec![a.shape().clone(), b.shape().clone()] };
    let shape = broadcast(a.shape(), b.shape()).ok_or_else(mismatch)?;
    let (va, vb) =
        (a.view().expand(&shape).ok_or_else(mismatch)?, b.view().expand(&shape).ok_or_else(mismatch)?);
    let (xs, ys): (&[T], &[T]) = (a.storage_elements(op)?, b.storage_elements(op)?);
    let walk = Walk::new(&shape, [&va.strides, &vb.strides]);
    make::<T>(&shape, |out| {
        let (row, strides) = (walk.row(), walk.row_strides());
        if walk.dims.len() == 1 {
            let [sx, sy] = strides;
            pieces(out, 1, |start, piece| {
                combine::<T>(
                    piece,
                    &xs[va.offset + start * sx..],
                    &ys[vb.offset + start * sy..],
                    strides,
                    &f,
                );
            });
            return Ok(());
        }
        pieces(out, row, |start, piece| {
            let first = start / row;
            let mut rows = piece.chunks_exact_mut(row);
            walk.rows(first..first + rows.len(), |[oa, ob]| {
                let Some(out) = rows.next() else { return };
                combine::<T>(out, &xs[va.offset + oa..], &ys[vb.offset + ob..], strides, &f);
            });
        });
        Ok(())
    })
}

fn combine<T: Float>(
    out: &mut [T],
    xs: &[T],
    ys: &[T],
    strides: [usize; 2],
    f: &impl Fn(T::Wide, T::Wide) -> T::Wide,
) {
    match strides {
        [1, 1] => {
            for ((out, &x), &y) in out.iter_mut().zip(xs).zip(ys) {
                *out = T::narrow(f(x.widen(), y.widen()));
            }
        }
        [1, 0] => {
            let y = ys[0].widen();
            out.iter_mut().zip(xs).for_each(|(out, &x)| *out = T::narrow(f(x.widen(), y)));
        }
        [0, 1] => {
            let x = xs[0].widen();
            out.iter_mut().zip(ys).for_each(|(out, &y)| *out = T::narrow(f(x, y.widen())));
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
