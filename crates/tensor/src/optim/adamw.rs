//! AdamW.

use super::{DeviceUpdate, UpdateRule, fused_update, scalar};
use crate::element::Wide;
use crate::error::Result;
use crate::tensor::Tensor;

/// Adam with decoupled weight decay.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct AdamW {
    pub learning_rate: f64,
    /// Decay rate of the running average of gradients.
    pub beta1: f64,
    /// Decay rate of the running average of squared gradients.
    pub beta2: f64,
    /// Term added to the denominator for numerical stability.
    pub eps: f64,
    pub weight_decay: f64,
    /// Factor applied to gradients first, such as that of clipping. 1 leaves
    /// every bit unchanged.
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

/// The states of a parameter.
#[derive(Clone, Debug)]
pub struct Moments {
    /// Running average of gradients.
    pub mean: Tensor,
    /// Running average of squared gradients.
    pub square: Tensor,
}

impl Moments {
    /// Zeros for a parameter.
    pub fn zero(parameter: &Tensor) -> Result<Self> {
        let zero = || Tensor::zeros(parameter.dtype(), parameter.shape(), parameter.device());
        Ok(Self { mean: zero()?, square: zero()? })
    }
}

impl AdamW {
    /// Updates a parameter and its moments in place; see [`fused_update`].
    /// `number` is the number of the step, starting at 1.
    pub fn step(
        &self,
        number: u64,
        parameter: &mut Tensor,
        gradient: &Tensor,
        moments: &mut Moments,
    ) -> Result<()> {
        self.step_with(number, parameter, gradient, [&mut moments.mean, &mut moments.square])
    }

    /// Like [`step`](Self::step), with the running averages as two tensors.
    pub fn step_with(
        &self,
        number: u64,
        parameter: &mut Tensor,
        gradient: &Tensor,
        [mean, square]: [&mut Tensor; 2],
    ) -> Result<()> {
        let bias_correction = |beta: f64| 1.0 - beta.powf(number as f64);
        let update = AdamWConstants {
            beta1: self.beta1,
            beta2: self.beta2,
            eps: self.eps,
            decay: 1.0 - self.learning_rate * self.weight_decay,
            size: self.learning_rate / bias_correction(self.beta1),
            root: 1.0 / bias_correction(self.beta2).sqrt(),
            scale: self.gradient_scale,
        };
        fused_update(update, parameter, gradient, [mean, square])
    }
}

/// The constants of one step.
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct AdamWConstants {
    beta1: f64,
    beta2: f64,
    eps: f64,
    /// Factor of the parameter by weight decay.
    decay: f64,
    /// Learning rate with the bias correction of the mean.
    size: f64,
    /// Bias correction of the root of the mean square.
    root: f64,
    scale: f64,
}

impl UpdateRule<2> for AdamWConstants {
    const NAME: &'static str = "adamw";
    const FLOPS: u64 = 14;

    #[inline(always)]
    fn update<W: Wide>(&self, parameter: W, gradient: W, [mean, square]: [W; 2]) -> (W, [W; 2]) {
        let gradient = gradient * scalar(self.scale);
        let mean = mean * scalar(self.beta1) + gradient * scalar(1.0 - self.beta1);
        let square = square * scalar(self.beta2) + gradient * gradient * scalar(1.0 - self.beta2);
        let direction = mean / (square.sqrt() * scalar(self.root) + scalar(self.eps));
        (parameter * scalar(self.decay) - direction * scalar(self.size), [mean, square])
    }

    fn on_device(&self) -> Option<DeviceUpdate> {
        Some(DeviceUpdate::AdamW(*self))
    }
}
