//! Indexing: index_select, embedding, gather and scatter.

use weightloom_layout::{Dims, Shape};

use super::{check_float, check_same_device, common, indices, shape_mismatch};
use crate::backend::on;
use crate::error::Result;
use crate::tape::{Context, Function, apply_one};
use crate::tensor::Tensor;

/// Slices along a dim.
struct IndexSelect {
    name: &'static str,
    dim: usize,
    from: Shape,
}

impl Function for IndexSelect {
    fn name(&self) -> &'static str {
        self.name
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let (x, chosen) = (inputs[0].contiguous(self.name)?, inputs[1].contiguous(self.name)?);
        let device = check_same_device(self.name, &[&x, &chosen])?;
        indices(self.name, &chosen)?;
        context.save(&[&chosen]);
        let mut dims = Dims::from_slice(x.shape());
        dims[self.dim] = chosen.shape().volume();
        Ok(vec![on(device).index_select(self.name, &x, self.dim, &chosen, &Shape::new(&dims)?)?])
    }

    fn backward(&self, context: Context, gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        let (Some(g), [chosen]) = (&gradients[0], context.saved()) else { return Ok(vec![None, None]) };
        let g = g.contiguous(self.name)?;
        check_float(self.name, g.dtype())?;
        Ok(vec![Some(on(g.device()).index_add(&g, self.dim, chosen, &self.from)?), None])
    }
}

/// Single elements along a dim.
enum Pick {
    Gather { dim: usize },
    Scatter { dim: usize },
    ScatterAdd { dim: usize },
}

impl Pick {
    fn dim(&self) -> usize {
        match *self {
            Self::Gather { dim } | Self::Scatter { dim } | Self::ScatterAdd { dim } => dim,
        }
    }

    /// Whether indices fit a tensor: as many dims, and no larger in any dim but the
    /// indexed one.
    fn fits(&self, x: &Tensor, chosen: &Tensor) -> bool {
        let (x, chosen) = (x.shape(), chosen.shape());
        x.ndim() == chosen.ndim() && (0..x.ndim()).all(|dim| dim == self.dim() || chosen[dim] <= x[dim])
    }
}

impl Function for Pick {
    fn name(&self) -> &'static str {
        match self {
            Self::Gather { .. } => "gather",
            Self::Scatter { .. } => "scatter",
            Self::ScatterAdd { .. } => "scatter_add",
        }
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let name = self.name();
        let (base, chosen) = (&inputs[0], inputs[1].contiguous(name)?);
        let operands: Vec<&Tensor> = inputs.iter().collect();
        let device = check_same_device(name, &operands)?;
        base.check_dim(name, self.dim())?;
        indices(name, &chosen)?;
        if !self.fits(base, &chosen) {
            return Err(shape_mismatch(name, &operands));
        }
        context.save(&[&chosen, &base.shape_only()]);
        let packed = base.contiguous(name)?;
        if let Self::Gather { dim } = *self {
            return Ok(vec![on(device).gather(&packed, dim, &chosen)?]);
        }
        let source = inputs[2].contiguous(name)?;
        common(name, &[&packed, &source])?;
        if source.shape() != chosen.shape() {
            return Err(shape_mismatch(name, &operands));
        }
        Ok(vec![match *self {
            Self::ScatterAdd { dim } => {
                check_float(name, base.dtype())?;
                on(device).scatter_add(packed, dim, &chosen, &source)?
            }
            Self::Gather { dim } | Self::Scatter { dim } => {
                on(device).scatter(packed, dim, &chosen, &source)?
            }
        }])
    }

    fn backward(&self, context: Context, gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        let (Some(g), [chosen, base]) = (&gradients[0], context.saved()) else { return Ok(vec![None; 2]) };
        let g = g.contiguous(self.name())?;
        check_float(self.name(), g.dtype())?;
        let backend = on(g.device());
        Ok(match *self {
            Self::Gather { dim } => {
                let zeros = Tensor::full(0.0, g.dtype(), base.shape(), g.device())?;
                vec![Some(backend.scatter_add(zeros, dim, chosen, &g)?), None]
            }
            Self::ScatterAdd { dim } => {
                let of_source = backend.gather(&g, dim, chosen)?;
                vec![Some(g), None, Some(of_source)]
            }
            Self::Scatter { dim } => {
                let zeros = Tensor::full(0.0, g.dtype(), chosen.shape(), g.device())?;
                let of_base = backend.scatter(g.clone(), dim, chosen, &zeros)?;
                // Of several elements with one target only the last has an effect.
                let numbers = Tensor::arange(chosen.shape().volume(), g.device())?.reshape(chosen.shape())?;
                let none = Tensor::full(-1.0, numbers.dtype(), base.shape(), g.device())?;
                let last = backend.scatter(none, dim, chosen, &numbers.contiguous("scatter")?)?;
                let stays = backend.gather(&last, dim, chosen)?.eq(&numbers)?;
                let of_source = stays.select(&backend.gather(&g, dim, chosen)?, &zeros)?;
                vec![Some(of_base), None, Some(of_source)]
            }
        })
    }
}

impl Tensor {
    /// Slices along a dim at the `i64` indices of a 1-dimensional tensor.
    pub fn index_select(&self, dim: usize, chosen: &Self) -> Result<Self> {
        self.check_dim("index_select", dim)?;
        if chosen.shape().ndim() != 1 {
            return Err(shape_mismatch("index_select", &[self, chosen]));
        }
        let function = IndexSelect { name: "index_select", dim, from: self.shape().clone() };
        apply_one(function, &[self.clone(), chosen.clone()])
    }

    /// Rows of this table at `i64` indices of any shape.
    pub fn embedding(&self, chosen: &Self) -> Result<Self> {
        if self.shape().ndim() != 2 {
            return Err(shape_mismatch("embedding", &[self, chosen]));
        }
        let dims: Dims = chosen.shape().iter().copied().chain([self.shape()[1]]).collect();
        let shape = Shape::new(&dims)?;
        let function = IndexSelect { name: "embedding", dim: 0, from: self.shape().clone() };
        apply_one(function, &[self.clone(), chosen.clone()])?.reshape(&shape)
    }

    /// Elements at `i64` indices along a dim; the other coordinates are those of
    /// the index. The result has the shape of the indices.
    pub fn gather(&self, dim: usize, chosen: &Self) -> Result<Self> {
        apply_one(Pick::Gather { dim }, &[self.clone(), chosen.clone()])
    }

    /// This tensor with the elements of `source` written at `i64` indices along a
    /// dim. Of several elements with one target, the last wins.
    pub fn scatter(&self, dim: usize, chosen: &Self, source: &Self) -> Result<Self> {
        apply_one(Pick::Scatter { dim }, &[self.clone(), chosen.clone(), source.clone()])
    }

    /// This tensor with the elements of `source` added at `i64` indices along a dim,
    /// in order.
    pub fn scatter_add(&self, dim: usize, chosen: &Self, source: &Self) -> Result<Self> {
        apply_one(Pick::ScatterAdd { dim }, &[self.clone(), chosen.clone(), source.clone()])
    }
}
