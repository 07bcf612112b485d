//! Element-wise kernels.

use std::marker::PhantomData;

use num_traits::{Float as _, One as _, Zero as _};
use pulp::{Simd, WithSimd};
use weightloom_layout::DType;

use super::strides::Walk;
use super::{make, rewrite_pieces};
use crate::backend::meta::{output, output_in_place, output_like, record, volume};
use crate::backend::{Cpu, Meta};
use crate::element::{Element, Float, Wide, with_float};
use crate::error::Result;
use crate::meter::counts_for_gpu;
use crate::parallel::{PIECE, fill, kernel, share};
use crate::tensor::Tensor;
use crate::vectors::dispatch;

/// Element-wise kernels.
pub(crate) trait ElementwiseKernels {
    /// The sum of two tensors of halves of the same shape, in f32.
    fn add_halves(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        add_cast(a, b)
    }

    /// `f(x)`.
    fn unary(&self, op: Unary, x: &Tensor) -> Result<Tensor>;

    /// `gradient · f'(x)`.
    fn unary_gradient(&self, op: Unary, x: &Tensor, gradient: Tensor) -> Result<Tensor>;

    /// `f(a, b)` of operands of one shape and any strides.
    fn binary(&self, op: Binary, a: &Tensor, b: &Tensor) -> Result<Tensor>;

    /// `into + x`, of one shape; `x` of any strides.
    fn add_into(&self, into: &mut Tensor, x: &Tensor) -> Result<()>;

    /// The gradients of a gate's two operands.
    fn gate_gradient(&self, gate: Gate, a: &Tensor, b: Tensor, gradient: Tensor) -> Result<[Tensor; 2]>;
}

impl ElementwiseKernels for Cpu {
    fn unary(&self, op: Unary, x: &Tensor) -> Result<Tensor> {
        with_float!(op.name(), x.dtype(), T => unary::<T>(op, x))
    }

    fn unary_gradient(&self, op: Unary, x: &Tensor, gradient: Tensor) -> Result<Tensor> {
        with_float!(op.name(), x.dtype(), T => unary_gradient::<T>(op, x, gradient))
    }

    fn binary(&self, op: Binary, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        with_float!(op.name(), a.dtype(), T => binary::<T>(op, a, b))
    }

    fn add_into(&self, into: &mut Tensor, x: &Tensor) -> Result<()> {
        let x = x.contiguous("add")?;
        with_float!("add", into.dtype(), T => add_into::<T>(into, &x))
    }

    fn gate_gradient(&self, gate: Gate, a: &Tensor, b: Tensor, gradient: Tensor) -> Result<[Tensor; 2]> {
        let op = Binary::Gate(gate).name();
        with_float!(op, a.dtype(), T => gate_gradient::<T>(gate, a, b, gradient))
    }
}

/// Casts both operands, and adds them.
fn add_cast(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let mut sum = a.cast(DType::F32)?;
    sum.add_assign(&b.cast(DType::F32)?)?;
    Ok(sum)
}

impl ElementwiseKernels for Meta {
    fn add_halves(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        match counts_for_gpu() {
            true => output("add", volume(a.shape()), &[a, b], a.shape(), DType::F32),
            false => add_cast(a, b),
        }
    }

    fn unary(&self, op: Unary, x: &Tensor) -> Result<Tensor> {
        output_like(op.name(), 1, &[x])
    }

    fn unary_gradient(&self, op: Unary, x: &Tensor, gradient: Tensor) -> Result<Tensor> {
        output_in_place(op.name(), 2, &[x], gradient)
    }

    fn binary(&self, op: Binary, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        output_like(op.name(), 1, &[a, b])
    }

    fn add_into(&self, into: &mut Tensor, x: &Tensor) -> Result<()> {
        record("add", volume(into.shape()), &[into, x], &[into]);
        if !into.is_unique() || !into.is_contiguous() {
            *into = Tensor::meta(into.shape().clone(), into.dtype()).with_origin(into.origin().clone());
        }
        Ok(())
    }

    fn gate_gradient(&self, gate: Gate, a: &Tensor, b: Tensor, gradient: Tensor) -> Result<[Tensor; 2]> {
        let of_a = output_in_place(Binary::Gate(gate).name(), 8, &[a, &b], gradient)?;
        let (shape, dtype) = (b.shape().clone(), b.dtype());
        drop(b);
        Ok([of_a, output(Binary::Gate(gate).name(), 0, &[], &shape, dtype)?])
    }
}

