//! The table of kernels that every device must have.
//!
//! Operations check shapes and dtypes, arrange views, and know their backward
//! rules; they reach data only through this trait. A further device is a
//! further `impl`, and no operation changes.
//!
//! Unless said otherwise, tensors come contiguous, on one device and with
//! fitting shapes, and a result is contiguous. Operands taken by value may be
//! overwritten if nobody else uses their memory.

mod cpu;
mod meta;

use weightloom_layout::{DType, Shape};

use crate::adamw::Step;
use crate::device::Device;
use crate::error::Result;
use crate::kernels::attention::Geometry;
use crate::kernels::choice::Comparison;
use crate::kernels::elementwise::{Binary, Gate, Unary};
use crate::kernels::order::{Direction, Order};
use crate::kernels::reduce::Reduction;
use crate::kernels::rope::Turn;
use crate::kernels::rows::Softmax;
use crate::ops::{CrossEntropy, RopeStyle};
use crate::random::{Draw, Indices};
use crate::sgd::Sgd;
use crate::tensor::Tensor;
use crate::view::View;

/// The kernels of a device.
pub(crate) fn on(device: Device) -> &'static dyn Backend {
    match device {
        Device::Cpu => &cpu::Cpu,
        Device::Meta => &meta::Meta,
    }
}

pub(crate) trait Backend: Sync {
    /// One value everywhere.
    fn fill(&self, value: f64, dtype: DType, shape: &Shape) -> Result<Tensor>;

    /// Random numbers by index, from the `first`.
    fn draw(&self, draw: Draw, indices: &Indices, dtype: DType, shape: &Shape) -> Result<Tensor>;

