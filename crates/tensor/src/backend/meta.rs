//! Shapes, dtypes and costs; no data.

use weightloom_layout::{DType, Shape};

use super::Backend;
use crate::adamw::Step;
use crate::costs::{self, Cost};
use crate::error::{Result, TensorError};
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

pub(crate) struct Meta;

fn bytes(x: &Tensor) -> u64 {
    (x.shape().volume() * x.dtype().size()) as u64
}

fn count(shape: &Shape) -> u64 {
    shape.volume() as u64
}

/// Notes the cost of a kernel that reads and writes these.
fn note(kernel: &'static str, flops: u64, reads: &[&Tensor], writes: &[&Tensor]) {
    let bytes = reads.iter().chain(writes).map(|x| bytes(x)).sum();
    costs::add(kernel, Cost { launches: 1, flops, bytes });
}

fn made(kernel: &'static str, flops: u64, reads: &[&Tensor], shape: &Shape, dtype: DType) -> Result<Tensor> {
    let out = Tensor::meta(shape.clone(), dtype);
    note(kernel, flops, reads, &[&out]);
    Ok(out)
}

/// A result like the first operand, at so many operations for each element.
fn like(kernel: &'static str, each: u64, reads: &[&Tensor]) -> Result<Tensor> {
    let first = reads[0];
    made(kernel, each * count(first.shape()), reads, first.shape(), first.dtype())
}

/// A result in the place of an operand that is used up, at so many operations
/// for each element.
fn in_place(kernel: &'static str, each: u64, reads: &[&Tensor], used_up: Tensor) -> Result<Tensor> {
    let (shape, dtype) = (used_up.shape().clone(), used_up.dtype());
    let all: Vec<&Tensor> = reads.iter().copied().chain([&used_up]).collect();
    note(kernel, each * count(&shape), &all, &[&used_up]);
    // Nobody else may hold it, and then its memory is free for the result.
    drop(used_up);
    Ok(Tensor::meta(shape, dtype))
}

/// `[batch, heads, rows, width]` of which heads lie inside rows in memory.
fn by_rows(x: Tensor) -> Result<Tensor> {
    let &[batch, heads, rows, width] = &x.shape()[..] else { return Ok(x) };
    let in_memory = View::contiguous(Shape::new(&[batch, rows, heads, width])?);
    Ok(x.seen_as(in_memory.permute(&[0, 2, 1, 3])))
}

impl Backend for Meta {
    fn fill(&self, _: f64, dtype: DType, shape: &Shape) -> Result<Tensor> {
        made("fill", 0, &[], shape, dtype)
    }

    fn draw(&self, _: Draw, _: &Indices, dtype: DType, shape: &Shape) -> Result<Tensor> {
        made("draw", 40 * count(shape), &[], shape, dtype)
    }

    fn pack(&self, _: &'static str, x: &Tensor) -> Result<Tensor> {
        like("pack", 0, &[x])
    }

    fn cast(&self, x: &Tensor, to: DType) -> Result<Tensor> {
        made("cast", count(x.shape()), &[x], x.shape(), to)
    }

    fn cat(&self, parts: &[Tensor], _: usize, shape: &Shape) -> Result<Tensor> {
        made("cat", 0, &parts.iter().collect::<Vec<_>>(), shape, parts[0].dtype())
    }

    fn unary(&self, op: Unary, x: &Tensor) -> Result<Tensor> {
        like(op.name(), 1, &[x])
    }

    fn unary_gradient(&self, op: Unary, x: &Tensor, gradient: Tensor) -> Result<Tensor> {
        in_place(op.name(), 2, &[x], gradient)
    }

    fn binary(&self, op: Binary, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        like(op.name(), 1, &[a, b])
    }

    fn add_into(&self, into: &mut Tensor, x: &Tensor) -> Result<()> {
        note("add", count(into.shape()), &[into, x], &[into]);
        if !into.is_alone() || !into.is_contiguous() {
            *into = Tensor::meta(into.shape().clone(), into.dtype()).with_origin(into.origin().clone());
        }
        Ok(())
    }

    fn assign(&self, _: &mut Tensor, _: &View, source: &Tensor) -> Result<()> {
        note("assign", 0, &[source], &[source]);
        Ok(())
    }

    fn gate_gradient(&self, gate: Gate, a: &Tensor, b: Tensor, gradient: Tensor) -> Result<[Tensor; 2]> {
        let of_a = in_place(Binary::Gate(gate).name(), 8, &[a, &b], gradient)?;
        let (shape, dtype) = (b.shape().clone(), b.dtype());
        drop(b);
        Ok([of_a, made(Binary::Gate(gate).name(), 0, &[], &shape, dtype)?])
    }