/// An element-wise operation with one operand.
#[derive(Clone, Copy, Debug, PartialEq)]
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
    Cos,
    Sin,
    /// `x^power`.
    Power(f64),
    /// Clamps to a range.
    Clamp(f64, f64),
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
            Self::Cos => "cos",
            Self::Sin => "sin",
            Self::Power(_) => "powf",
            Self::Clamp(..) => "clamp",
        }
    }
}

#[inline(always)]
fn sigmoid<S: Simd, W: Wide>(x: W) -> W {
    W::one() / (W::one() + (-x).exp_simd::<S>())
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

#[inline(always)]
fn gelu<S: Simd, W: Wide>(x: W) -> W {
    let root = constant::<W>(std::f64::consts::FRAC_1_SQRT_2);
    constant::<W>(0.5) * x * (W::one() + (x * root).erf_simd::<S>())
}

#[inline(always)]
fn gelu_slope<S: Simd, W: Wide>(x: W) -> W {
    let (half, root) = (constant::<W>(0.5), constant::<W>(std::f64::consts::FRAC_1_SQRT_2));
    let density = constant::<W>(0.398_942_280_401_432_7);
    half * (W::one() + (x * root).erf_simd::<S>()) + x * density * (-half * x * x).exp_simd::<S>()
}

#[inline(always)]
fn gelu_tanh_slope<S: Simd, W: Wide>(x: W) -> W {
    let (half, (inner, slope)) = (constant::<W>(0.5), gelu_inner(x));
    let t = inner.tanh_simd::<S>();
    half * (W::one() + t) + half * x * (W::one() - t * t) * slope
}

#[inline(always)]
fn gelu_tanh<S: Simd, W: Wide>(x: W) -> W {
    constant::<W>(0.5) * x * (W::one() + gelu_inner(x).0.tanh_simd::<S>())
}

/// Calls `$body` with `$f` as the function of an operation, compiled once for each.
macro_rules! with_unary {
    ($op:expr, $W:ty, $f:ident => $body:expr) => {{
        let one = <$W>::one();
        match $op {
            Unary::Neg => {
                let $f = |x: $W| -x;
                $body
            }
            Unary::Exp => {
                let $f = |x: $W| x.exp_simd::<S>();
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
                let $f = |x: $W| sigmoid::<S, _>(x);
                $body
            }
            Unary::Tanh => {
                let $f = |x: $W| x.tanh_simd::<S>();
                $body
            }
            Unary::Silu => {
                let $f = |x: $W| x * sigmoid::<S, _>(x);
                $body
            }
            Unary::Gelu => {
                let $f = |x: $W| gelu::<S, _>(x);
                $body
            }
            Unary::GeluTanh => {
                let $f = |x: $W| gelu_tanh::<S, _>(x);
                $body
            }
            Unary::Cos => {
                let $f = |x: $W| x.cos();
                $body
            }
            Unary::Sin => {
                let $f = |x: $W| x.sin();
                $body
            }
            Unary::Power(power) => {
                let power = constant::<$W>(power);
                let $f = |x: $W| x.powf(power);
                $body
            }
            // A NaN stays a NaN.
            Unary::Clamp(low, high) => {
                let (low, high) = (constant::<$W>(low), constant::<$W>(high));
                let $f = |x: $W| {
                    let x = if x < low { low } else { x };
                    if x > high { high } else { x }
                };
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
                let $f = |x: $W| x.exp_simd::<S>();
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
                    let s = sigmoid::<S, _>(x);
                    s * (one - s)
                };
                $body
            }
            Unary::Tanh => {
                let $f = |x: $W| {
                    let t = x.tanh_simd::<S>();
                    one - t * t
                };
                $body
            }
            Unary::Silu => {
                let $f = |x: $W| {
                    let s = sigmoid::<S, _>(x);
                    s * (one + x * (one - s))
                };
                $body
            }
            Unary::Gelu => {
                let $f = |x: $W| gelu_slope::<S, _>(x);
                $body
            }
            Unary::GeluTanh => {
                let $f = |x: $W| gelu_tanh_slope::<S, _>(x);
                $body
            }
            Unary::Cos => {
                let $f = |x: $W| -x.sin();
                $body
            }
            Unary::Sin => {
                let $f = |x: $W| x.cos();
                $body
            }
            // At power 0 the derivative is 0, even where x^-1 is infinite.
            Unary::Power(power) => {
                let (factor, less) = (constant::<$W>(power), constant::<$W>(power - 1.0));
                let $f = |x: $W| if factor == zero { zero } else { factor * x.powf(less) };
                $body
            }
            Unary::Clamp(low, high) => {
                let (low, high) = (constant::<$W>(low), constant::<$W>(high));
                let $f = |x: $W| if x < low || x > high { zero } else { one };
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
    /// Gradients times `f'(x)`, in place.
    DerivativeKernel<T: Float> { op: Unary, source: &'k [T] }
    |start, piece| {
        let source = &source[start..];
        with_derivative!(op, T::Wide, f => {
            for (gradient, &x) in piece.iter_mut().zip(source) {
                *gradient = T::narrow(gradient.widen() * f(x.widen()));
            }
        });
    }
}

pub(crate) fn unary<T: Float>(op: Unary, x: &Tensor) -> Result<Tensor> {
    let source = x.elements::<T>(op.name())?;
    make::<T>(x.shape(), |out| {
        fill(out, 1, &UnaryKernel { op, source, element: PhantomData });
        Ok(())
    })
}

/// `gradient · f'(x)`, in one pass.
pub(crate) fn unary_gradient<T: Float>(op: Unary, x: &Tensor, gradient: Tensor) -> Result<Tensor> {
    let source = x.elements::<T>(op.name())?;
    rewrite_pieces::<T>(gradient, op.name(), 1, &DerivativeKernel { op, source, element: PhantomData })
}

/// An element-wise operation with two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Pow,
    Gate(Gate),
}

/// An activation of one operand, times the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// `silu(a) · b`.
    SwiGlu,
    /// `gelu(a) · b`.
    GeGlu,
    /// The same with the tanh approximation.
    GeGluTanh,
}

impl Binary {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Sub => "sub",
            Self::Mul => "mul",
            Self::Div => "div",
            Self::Pow => "pow",
            Self::Gate(Gate::SwiGlu) => "swiglu",
            Self::Gate(Gate::GeGlu) => "geglu",
            Self::Gate(Gate::GeGluTanh) => "geglu_tanh",
        }
    }
}

/// Two operands broadcast to one shape.
struct Operands<'a, T> {
    walk: Walk<2>,
    xs: &'a [T],
    ys: &'a [T],
}

