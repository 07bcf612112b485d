//! Rotary position embedding.

use weightloom_cuda::Arg;

use super::{Cuda, address, count, each, float};
use crate::error::Result;
use crate::kernels::rope::{RopeKernels, RopeRows, Rotation};
use crate::ops::RopeStyle;
use crate::tensor::Tensor;

impl RopeKernels for Cuda {
    fn rope(
        &self,
        x: &Tensor,
        cos: &Tensor,
        sin: &Tensor,
        style: RopeStyle,
        rotation: Rotation,
    ) -> Result<Tensor> {
        let op = "rope";
        let kernel = format!("rope_{}", float(op, x.dtype())?);
        let rows = RopeRows::new(x, cos)?;
        let (source, n) = (&rows.source, x.shape().volume());
        let out = self.empty(x.dtype(), source.shape())?;
        let (cos, sin) = (cos.contiguous(op)?, sin.contiguous(op)?);
        let args = [
            address(op, &out)?,
            address(op, source)?,
            address(op, &cos)?,
            address(op, &sin)?,
            count(n / rows.width.max(1)),
            count(rows.width),
            count(rows.positions),
            count(rows.rows_per_position),
            count(rows.rows_per_table),
            Arg::I32(i32::from(style == RopeStyle::Interleaved)),
            Arg::I32(i32::from(rotation == Rotation::Inverse)),
        ];
        self.launch(&kernel, each(n / 2), n, &args)?;
        Ok(rows.restored(out))
    }
}