    fn compare(&self, op: Comparison, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        made(op.name(), count(a.shape()), &[a, b], a.shape(), DType::Bool)
    }

    fn select(&self, condition: &Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        made("select", count(a.shape()), &[condition, a, b], a.shape(), a.dtype())
    }

    fn dropout(&self, x: &Tensor, _: f64, _: Draw, _: &Indices) -> Result<Tensor> {
        like("dropout", 40, &[x])
    }

    fn matmul(
        &self,
        a: &Tensor,
        b: &Tensor,
        bias: Option<&Tensor>,
        residual: Option<&Tensor>,
        shape: &Shape,
    ) -> Result<Tensor> {
        let depth = a.shape()[a.shape().ndim() - 1] as u64;
        let reads: Vec<&Tensor> = [Some(a), Some(b), bias, residual].into_iter().flatten().collect();
        let extra = reads.len() as u64 - 2;
        made("matmul", count(shape) * (2 * depth + extra), &reads, shape, a.dtype())
    }

    fn grouped_matmul(&self, x: &Tensor, weights: &Tensor, _: &[usize]) -> Result<Tensor> {
        let (rows, depth, columns) = (x.shape()[0], x.shape()[1], weights.shape()[2]);
        let flops = 2 * (rows * depth * columns) as u64;
        made("grouped_matmul", flops, &[x, weights], &Shape::new(&[rows, columns])?, x.dtype())
    }

    fn grouped_matmul_gradient(&self, x: &Tensor, gradient: &Tensor, groups: &[usize]) -> Result<Tensor> {
        let (rows, depth, columns) = (x.shape()[0], x.shape()[1], gradient.shape()[1]);
        let flops = 2 * (rows * depth * columns) as u64;
        let shape = Shape::new(&[groups.len(), depth, columns])?;
        made("grouped_matmul", flops, &[x, gradient], &shape, x.dtype())
    }

    fn reduce(&self, op: Reduction, x: &Tensor, _: usize, shape: &Shape) -> Result<Tensor> {
        made(op.name(), count(x.shape()), &[x], shape, x.dtype())
    }

    fn product_gradient(&self, x: &Tensor, gradient: &Tensor, _: usize) -> Result<Tensor> {
        like("prod", 3, &[x, gradient])
    }

    fn softmax(&self, op: Softmax, x: &Tensor, _: usize) -> Result<Tensor> {
        like(op.name(), 4, &[x])
    }

    fn softmax_gradient(&self, op: Softmax, y: &Tensor, gradient: Tensor, _: usize) -> Result<Tensor> {
        in_place(op.name(), 4, &[y], gradient)
    }

    fn rms_norm(&self, x: &Tensor, weight: &Tensor, _: f64) -> Result<Tensor> {
        like("rms_norm", 4, &[x, weight])
    }

    fn rms_norm_gradient(
        &self,
        x: &Tensor,
        weight: &Tensor,
        gradient: Tensor,
        _: f64,
    ) -> Result<[Tensor; 2]> {
        let of_x = in_place("rms_norm", 11, &[x, weight], gradient)?;
        Ok([of_x, made("rms_norm", 0, &[], weight.shape(), weight.dtype())?])
    }

    fn layer_norm(&self, x: &Tensor, weight: &Tensor, bias: &Tensor, _: f64) -> Result<Tensor> {
        like("layer_norm", 7, &[x, weight, bias])
    }

    fn layer_norm_gradient(
        &self,
        x: &Tensor,
        weight: &Tensor,
        gradient: Tensor,
        _: f64,
    ) -> Result<[Tensor; 3]> {
        let of_x = in_place("layer_norm", 16, &[x, weight], gradient)?;
        let of_weight = || made("layer_norm", 0, &[], weight.shape(), weight.dtype());
        Ok([of_x, of_weight()?, of_weight()?])
    }

    fn rope(&self, x: &Tensor, cos: &Tensor, sin: &Tensor, _: RopeStyle, _: Turn) -> Result<Tensor> {
        let turned = like("rope", 3, &[x, cos, sin])?;
        let ndim = x.shape().ndim();
        if ndim < 3 || x.is_contiguous() {
            return Ok(turned);
        }
        // Where heads lie inside positions in memory, they do so in the result.
        let mut order: Vec<usize> = (0..ndim).collect();
        order.swap(ndim - 3, ndim - 2);
        let inside = x.view().permute(&order);
        if !inside.is_contiguous() {
            return Ok(turned);
        }
        Ok(turned.seen_as(View::contiguous(inside.shape).permute(&order)))
    }

