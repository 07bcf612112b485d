//! The kernels of this process's CPU.

use weightloom_layout::{DType, Shape};

use super::Backend;
use crate::adamw::Step;
use crate::element::{with_float, with_gradient};
use crate::error::Result;
use crate::kernels::attention::{self, Geometry};
use crate::kernels::choice::{self, Comparison};
use crate::kernels::elementwise::{self, Binary, Gate, Unary};
use crate::kernels::order::{self, Direction, Order};
use crate::kernels::reduce::{self, Reduction};
use crate::kernels::rope::{self, Turn};
use crate::kernels::rows::{self, Softmax};
use crate::kernels::{adamw, copy, cross_entropy, index, matmul, norm, random, sgd};
use crate::ops::{CrossEntropy, RopeStyle};
use crate::random::{Draw, Indices};
use crate::sgd::Sgd;
use crate::tensor::Tensor;
use crate::view::View;

pub(crate) struct Cpu;

impl Backend for Cpu {
    fn fill(&self, value: f64, dtype: DType, shape: &Shape) -> Result<Tensor> {
        copy::filled(value, dtype, shape)
    }

    fn draw(&self, draw: Draw, indices: &Indices, dtype: DType, shape: &Shape) -> Result<Tensor> {
        with_float!("draw", dtype, T => random::draw::<T>(draw, indices, shape))
    }

    fn pack(&self, op: &'static str, x: &Tensor) -> Result<Tensor> {
        copy::packed(x, op)
    }

    fn cast(&self, x: &Tensor, to: DType) -> Result<Tensor> {
        copy::cast(x, to)
    }

    fn cat(&self, parts: &[Tensor], dim: usize, shape: &Shape) -> Result<Tensor> {
        copy::cat(parts, dim, shape)
    }

    fn unary(&self, op: Unary, x: &Tensor) -> Result<Tensor> {
        with_float!(op.name(), x.dtype(), T => elementwise::unary::<T>(op, x))
    }

    fn unary_gradient(&self, op: Unary, x: &Tensor, gradient: Tensor) -> Result<Tensor> {
        with_float!(op.name(), x.dtype(), T => elementwise::unary_gradient::<T>(op, x, gradient))
    }

    fn binary(&self, op: Binary, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        with_float!(op.name(), a.dtype(), T => elementwise::binary::<T>(op, a, b))
    }

    fn add_into(&self, into: &mut Tensor, x: &Tensor) -> Result<()> {
        let x = x.packed("add")?;
        with_float!("add", into.dtype(), T => elementwise::add_into::<T>(into, &x))
    }

    fn assign(&self, into: &mut Tensor, window: &View, source: &Tensor) -> Result<()> {
        copy::assign(into, window, source)
    }

    fn gate_gradient(&self, gate: Gate, a: &Tensor, b: Tensor, gradient: Tensor) -> Result<[Tensor; 2]> {
        let op = Binary::Gate(gate).name();
        with_float!(op, a.dtype(), T => elementwise::gate_gradient::<T>(gate, a, b, gradient))
    }

    fn compare(&self, op: Comparison, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        choice::compare(op, a, b)
    }

    fn select(&self, condition: &Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        choice::select(condition, a, b)
    }

    fn dropout(&self, x: &Tensor, probability: f64, draw: Draw, indices: &Indices) -> Result<Tensor> {
        with_float!("dropout", x.dtype(), T => random::dropout::<T>(x, probability, draw, indices))
    }

    fn matmul(
        &self,
        a: &Tensor,
        b: &Tensor,
        bias: Option<&Tensor>,
        residual: Option<&Tensor>,
        shape: &Shape,
    ) -> Result<Tensor> {
        with_float!("matmul", a.dtype(), T => matmul::matmul::<T>(a, b, bias, residual, shape))
    }

    fn grouped_matmul(&self, x: &Tensor, weights: &Tensor, groups: &[usize]) -> Result<Tensor> {
        with_float!("grouped_matmul", x.dtype(), T => matmul::grouped_matmul::<T>(x, weights, groups))
    }

    fn grouped_matmul_gradient(&self, x: &Tensor, gradient: &Tensor, groups: &[usize]) -> Result<Tensor> {
        with_float!("grouped_matmul", x.dtype(), T => matmul::grouped_matmul_gradient::<T>(x, gradient, groups))
    }

    fn reduce(&self, op: Reduction, x: &Tensor, row: usize, shape: &Shape) -> Result<Tensor> {
        with_float!(op.name(), x.dtype(), T => reduce::reduce::<T>(op, x, row, shape))
    }

    fn product_gradient(&self, x: &Tensor, gradient: &Tensor, row: usize) -> Result<Tensor> {
        with_float!("prod", x.dtype(), T => reduce::product_gradient::<T>(x, gradient, row))
    }

    fn softmax(&self, op: Softmax, x: &Tensor, row: usize) -> Result<Tensor> {
        with_float!(op.name(), x.dtype(), T => rows::softmax::<T>(op, x, row))
    }

    fn softmax_gradient(&self, op: Softmax, y: &Tensor, gradient: Tensor, row: usize) -> Result<Tensor> {
        with_float!(op.name(), y.dtype(), T => rows::softmax_gradient::<T>(op, y, gradient, row))
    }

    fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
        with_float!("rms_norm", x.dtype(), T => norm::rms_norm::<T>(x, weight, eps))
    }

    fn rms_norm_gradient(
        &self,
        x: &Tensor,
        weight: &Tensor,
        gradient: Tensor,
        eps: f64,
    ) -> Result<[Tensor; 2]> {
        with_float!("rms_norm", x.dtype(), T => norm::rms_norm_gradient::<T>(x, weight, gradient, eps))
    }

    fn layer_norm(&self, x: &Tensor, weight: &Tensor, bias: &Tensor, eps: f64) -> Result<Tensor> {
        with_float!("layer_norm", x.dtype(), T => norm::layer_norm::<T>(x, weight, bias, eps))
    }

    fn layer_norm_gradient(
        &self,
        x: &Tensor,
        weight: &Tensor,
        gradient: Tensor,
        eps: f64,
    ) -> Result<[Tensor; 3]> {
        with_float!("layer_norm", x.dtype(), T => norm::layer_norm_gradient::<T>(x, weight, gradient, eps))
    }

    fn rope(&self, x: &Tensor, cos: &Tensor, sin: &Tensor, style: RopeStyle, turn: Turn) -> Result<Tensor> {
        with_float!("rope", x.dtype(), T => rope::rope::<T>(x, [cos, sin], style, turn))
    }

    fn attention(
        &self,
        geometry: &Geometry,
        qkv: [&Tensor; 3],
        mask: Option<&Tensor>,
    ) -> Result<[Tensor; 2]> {
        with_float!("attention", qkv[0].dtype(), T => attention::attention::<T>(geometry, qkv, mask))
    }

    fn attention_gradient(
        &self,
        geometry: &Geometry,
        qkv: [&Tensor; 3],
        mask: Option<&Tensor>,
        out_and_logs: [&Tensor; 2],
        gradient: &Tensor,
    ) -> Result<[Tensor; 3]> {
        with_float!("attention", qkv[0].dtype(), T => {
            attention::attention_gradient::<T>(geometry, qkv, mask, out_and_logs, gradient)
        })
    }

    fn index_select(
        &self,
        op: &'static str,
        x: &Tensor,
        dim: usize,
        indices: &Tensor,
        shape: &Shape,
    ) -> Result<Tensor> {
        index::index_select(op, x, dim, indices, shape)
    }

    fn index_add(&self, x: &Tensor, dim: usize, indices: &Tensor, shape: &Shape) -> Result<Tensor> {
        with_float!("index_add", x.dtype(), T => index::index_add::<T>(x, dim, indices, shape))
    }

    fn gather(&self, x: &Tensor, dim: usize, indices: &Tensor) -> Result<Tensor> {
        index::gather(x, dim, indices)
    }

    fn scatter(&self, base: Tensor, dim: usize, indices: &Tensor, source: &Tensor) -> Result<Tensor> {
        index::scatter(base, dim, indices, source)
    }

    fn scatter_add(&self, base: Tensor, dim: usize, indices: &Tensor, source: &Tensor) -> Result<Tensor> {
        with_float!("scatter_add", base.dtype(), T => index::scatter_add::<T>(base, dim, indices, source))
    }

    fn cross_entropy(&self, logits: &Tensor, targets: &Tensor, options: CrossEntropy) -> Result<Tensor> {
        let op = "cross_entropy";
        with_float!(op, logits.dtype(), T => cross_entropy::cross_entropy::<T>(logits, targets, options))
    }

    fn cross_entropy_gradient(
        &self,
        logits: Tensor,
        targets: &Tensor,
        gradient: &Tensor,
        options: CrossEntropy,
    ) -> Result<Tensor> {
        with_float!("cross_entropy", logits.dtype(), T => {
            cross_entropy::cross_entropy_gradient::<T>(logits, targets, gradient, options)
        })
    }

    fn cumsum(&self, x: &Tensor, row: usize, direction: Direction) -> Result<Tensor> {
        with_float!("cumsum", x.dtype(), T => order::cumsum::<T>(x, row, direction))
    }

    fn sort(&self, x: &Tensor, row: usize, order: Order) -> Result<[Tensor; 2]> {
        order::sort(x, row, order)
    }

    fn adamw(&self, step: &Step, gradient: &Tensor, state: [&mut Tensor; 3]) -> Result<()> {
        with_gradient!("adamw", state[0].dtype(), gradient.dtype(), (T, G) => {
            adamw::adamw::<T, G>(step, gradient, state)
        })
    }

    fn sgd(
        &self,
        step: &Sgd,
        gradient: &Tensor,
        parameter: &mut Tensor,
        buffer: Option<&mut Tensor>,
    ) -> Result<()> {
        with_gradient!("sgd", parameter.dtype(), gradient.dtype(), (T, G) => {
            sgd::sgd::<T, G>(step, gradient, parameter, buffer)
        })
    }

    fn squares(&self, x: &Tensor) -> Result<f64> {
        with_float!("global_norm", x.dtype(), T => adamw::squares::<T>(x))
    }
}