kernel! {
    /// `f(x, y)` for every element, along rows of any strides.
    BinaryKernel<T: Float> { op: Binary, operands: &'k Operands<'k, T> }
    |start, piece| {
        let strides = operands.walk.row_strides();
        operands.rows(start, piece, |out, xs, ys| combine::<S, T>(op, out, xs, ys, strides));
    }
}

/// Combines two tensors of one shape; any strides.
pub(crate) fn binary<T: Float>(op: Binary, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let operands = Operands::new(op.name(), a, b)?;
    let unit = operands.unit();
    make::<T>(a.shape(), |out| {
        fill(out, unit, &BinaryKernel { op, operands: &operands, element: PhantomData });
        Ok(())
    })
}

impl<'a, T: Element> Operands<'a, T> {
    fn new(op: &'static str, a: &'a Tensor, b: &'a Tensor) -> Result<Self> {
        let (va, vb) = (a.view(), b.view());
        let (xs, ys): (&[T], &[T]) = (a.storage_elements(op)?, b.storage_elements(op)?);
        let walk = Walk::new(a.shape(), [&va.strides, &vb.strides]);
        Ok(Self { walk, xs: &xs[va.offset.min(xs.len())..], ys: &ys[vb.offset.min(ys.len())..] })
    }

    /// The unit of pieces of the result: a row, unless there is only one.
    fn unit(&self) -> usize {
        if self.walk.dims.len() == 1 { 1 } else { self.walk.row() }
    }

