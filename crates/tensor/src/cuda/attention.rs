//! Scaled dot-product attention: of halves by [tiles], of other dtypes and odd heads
//! query by query.

mod tiles;

use bytemuck::{Pod, Zeroable};
use weightloom_cuda::{Arg, Grid};
use weightloom_layout::{DType, Shape};

use super::{Cuda, address, bytes, float, wide};
use crate::error::{Result, TensorError};
use crate::kernels::attention::{AttentionKernels, Geometry, KeyLimit, check_documents};
use crate::tensor::Tensor;
use crate::view::View;

const OP: &str = "attention";

/// The widest head that the kernels hold.
const WIDEST: usize = 512;

/// Warps of a block; a warp works on a row.
const WARPS: usize = 4;

/// The argument of the kernels.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Sizes {
    batch: u64,
    heads: u64,
    kv_heads: u64,
    queries: u64,
    keys: u64,
    width: u64,
    q: [u64; 3],
    k: [u64; 3],
    v: [u64; 3],
    out: [u64; 3],
    gradient: [u64; 3],
    scale: f64,
    soft_cap: f64,
    window: u64,
    causal: i32,
    capped: i32,
    ahead: i32,
    unused: i32,
}

fn strides(x: &Tensor) -> [u64; 3] {
    let strides = x.strides();
    [strides[0] as u64, strides[1] as u64, strides[2] as u64]
}

impl Sizes {
    fn new(geometry: &Geometry, [q, k, v]: [&Tensor; 3], out: &Tensor, gradient: &Tensor) -> Result<Self> {
        if geometry.width > WIDEST {
            return Err(TensorError::Shapes { op: OP, shapes: vec![q.shape().clone(), k.shape().clone()] });
        }
        Ok(Self {
            batch: geometry.batch as u64,
            heads: geometry.heads as u64,
            kv_heads: geometry.kv_heads as u64,
            queries: geometry.queries as u64,
            keys: geometry.keys as u64,
            width: geometry.width as u64,
            q: strides(q),
            k: strides(k),
            v: strides(v),
            out: strides(out),
            gradient: strides(gradient),
            scale: geometry.scale,
            soft_cap: geometry.soft_cap.unwrap_or(0.0),
            window: geometry.window.map_or(u64::MAX, |window| window as u64),
            causal: i32::from(geometry.causal),
            capped: i32::from(geometry.soft_cap.is_some()),
            ahead: 0,
            unused: 0,
        })
    }
}

/// The addresses of a padding mask and of document starts.
fn limits(limit: KeyLimit<'_>, geometry: &Geometry) -> Result<[Arg<'static>; 2]> {
    match limit {
        KeyLimit::None => Ok([Arg::Null, Arg::Null]),
        KeyLimit::Padding(mask) => Ok([address(OP, mask)?, Arg::Null]),
        KeyLimit::Documents(starts) => {
            check_limit(limit, geometry)?;
            Ok([Arg::Null, address(OP, starts)?])
        }
    }
}

/// Checks the starts of documents.
fn check_limit(limit: KeyLimit<'_>, geometry: &Geometry) -> Result<()> {
    match limit {
        KeyLimit::Documents(starts) => check_documents(&starts.to_vec::<i64>()?, geometry),
        KeyLimit::None | KeyLimit::Padding(_) => Ok(()),
    }
}

fn warps(rows: usize) -> Grid {
    Grid::new([rows.div_ceil(WARPS) as u32, 1, 1], (32 * WARPS) as u32)
}

impl Cuda {
    /// A new `[batch, heads, rows, width]` tensor, stored as
    /// `[batch, rows, heads, width]`, as projections read and write it.
    fn by_rows(self, dtype: DType, [batch, heads, rows, width]: [usize; 4]) -> Result<Tensor> {
        let stored = self.empty(dtype, &Shape::new(&[batch, rows, heads, width])?)?;
        Ok(stored.with_view(View::contiguous(stored.shape().clone()).permute(&[0, 2, 1, 3])))
    }
}

impl AttentionKernels for Cuda {
    fn attention(&self, geometry: &Geometry, qkv: [&Tensor; 3], limit: KeyLimit<'_>) -> Result<[Tensor; 2]> {
        let Geometry { batch, heads, queries, width, .. } = *geometry;
        let dtype = qkv[0].dtype();
        let name = float(OP, dtype)?;
        let out = self.by_rows(dtype, [batch, heads, queries, width])?;
        let logs = self.empty(wide(dtype), &Shape::new(&[batch, heads, queries])?)?;
        if let Some(shape) = self.tile_shape(geometry, dtype)? {
            check_limit(limit, geometry)?;
            self.attend_tiles((shape, name), geometry, qkv, limit, [&out, &logs])?;
            return Ok([out, logs]);
        }
        let sizes = Sizes::new(geometry, qkv, &out, &out)?;
        let ([mask, documents], [q, k, v]) = (limits(limit, geometry)?, qkv);
        let args = [
            address(OP, &out)?,
            address(OP, &logs)?,
            address(OP, q)?,
            address(OP, k)?,
            address(OP, v)?,
            mask,
            documents,
            bytes(&sizes),
        ];
        let rows = batch * heads * queries;
        self.launch(&format!("attention_{name}"), warps(rows), rows, &args)?;
        Ok([out, logs])
    }

    fn attention_gradient(
        &self,
        geometry: &Geometry,
        qkv: [&Tensor; 3],
        limit: KeyLimit<'_>,
        [out, logs]: [&Tensor; 2],
        gradient: &Tensor,
    ) -> Result<[Tensor; 3]> {
        let Geometry { batch, heads, kv_heads, queries, keys, width, .. } = *geometry;
        let dtype = qkv[0].dtype();
        let name = float(OP, dtype)?;
        let of_q = self.by_rows(dtype, [batch, heads, queries, width])?;
        let of_kv = || self.by_rows(dtype, [batch, kv_heads, keys, width]);
        let (of_k, of_v) = (of_kv()?, of_kv()?);
        let dots = self.empty(wide(dtype), logs.shape())?;
        if let Some(shape) = self.tile_shape(geometry, dtype)? {
            let (given, wanted) = ([out, logs, gradient], [&of_q, &of_k, &of_v, &dots]);
            self.gradient_by_tiles((shape, name), geometry, qkv, limit, given, wanted)?;
            return Ok([of_q, of_k, of_v]);
        }
        let sizes = Sizes::new(geometry, qkv, out, gradient)?;
        let ([mask, documents], [q, k, v]) = (limits(limit, geometry)?, qkv);
        let args = [
            address(OP, &of_q)?,
            address(OP, &dots)?,
            address(OP, q)?,
            address(OP, k)?,
            address(OP, v)?,
            address(OP, out)?,
            address(OP, gradient)?,
            address(OP, logs)?,
            mask,
            documents,
            bytes(&sizes),
        ];
        let rows = batch * heads * queries;
        self.launch(&format!("attention_query_gradient_{name}"), warps(rows), rows, &args)?;
        let args = [
            address(OP, &of_k)?,
            address(OP, &of_v)?,
            address(OP, q)?,
            address(OP, k)?,
            address(OP, v)?,
            address(OP, gradient)?,
            address(OP, logs)?,
            address(OP, &dots)?,
            mask,
            documents,
            bytes(&sizes),
        ];
        let rows = batch * kv_heads * keys;
        self.launch(&format!("attention_key_gradient_{name}"), warps(rows), rows, &args)?;
        Ok([of_q, of_k, of_v])
    }
}
