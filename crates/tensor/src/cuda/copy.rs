//! Copying and casting.

use weightloom_cuda::Arg;
use weightloom_layout::{DType, Shape};

use super::{Cuda, Strides, UNIT, address, bytes, count, each, is_aligned, size_suffix, suffix};
use crate::error::Result;
use crate::kernels::copy::{CopyKernels, cast};
use crate::tensor::Tensor;
use crate::view::View;

/// The number of a dtype in the kernels.
fn code(dtype: DType) -> i32 {
    match dtype {
        DType::F64 => 0,
        DType::F32 => 1,
        DType::Bf16 => 2,
        DType::F16 => 3,
        DType::F8E4M3 => 4,
        DType::F8E5M2 => 5,
        DType::I64 => 6,
        DType::I32 => 7,
        DType::I16 => 8,
        DType::I8 => 9,
        DType::U64 => 10,
        DType::U32 => 11,
        DType::U16 => 12,
        DType::U8 => 13,
        DType::Bool => 14,
    }
}

impl Cuda {
    /// Sets all bytes of a tensor's memory to zero.
    fn clear(self, x: &Tensor) -> Result<()> {
        match x.device_block() {
            Some(block) => Ok(self.gpu()?.clear(block)?),
            None => Ok(()),
        }
    }

    /// Copies elements of any view into a window of a contiguous tensor.
    fn copy_into(self, op: &'static str, into: &Tensor, window: &View, source: &Tensor) -> Result<()> {
        let n = source.shape().volume();
        let strides = Strides::new(&window.shape, [&window.strides, source.strides()]);
        let Arg::Address(start) = address(op, into)? else { return Ok(()) };
        let target = Arg::Address(start + (window.offset * into.dtype().size()) as u64);
        let source_start = address(op, source)?;
        let aligned = is_aligned(target) && is_aligned(source_start);
        if let Some(units) = strides.in_units(2, into.dtype()).filter(|_| aligned) {
            let n = n * into.dtype().size() / UNIT;
            return self.launch("copy_b16", each(n), n, &[target, source_start, count(n), bytes(&units)]);
        }
        let args = [target, source_start, count(n), bytes(&strides)];
        self.launch(&format!("copy_{}", size_suffix(into.dtype())), each(n), n, &args)
    }
}

impl CopyKernels for Cuda {
    fn fill(&self, value: f64, dtype: DType, shape: &Shape) -> Result<Tensor> {
        // The host's cast, so that the same bits are written.
        let one = cast(&Tensor::scalar(value)?, dtype)?;
        let mut bits = [0; 8];
        one.read_host(|bytes| bits[..bytes.len()].copy_from_slice(bytes))?;
        let (out, n) = (self.empty(dtype, shape)?, shape.volume());
        if bits == [0; 8] {
            self.clear(&out)?;
            return Ok(out);
        }
        let args = [address("fill", &out)?, count(n), Arg::U64(u64::from_le_bytes(bits))];
        self.launch(&format!("fill_{}", size_suffix(dtype)), each(n), n, &args)?;
        Ok(out)
    }

    fn pack(&self, op: &'static str, x: &Tensor) -> Result<Tensor> {
        let out = self.empty(x.dtype(), x.shape())?;
        self.copy_into(op, &out, &View::contiguous(x.shape().clone()), x)?;
        Ok(out)
    }

    fn cast(&self, x: &Tensor, to: DType) -> Result<Tensor> {
        let (out, n) = (self.empty(to, x.shape())?, x.shape().volume());
        let operands = [address("cast", &out)?, address("cast", x)?, count(n)];
        if let (DType::F32, DType::Bf16 | DType::F16) | (DType::Bf16 | DType::F16, DType::F32) =
            (x.dtype(), to)
        {
            let kernel = format!("cast_{}_to_{}", suffix(x.dtype()), suffix(to));
            self.launch(&kernel, each(n), n, &operands)?;
            return Ok(out);
        }
        let [target, source, n_elements] = operands;
        let args = [target, source, n_elements, Arg::I32(code(to))];
        self.launch(&format!("cast_{}", suffix(x.dtype())), each(n), n, &args)?;
        Ok(out)
    }

    fn cat(&self, parts: &[Tensor], dim: usize, shape: &Shape) -> Result<Tensor> {
        let out = self.empty(parts[0].dtype(), shape)?;
        let (whole, mut start) = (View::contiguous(shape.clone()), 0);
        for part in parts {
            let size = part.shape()[dim];
            self.copy_into("cat", &out, &whole.narrow(dim, start, size), part)?;
            start += size;
        }
        Ok(out)
    }

    fn assign(&self, into: &mut Tensor, window: &View, source: &Tensor) -> Result<()> {
        if !into.is_unique_and_contiguous() {
            *into = self.pack("assign", into)?.with_origin(into.origin().clone());
        }
        self.copy_into("assign", into, window, source)
    }
}
