//! Outputs and costs of kernels on the meta device.

use weightloom_layout::{DType, Shape};

use crate::costs::{self, Cost};
use crate::error::Result;
use crate::tensor::Tensor;
use crate::view::View;

fn bytes(x: &Tensor) -> u64 {
    (x.shape().volume() * x.dtype().size()) as u64
}

pub(crate) fn volume(shape: &Shape) -> u64 {
    shape.volume() as u64
}

/// Records the cost of a kernel that reads and writes these tensors.
pub(crate) fn record(kernel: &'static str, flops: u64, reads: &[&Tensor], writes: &[&Tensor]) {
    let bytes = reads.iter().chain(writes).map(|x| bytes(x)).sum();
    costs::add(kernel, Cost { launches: 1, flops, bytes });
}

/// An output, and the record of its cost.
pub(crate) fn output(
    kernel: &'static str,
    flops: u64,
    reads: &[&Tensor],
    shape: &Shape,
    dtype: DType,
) -> Result<Tensor> {
    let out = Tensor::meta(shape.clone(), dtype);
    record(kernel, flops, reads, &[&out]);
    Ok(out)
}

/// An output like the first operand, at `each` operations per element.
pub(crate) fn output_like(kernel: &'static str, each: u64, reads: &[&Tensor]) -> Result<Tensor> {
    let first = reads[0];
    output(kernel, each * volume(first.shape()), reads, first.shape(), first.dtype())
}

/// An output in the memory of an operand, at `each` operations per element.
pub(crate) fn output_in_place(
    kernel: &'static str,
    each: u64,
    reads: &[&Tensor],
    operand: Tensor,
) -> Result<Tensor> {
    let (shape, dtype) = (operand.shape().clone(), operand.dtype());
    let all: Vec<&Tensor> = reads.iter().copied().chain([&operand]).collect();
    record(kernel, each * volume(&shape), &all, &[&operand]);
    // Unless it is shared, its memory is free for the output.
    drop(operand);
    Ok(Tensor::meta(shape, dtype))
}

/// `[batch, heads, rows, width]` stored as `[batch, rows, heads, width]`.
pub(crate) fn heads_inside_rows(x: Tensor) -> Result<Tensor> {
    let &[batch, heads, rows, width] = &x.shape()[..] else { return Ok(x) };
    let in_memory = View::contiguous(Shape::new(&[batch, rows, heads, width])?);
    Ok(x.with_view(in_memory.permute(&[0, 2, 1, 3])))
}