    /// The elements of any view without gaps, in new memory.
    fn pack(&self, op: &'static str, x: &Tensor) -> Result<Tensor>;

    /// The same values in another dtype.
    fn cast(&self, x: &Tensor, to: DType) -> Result<Tensor>;

    /// Parts, of any strides, one after another along a dim.
    fn cat(&self, parts: &[Tensor], dim: usize, shape: &Shape) -> Result<Tensor>;

    /// `f(x)`.
    fn unary(&self, op: Unary, x: &Tensor) -> Result<Tensor>;

    /// `gradient · f'(x)`.
    fn unary_gradient(&self, op: Unary, x: &Tensor, gradient: Tensor) -> Result<Tensor>;

    /// `f(a, b)` of operands of one shape and any strides.
    fn binary(&self, op: Binary, a: &Tensor, b: &Tensor) -> Result<Tensor>;

    /// `into + x`, of one shape; `x` of any strides.
    fn add_into(&self, into: &mut Tensor, x: &Tensor) -> Result<()>;

    /// Writes `source`, of any strides, into a window of `into`: a view of its
    /// elements in row-major order, of the source's shape.
    fn assign(&self, into: &mut Tensor, window: &View, source: &Tensor) -> Result<()>;

    /// The gradients of a gate's two operands.
    fn gate_gradient(&self, gate: Gate, a: &Tensor, b: Tensor, gradient: Tensor) -> Result<[Tensor; 2]>;

    /// Whether elements compare so, as bools; one shape, any strides.
    fn compare(&self, op: Comparison, a: &Tensor, b: &Tensor) -> Result<Tensor>;

    /// `a` where the condition holds, else `b`; one shape, any strides.
    fn select(&self, condition: &Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor>;

    /// Elements zeroed by chance, the others scaled up.
    fn dropout(&self, x: &Tensor, probability: f64, draw: Draw, indices: &Indices) -> Result<Tensor>;

    /// `a @ b + bias + residual` over equal batch dims; `a` and `b` of any
    /// strides.
    fn matmul(
        &self,
        a: &Tensor,
        b: &Tensor,
        bias: Option<&Tensor>,
        residual: Option<&Tensor>,
        shape: &Shape,
    ) -> Result<Tensor>;

    /// Rows in consecutive groups, each times its own matrix; `weights` of any
    /// strides.
    fn grouped_matmul(&self, x: &Tensor, weights: &Tensor, groups: &[usize]) -> Result<Tensor>;

    /// The gradient of a grouped product's matrices.
    fn grouped_matmul_gradient(&self, x: &Tensor, gradient: &Tensor, groups: &[usize]) -> Result<Tensor>;

    /// One value for each row of this length.
    fn reduce(&self, op: Reduction, x: &Tensor, row: usize, shape: &Shape) -> Result<Tensor>;

    /// The gradient of a product along rows.
    fn product_gradient(&self, x: &Tensor, gradient: &Tensor, row: usize) -> Result<Tensor>;

    /// Softmax or its logarithm of rows of this length.
    fn softmax(&self, op: Softmax, x: &Tensor, row: usize) -> Result<Tensor>;

    /// Its gradient, from its result.
    fn softmax_gradient(&self, op: Softmax, y: &Tensor, gradient: Tensor, row: usize) -> Result<Tensor>;

    /// `x / rms(x) · weight` along the last dim.
    fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor>;

    /// The gradients of `x` and weight.
    fn rms_norm_gradient(
        &self,
        x: &Tensor,
        weight: &Tensor,
        gradient: Tensor,
        eps: f64,
    ) -> Result<[Tensor; 2]>;

    /// `(x - mean) / deviation · weight + bias` along the last dim.
    fn layer_norm(&self, x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f64) -> Result<Tensor>;

    /// The gradients of `x`, weight and bias.
    fn layer_norm_gradient(
        &self,
        x: &Tensor,
        weight: &Tensor,
        gradient: Tensor,
        eps: f64,
    ) -> Result<[Tensor; 3]>;

    /// Pairs turned by angles given as cosines and sines; `x` of any strides.
    fn rope(&self, x: &Tensor, cos: &Tensor, sin: &Tensor, style: RopeStyle, turn: Turn) -> Result<Tensor>;

    /// Attention, and the logarithm of each query's sum of weights.
    fn attention(&self, geometry: &Geometry, qkv: [&Tensor; 3], mask: Option<&Tensor>)
    -> Result<[Tensor; 2]>;

    /// The gradients of queries, keys and values.
    fn attention_gradient(
        &self,
        geometry: &Geometry,
        qkv: [&Tensor; 3],
        mask: Option<&Tensor>,
        out_and_logs: [&Tensor; 2],
        gradient: &Tensor,
    ) -> Result<[Tensor; 3]>;

    /// Slices along a dim, chosen by index.
    fn index_select(
        &self,
        op: &'static str,
        x: &Tensor,
        dim: usize,
        indices: &Tensor,
        shape: &Shape,
    ) -> Result<Tensor>;

    /// Slices added up where an index says, in order; the rest is zero.
    fn index_add(&self, x: &Tensor, dim: usize, indices: &Tensor, shape: &Shape) -> Result<Tensor>;

    /// Elements along a dim, each chosen by its own index.
    fn gather(&self, x: &Tensor, dim: usize, indices: &Tensor) -> Result<Tensor>;

    /// Elements put along a dim, each where its own index says; of several for
    /// one place the last stays.
    fn scatter(&self, base: Tensor, dim: usize, indices: &Tensor, source: &Tensor) -> Result<Tensor>;

    /// Elements added along a dim, each where its own index says, in order.
    fn scatter_add(&self, base: Tensor, dim: usize, indices: &Tensor, source: &Tensor) -> Result<Tensor>;

    /// The mean cross-entropy of rows of logits.
    fn cross_entropy(&self, logits: &Tensor, targets: &Tensor, options: CrossEntropy) -> Result<Tensor>;

    /// Its gradient.
    fn cross_entropy_gradient(
        &self,
        logits: Tensor,
        targets: &Tensor,
        gradient: &Tensor,
        options: CrossEntropy,
    ) -> Result<Tensor>;

    /// Running sums of rows of this length.
    fn cumsum(&self, x: &Tensor, row: usize, direction: Direction) -> Result<Tensor>;

    /// Rows of this length sorted, and where each element came from.
    fn sort(&self, x: &Tensor, row: usize, order: Order) -> Result<[Tensor; 2]>;

    /// One AdamW step in place.
    fn adamw(&self, step: &Step, gradient: &Tensor, state: [&mut Tensor; 3]) -> Result<()>;

    /// One step of gradient descent in place, with momentum if there is a
    /// running sum of gradients.
    fn sgd(
        &self,
        step: &Sgd,
        gradient: &Tensor,
        parameter: &mut Tensor,
        buffer: Option<&mut Tensor>,
    ) -> Result<()>;

    /// The sum of squares. Waits for the result.
    fn squares(&self, x: &Tensor) -> Result<f64>;
}
