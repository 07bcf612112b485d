//! The AdamW optimizer in one pass, and the norm that gradients are clipped by.

use weightloom_layout::DType;

use crate::backend::on;
use crate::device::Device;
use crate::error::TensorError;
use crate::ops::{check_same_device, common};
use crate::tensor::Tensor;

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
    /// What gradients are multiplied by before anything else, such as the
    /// factor that clips them. With 1 nothing changes, not even a bit.
    pub gradient_scale: f64,
}

/// PyTorch's defaults.
impl Default for AdamW {
    fn default() -> Self {
        Self {
            learning_rate: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 1e-2,
            gradient_scale: 1.0,
        }
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

/// The numbers of one step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) eps: f64,
    /// What is left of a parameter by weight decay.
    pub(crate) kept: f64,
    /// The step size, corrected for moments that began at zero.
    pub(crate) size: f64,
    /// What the root of the mean square is multiplied by, for the same reason.
    pub(crate) root: f64,
    /// What gradients are multiplied by.
    pub(crate) scale: f64,
}

impl AdamW {
    /// One step in place, the `number`-th, counted from 1. Parameter and moments
    /// have one dtype, which should be `f32` or `f64`: what a step adds is soon
    /// too small for a half type. The gradient has the same; that of `f32` may
    /// also be of a half type. The parameter stays the same parameter; whoever
    /// else holds its old elements keeps those.
    pub fn step(
        &self,
        number: u64,
        parameter: &mut Tensor,
        gradient: &Tensor,
        moments: &mut Moments,
    ) -> Result<(), TensorError> {
        self.step_with(number, parameter, gradient, [&mut moments.mean, &mut moments.square])
    }

    /// The same, with the running means of gradients and of their squares held
    /// as two tensors by themselves.
    pub fn step_with(
        &self,
        number: u64,
        parameter: &mut Tensor,
        gradient: &Tensor,
        [mean, square]: [&mut Tensor; 2],
    ) -> Result<(), TensorError> {
        let device = alike("adamw", gradient, &[&*parameter, &*mean, &*square])?;
        let correction = |beta: f64| 1.0 - beta.powf(number as f64);
        let step = Step {
            beta1: self.beta1,
            beta2: self.beta2,
            eps: self.eps,
            kept: 1.0 - self.learning_rate * self.weight_decay,
            size: self.learning_rate / correction(self.beta1),
            root: 1.0 / correction(self.beta2).sqrt(),
            scale: self.gradient_scale,
        };
        let gradient = gradient.contiguous("adamw")?;
        on(device).adamw(&step, &gradient, [parameter, mean, square])
    }
}

/// Checks that what an optimizer changes has one shape, one place and one dtype
/// that is computed in, and that the gradient goes with it.
pub(crate) fn alike(op: &'static str, gradient: &Tensor, changed: &[&Tensor]) -> Result<Device, TensorError> {
    if changed.iter().any(|x| x.shape() != gradient.shape()) {
        let shapes = changed.iter().chain([&gradient]).map(|x| x.shape().clone()).collect();
        return Err(TensorError::Shapes { op, shapes });
    }
    let (device, dtype) = common(op, changed)?;
    if !dtype.is_float() || dtype.size() == 1 {
        return Err(TensorError::DType { op, dtype });
    }
    let halves = [DType::Bf16, DType::F16];
    match dtype == DType::F32 && halves.contains(&gradient.dtype()) {
        true => check_same_device(op, &[changed[0], gradient]),
        false => common(op, &[changed[0], gradient]).map(|_| device),
    }
}

/// The Euclidean norm of all elements of all tensors together. Squares are
/// added up in pieces whose order does not depend on threads.
pub fn global_norm(tensors: &[&Tensor]) -> Result<f64, TensorError> {
    let mut total = 0.0;
    for tensor in tensors {
        let packed = tensor.contiguous("global_norm")?;
        total += on(packed.device()).squares(&packed)?;
    }
    Ok(total.sqrt())
}