    fn attention(
        &self,
        geometry: &Geometry,
        [q, k, v]: [&Tensor; 3],
        _: Option<&Tensor>,
    ) -> Result<[Tensor; 2]> {
        let logs = Shape::new(&[geometry.batch, geometry.heads, geometry.queries])?;
        let flops = geometry.scores() * (4 * geometry.width as u64 + 4);
        let out = made("attention", flops, &[q, k, v], q.shape(), q.dtype())?;
        Ok([by_rows(out)?, made("attention", 0, &[], &logs, Geometry::computed_in(q.dtype()))?])
    }

    fn attention_gradient(
        &self,
        geometry: &Geometry,
        [q, k, v]: [&Tensor; 3],
        _: Option<&Tensor>,
        [out, logs]: [&Tensor; 2],
        gradient: &Tensor,
    ) -> Result<[Tensor; 3]> {
        let flops = geometry.scores() * (10 * geometry.width as u64 + 6);
        let of_q = made("attention", flops, &[q, k, v, out, logs, gradient], q.shape(), q.dtype())?;
        let like = |x: &Tensor| by_rows(made("attention", 0, &[], x.shape(), x.dtype())?);
        Ok([by_rows(of_q)?, like(k)?, like(v)?])
    }

    fn index_select(
        &self,
        op: &'static str,
        x: &Tensor,
        _: usize,
        indices: &Tensor,
        shape: &Shape,
    ) -> Result<Tensor> {
        // Only what is chosen is read.
        let out = Tensor::meta(shape.clone(), x.dtype());
        note(op, 0, &[indices, &out], &[&out]);
        Ok(out)
    }

    fn index_add(&self, x: &Tensor, _: usize, indices: &Tensor, shape: &Shape) -> Result<Tensor> {
        made("index_add", count(x.shape()), &[x, indices], shape, x.dtype())
    }

    fn gather(&self, x: &Tensor, _: usize, indices: &Tensor) -> Result<Tensor> {
        let out = Tensor::meta(indices.shape().clone(), x.dtype());
        note("gather", 0, &[indices, &out], &[&out]);
        Ok(out)
    }

    fn scatter(&self, base: Tensor, _: usize, indices: &Tensor, source: &Tensor) -> Result<Tensor> {
        in_place("scatter", 0, &[indices, source], base)
    }

    fn scatter_add(&self, base: Tensor, _: usize, indices: &Tensor, source: &Tensor) -> Result<Tensor> {
        let (shape, dtype) = (base.shape().clone(), base.dtype());
        note("scatter_add", count(source.shape()), &[&base, indices, source], &[&base]);
        drop(base);
        Ok(Tensor::meta(shape, dtype))
    }

    fn cross_entropy(&self, logits: &Tensor, targets: &Tensor, _: CrossEntropy) -> Result<Tensor> {
        let flops = 3 * count(logits.shape());
        made("cross_entropy", flops, &[logits, targets], &Shape::default(), logits.dtype())
    }

    fn cross_entropy_gradient(
        &self,
        logits: Tensor,
        targets: &Tensor,
        _: &Tensor,
        _: CrossEntropy,
    ) -> Result<Tensor> {
        in_place("cross_entropy", 4, &[targets], logits)
    }

    fn cumsum(&self, x: &Tensor, _: usize, _: Direction) -> Result<Tensor> {
        like("cumsum", 1, &[x])
    }

    fn sort(&self, x: &Tensor, row: usize, _: Order) -> Result<[Tensor; 2]> {
        let steps = u64::from(row.max(2).ilog2());
        Ok([like("sort", steps, &[x])?, made("sort", 0, &[], x.shape(), DType::I64)?])
    }

    fn adamw(&self, _: &Step, gradient: &Tensor, [p, m, v]: [&mut Tensor; 3]) -> Result<()> {
        note("adamw", 14 * count(gradient.shape()), &[gradient, p, m, v], &[p, m, v]);
        Ok(())
    }

    fn sgd(
        &self,
        _: &Sgd,
        gradient: &Tensor,
        parameter: &mut Tensor,
        buffer: Option<&mut Tensor>,
    ) -> Result<()> {
        let elements = count(gradient.shape());
        match buffer {
            None => note("sgd", 5 * elements, &[gradient, parameter], &[parameter]),
            Some(buffer) => {
                note("sgd", 7 * elements, &[gradient, parameter, buffer], &[parameter, buffer]);
            }
        }
        Ok(())
    }

    fn squares(&self, x: &Tensor) -> Result<f64> {
        Err(TensorError::NoData { op: "global_norm", shape: x.shape().clone() })
    }
}
