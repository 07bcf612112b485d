//! The AdamW optimizer in one pass, and the norm that gradients are clipped by.

use num_traits::Float as _;
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use crate::element::{Float, Wide, with_float};
use crate::error::TensorError;
use crate::kernels::{lanes, make};
use crate::parallel::PIECE;
use crate::tensor::Tensor;
use crate::vectors::dispatch;

/// Adam with decoupled weight decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// The step size.
    pub learning_rate: f64,
    /// How slowly the mean of gradients forgets.
    pub beta1: f64,
    /// How slowly the mean of their squares forgets.
    pub beta2: f64,
    /// Keeps the division finite.
    pub eps: f64,
    /// The share of a parameter that a step of size 1 takes away.
    pub weight_decay: f64,
}

/// PyTorch's defaults.
impl Default for AdamW {
    fn default() -> Self {
        Self { learning_rate: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 1e-2 }
    }
}

/// What AdamW remembers of a parameter.
#[derive(Clone, Debug)]
pub struct Moments {
    /// The running mean of gradients.
    pub mean: Tensor,
    /// The running mean of their squares.
    pub square: Tensor,
}

impl Moments {
    /// Nothing seen yet.
    pub fn zero(parameter: &Tensor) -> Result<Self, TensorError> {
        let zero = || Tensor::zeros(parameter.dtype(), parameter.shape(), parameter.device());
        Ok(Self { mean: zero()?, square: zero()? })
    }
}

impl AdamW {
    /// One step, the `number`-th, counted from 1. Parameter, gradient and
    /// moments have one dtype, which should be `f32` or `f64`: what a step adds
    /// is soon too small for a half type.
    pub fn step(
        &self,
        number: u64,
        parameter: &Tensor,
        gradient: &Tensor,
        moments: &Moments,
    ) -> Result<(Tensor, Moments), TensorError> {
        let operands = [parameter, gradient, &moments.mean, &moments.square];
        if operands.iter().any(|x| x.shape() != parameter.shape()) {
            let shapes = operands.iter().map(|x| x.shape().clone()).collect();
            return Err(TensorError::Shapes { op: "adamw", shapes });
        }
        if operands.iter().any(|x| x.dtype() != parameter.dtype()) {
            let dtypes = operands.iter().map(|x| x.dtype()).collect();
            return Err(TensorError::DTypes { op: "adamw", dtypes });
        }
        let packed = operands.iter().map(|x| x.packed("adamw")).collect::<Result<Vec<_>, _>>()?;
        let packed: [&Tensor; 4] = [&packed[0], &packed[1], &packed[2], &packed[3]];
        with_float!("adamw", parameter.dtype(), T => self.run::<T>(number, packed))
    }

    fn run<T: Float>(&self, number: u64, operands: [&Tensor; 4]) -> Result<(Tensor, Moments), TensorError> {
        let [p, g, m, v] = operands;
        let inputs =
            [p.elements::<T>("adamw")?, g.elements("adamw")?, m.elements("adamw")?, v.elements("adamw")?];
        let factors = Factors::<T::Wide>::new(self, number);
        let shape = p.shape();
        let (mut mean, mut square) = (None, None);
        let parameter = make::<T>(shape, |parameter| {
            square = Some(make::<T>(shape, |square| {
                mean = Some(make::<T>(shape, |mean| {
                    parameter
                        .par_chunks_mut(PIECE)
                        .zip(mean.par_chunks_mut(PIECE))
                        .zip(square.par_chunks_mut(PIECE))
                        .enumerate()
                        .for_each(|(number, ((parameter, mean), square))| {
                            let start = number * PIECE;
                            let inputs = inputs.map(|input| &input[start..start + parameter.len()]);
                            dispatch(Piece { factors, inputs, parameter, mean, square });
                        });
                    Ok(())
                })?);
                Ok(())
            })?);
            Ok(())
        })?;
        match (mean, square) {
            (Some(mean), Some(square)) => Ok((parameter, Moments { mean, square })),
            _ => unreachable!("both were made above, or an error was returned"),
        }
    }
}

/// The numbers of a step, in what it is computed in.
#[derive(Clone, Copy)]
struct Factors<W> {
    beta1: W,
    beta2: W,
    rest1: W,
    rest2: W,
    eps: W,
    kept: W,
    step: W,
    root: W,
}

impl<W: Wide> Factors<W> {
    fn new(options: &AdamW, number: u64) -> Self {
        let wide = |value: f64| W::from_f64(value).unwrap_or_else(W::nan);
        let correction = |beta: f64| 1.0 - beta.powf(number as f64);
        Self {
            beta1: wide(options.beta1),
            beta2: wide(options.beta2),
            rest1: wide(1.0 - options.beta1),
            rest2: wide(1.0 - options.beta2),
            eps: wide(options.eps),
            kept: wide(1.0 - options.learning_rate * options.weight_decay),
            step: wide(options.learning_rate / correction(options.beta1)),
            root: wide(1.0 / correction(options.beta2).sqrt()),
        }
    }
}

struct Piece<'a, T: Float> {
    factors: Factors<T::Wide>,
    /// Parameter, gradient, mean, square.
    inputs: [&'a [T]; 4],
    parameter: &'a mut [T],
    mean: &'a mut [T],
    square: &'a mut [T],
}

impl<T: Float> WithSimd for Piece<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _width: S) {
        let Factors { beta1, beta2, rest1, rest2, eps, kept, step, root } = self.factors;
        let [p, g, m, v] = self.inputs;
        let inputs = p.iter().zip(g).zip(m).zip(v);
        let outputs = self.parameter.iter_mut().zip(self.mean).zip(self.square);
        for (((new_p, new_m), new_v), (((p, g), m), v)) in outputs.zip(inputs) {
            let g = g.widen();
            let mean = m.widen() * beta1 + g * rest1;
            let square = v.widen() * beta2 + g * g * rest2;
            let direction = mean / (square.sqrt() * root + eps);
            *new_p = T::narrow(p.widen() * kept - direction * step);
            *new_m = T::narrow(mean);
            *new_v = T::narrow(square);
        }
    }
}

/// The Euclidean norm of all elements of all tensors together. Squares are
/// added up in pieces whose order does not depend on threads.
pub fn global_norm(tensors: &[&Tensor]) -> Result<f64, TensorError> {
    let mut total = 0.0;
    for tensor in tensors {
        let packed = tensor.packed("global_norm")?;
        total += with_float!("global_norm", packed.dtype(), T => squares::<T>(&packed))?;
    }
    Ok(total.sqrt())
}

fn squares<T: Float>(x: &Tensor) -> Result<f64, TensorError> {
    let pieces: Vec<f64> = x
        .elements::<T>("global_norm")?
        .par_chunks(PIECE)
        .map(|piece| num_traits::ToPrimitive::to_f64(&lanes::sum(piece, |x| x * x)).unwrap_or(f64::NAN))
        .collect();
    Ok(pieces.into_iter().sum())
}
