//! Random numbers and dropout.

use weightloom_cuda::Arg;
use weightloom_layout::{DType, Shape};

use super::{Cuda, Strides, address, bytes, count, each, float};
use crate::backend::Cpu;
use crate::error::Result;
use crate::kernels::random::RandomKernels;
use crate::random::{Draw, Indices};
use crate::tensor::Tensor;

impl RandomKernels for Cuda {
    /// Drawn by the host, so that a run has the same initial values on every device.
    fn draw(&self, draw: Draw, indices: &Indices, dtype: DType, shape: &Shape) -> Result<Tensor> {
        let drawn = Cpu.draw(draw, indices, dtype, shape)?;
        drawn.read_host(|bytes| self.upload_bytes(dtype, shape, bytes))?
    }

    fn dropout(&self, x: &Tensor, probability: f64, draw: Draw, indices: &Indices) -> Result<Tensor> {
        let (op, n) = ("dropout", x.shape().volume());
        let kernel = format!("dropout_{}", float(op, x.dtype())?);
        // Masks are uniform numbers; their stream is what the kernel draws from.
        let (Draw::Uniform(stream) | Draw::Normal(stream)) = draw;
        let (start, strides) = match indices {
            Indices::From(first) => (*first, Strides::new(&[n], [&[1]])),
            Indices::In { strides, start, size } => (*start, Strides::new(size, [strides])),
        };
        let kept = 1.0 - probability;
        let out = self.empty(x.dtype(), x.shape())?;
        let args = [
            address(op, &out)?,
            address(op, x)?,
            count(n),
            Arg::F64(probability),
            Arg::F64(if kept > 0.0 { 1.0 / kept } else { 0.0 }),
            Arg::U64(stream.seed),
            Arg::U64(stream.number),
            Arg::U64(start),
            bytes(&strides),
        ];
        self.launch(&kernel, each(n), n, &args)?;
        Ok(out)
    }
}