    /// Calls `visit` with each row of a piece of the result and the operands from
    /// its start.
    #[inline(always)]
    fn rows<U>(&self, start: usize, piece: &mut [U], mut visit: impl FnMut(&mut [U], &[T], &[T])) {
        // A single call site, so that `visit` is inlined.
        let [sx, sy] = self.walk.row_strides();
        let (row, first, skipped) = match self.walk.dims.len() {
            1 => (piece.len().max(1), 0, start),
            _ => (self.walk.row(), start / self.walk.row(), 0),
        };
        let mut rows = piece.chunks_exact_mut(row);
        self.walk.rows(first..first + rows.len(), |[ox, oy]| {
            if let Some(out) = rows.next() {
                visit(out, &self.xs[ox + skipped * sx..], &self.ys[oy + skipped * sy..]);
            }
        });
    }
}

kernel! {
    /// Adds in place.
    AddKernel<T: Float> { x: &'k [T] }
    |start, piece| {
        for (sum, x) in piece.iter_mut().zip(&x[start..]) {
            *sum = T::narrow(sum.widen() + x.widen());
        }
    }
}

/// Adds a tensor of the same shape in place.
pub(crate) fn add_into<T: Float>(into: &mut Tensor, x: &Tensor) -> Result<()> {
    let x = x.elements::<T>("add")?;
    fill(into.elements_mut::<T>("add")?, 1, &AddKernel { x, element: PhantomData });
    Ok(())
}

struct GatePiece<'a, T> {
    gate: Gate,
    a: &'a [T],
    /// The output gradient, overwritten by the gradient of `a`.
    of_a: &'a mut [T],
    /// The operand `b`, overwritten by its gradient.
    of_b: &'a mut [T],
}

impl<T: Float> WithSimd for GatePiece<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        match self.gate {
            Gate::SwiGlu => self.by(|x| {
                let s = sigmoid::<S, _>(x);
                (x * s, s * (T::Wide::one() + x * (T::Wide::one() - s)))
            }),
            Gate::GeGlu => self.by(|x| (gelu::<S, _>(x), gelu_slope::<S, _>(x))),
            Gate::GeGluTanh => self.by(|x| (gelu_tanh::<S, _>(x), gelu_tanh_slope::<S, _>(x))),
        }
    }
}

impl<T: Float> GatePiece<'_, T> {
    /// With a function that returns its value and its derivative.
    #[inline(always)]
    fn by(self, f: impl Fn(T::Wide) -> (T::Wide, T::Wide)) {
        for ((of_a, of_b), a) in self.of_a.iter_mut().zip(self.of_b).zip(self.a) {
            let (g, b, (value, slope)) = (of_a.widen(), of_b.widen(), f(a.widen()));
            *of_a = T::narrow(g * b * slope);
            *of_b = T::narrow(g * value);
        }
    }
}

/// The gradients of both operands of a gate in one pass, in the memory of `b` and
/// of the gradient unless that is shared.
pub(crate) fn gate_gradient<T: Float>(
    gate: Gate,
    a: &Tensor,
    mut b: Tensor,
    mut gradient: Tensor,
) -> Result<[Tensor; 2]> {
    let op = Binary::Gate(gate).name();
    let a = a.elements::<T>(op)?.chunks(PIECE);
    let of_a = gradient.elements_mut::<T>(op)?.chunks_mut(PIECE);
    let of_b = b.elements_mut::<T>(op)?.chunks_mut(PIECE);
    share(of_a.zip(of_b).zip(a), |((of_a, of_b), a)| dispatch(GatePiece { gate, a, of_a, of_b }));
    Ok([gradient.detach(), b.detach()])
}

/// One row of a result.
#[inline(always)]
fn combine<S: Simd, T: Float>(op: Binary, out: &mut [T], xs: &[T], ys: &[T], strides: [usize; 2]) {
    match op {
        Binary::Add => combine_by(out, xs, ys, strides, |a, b| a + b),
        Binary::Sub => combine_by(out, xs, ys, strides, |a, b| a - b),
        Binary::Mul => combine_by(out, xs, ys, strides, |a, b| a * b),
        Binary::Div => combine_by(out, xs, ys, strides, |a, b| a / b),
        Binary::Pow => combine_by(out, xs, ys, strides, num_traits::Float::powf),
        Binary::Gate(Gate::SwiGlu) => combine_by(out, xs, ys, strides, |a, b| a * sigmoid::<S, _>(a) * b),
        Binary::Gate(Gate::GeGlu) => combine_by(out, xs, ys, strides, |a, b| gelu::<S, _>(a) * b),
        Binary::Gate(Gate::GeGluTanh) => combine_by(out, xs, ys, strides, |a, b| gelu_tanh::<S, _>(a) * b),
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
