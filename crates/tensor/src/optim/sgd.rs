//! SGD with momentum.

use super::{DeviceUpdate, UpdateRule, fused_update, scalar};
use crate::element::Wide;
use crate::error::Result;
use crate::tensor::Tensor;

/// Gradient descent as PyTorch's `SGD`: weight decay is added to the gradient,
/// and momentum has no dampening.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Sgd {
    pub learning_rate: f64,
    pub momentum: f64,
    pub weight_decay: f64,
    /// Factor applied to gradients first, such as that of clipping.
    pub gradient_scale: f64,
}

/// PyTorch's defaults.
impl Default for Sgd {
    fn default() -> Self {
        Self { learning_rate: 1e-3, momentum: 0.0, weight_decay: 0.0, gradient_scale: 1.0 }
    }
}

/// The constants of one step.
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct SgdConstants {
    learning_rate: f64,
    momentum: f64,
    weight_decay: f64,
    scale: f64,
}

impl Sgd {
    /// Updates a parameter in place; see [`fused_update`]. `buffer` is the
    /// momentum buffer, which starts at zero. Without one there is no momentum.
    pub fn step(&self, parameter: &mut Tensor, gradient: &Tensor, buffer: Option<&mut Tensor>) -> Result<()> {
        match buffer {
            None => fused_update::<_, 0>(*self, parameter, gradient, []),
            Some(buffer) => fused_update::<_, 1>(*self, parameter, gradient, [buffer]),
        }
    }

    fn constants(&self) -> SgdConstants {
        let Self { learning_rate, momentum, weight_decay, gradient_scale } = *self;
        SgdConstants { learning_rate, momentum, weight_decay, scale: gradient_scale }
    }

    #[inline(always)]
    fn decayed<W: Wide>(&self, parameter: W, gradient: W) -> W {
        gradient * scalar(self.gradient_scale) + parameter * scalar(self.weight_decay)
    }
}

impl UpdateRule<0> for Sgd {
    const NAME: &'static str = "sgd";
    const FLOPS: u64 = 5;

    #[inline(always)]
    fn update<W: Wide>(&self, parameter: W, gradient: W, []: [W; 0]) -> (W, [W; 0]) {
        (parameter - self.decayed(parameter, gradient) * scalar(self.learning_rate), [])
    }

    fn on_device(&self) -> Option<DeviceUpdate> {
        Some(DeviceUpdate::Sgd(self.constants()))
    }
}

impl UpdateRule<1> for Sgd {
    const NAME: &'static str = "sgd";
    const FLOPS: u64 = 7;

    #[inline(always)]
    fn update<W: Wide>(&self, parameter: W, gradient: W, [buffer]: [W; 1]) -> (W, [W; 1]) {
        let direction = buffer * scalar(self.momentum) + self.decayed(parameter, gradient);
        (parameter - direction * scalar(self.learning_rate), [direction])
    }

    fn on_device(&self) -> Option<DeviceUpdate> {
        Some(DeviceUpdate::Sgd(self.constants()))
    }
}
