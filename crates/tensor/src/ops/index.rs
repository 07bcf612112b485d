//! Elements and slices chosen by index.

use weightloom_layout::{Dims, Shape};

use super::{common, computed, indices, mismatch, one_device};
use crate::backend::on;
use crate::error::TensorError;
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

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let (x, chosen) = (inputs[0].packed(self.name)?, inputs[1].packed(self.name)?);
        let device = one_device(self.name, &[&x, &chosen])?;
        indices(self.name, &chosen)?;
        context.save(&[&chosen]);
        let mut dims = Dims::from_slice(x.shape());
        dims[self.dim] = chosen.shape().volume();
        Ok(vec![on(device).index_select(self.name, &x, self.dim, &chosen, &Shape::new(&dims)?)?])
    }

    fn backward(
        &self,
        context: Context,
        gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let (Some(g), [chosen]) = (&gradients[0], context.saved()) else { return Ok(vec![None, None]) };
        let g = g.packed(self.name)?;
        computed(self.name, g.dtype())?;
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

    /// Whether indices choose inside a tensor: as many dims, and in all but the
    /// one that is indexed no size above the tensor's.
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

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let name = self.name();
        let (base, chosen) = (&inputs[0], inputs[1].packed(name)?);
        let operands: Vec<&Tensor> = inputs.iter().collect();
        let device = one_device(name, &operands)?;
        base.check_dim(name, self.dim())?;
        indices(name, &chosen)?;
        if !self.fits(base, &chosen) {
            return Err(mismatch(name, &operands));
        }
        context.save(&[&chosen, &base.shape_only()]);
        let packed = base.packed(name)?;
        if let Self::Gather { dim } = *self {
            return Ok(vec![on(device).gather(&packed, dim, &chosen)?]);
        }
        let source = inputs[2].packed(name)?;
        common(name, &[&packed, &source])?;
        if source.shape() != chosen.shape() {
            return Err(mismatch(name, &operands));
        }
        Ok(vec![match *self {
            Self::ScatterAdd { dim } => {
                computed(name, base.dtype())?;
                on(device).scatter_add(packed, dim, &chosen, &source)?
            }
            Self::Gather { dim } | Self::Scatter { dim } => {
                on(device).scatter(packed, dim, &chosen, &source)?
            }
        }])
    }

    fn backward(
        &self,
        context: Context,
        gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let (Some(g), [chosen, base]) = (&gradients[0], context.saved()) else { return Ok(vec![None; 2]) };
        let g = g.packed(self.name())?;
        computed(self.name(), g.dtype())?;
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
                // Of several elements for one place only the last has an effect.
                let numbers =
                    Tensor::count_up(chosen.shape().volume(), g.device())?.reshape(chosen.shape())?;
                let nobody = Tensor::full(-1.0, numbers.dtype(), base.shape(), g.device())?;
                let last = backend.scatter(nobody, dim, chosen, &numbers.packed("scatter")?)?;
                let stays = backend.gather(&last, dim, chosen)?.eq(&numbers)?;
                let of_source = stays.select(&backend.gather(&g, dim, chosen)?, &zeros)?;
                vec![Some(of_base), None, Some(of_source)]
            }
        })
    }
}

impl Tensor {
    /// Slices along a dim, chosen by a flat tensor of `i64` indices.
    pub fn index_select(&self, dim: usize, chosen: &Self) -> Result<Self, TensorError> {
        self.check_dim("index_select", dim)?;
        if chosen.shape().ndim() != 1 {
            return Err(mismatch("index_select", &[self, chosen]));
        }
        let function = IndexSelect { name: "index_select", dim, from: self.shape().clone() };
        apply_one(function, &[self.clone(), chosen.clone()])
    }

    /// Rows of this table, chosen by a tensor of `i64` indices of any shape.
    pub fn embedding(&self, chosen: &Self) -> Result<Self, TensorError> {
        if self.shape().ndim() != 2 {
            return Err(mismatch("embedding", &[self, chosen]));
        }
        let dims: Dims = chosen.shape().iter().copied().chain([self.shape()[1]]).collect();
        let shape = Shape::new(&dims)?;
        let function = IndexSelect { name: "embedding", dim: 0, from: self.shape().clone() };
        apply_one(function, &[self.clone(), chosen.clone()])?.reshape(&shape)
    }

    /// For each `i64` index the element of its own row, column and so on at
    /// that index along a dim. The result has the shape of the indices.
    pub fn gather(&self, dim: usize, chosen: &Self) -> Result<Self, TensorError> {
        apply_one(Pick::Gather { dim }, &[self.clone(), chosen.clone()])
    }

    /// This tensor with elements of `source` put where their indices along a
    /// dim say. Of several for one place the last stays.
    pub fn scatter(&self, dim: usize, chosen: &Self, source: &Self) -> Result<Self, TensorError> {
        apply_one(Pick::Scatter { dim }, &[self.clone(), chosen.clone(), source.clone()])
    }

    /// This tensor with elements of `source` added where their indices along a
    /// dim say, in order.
    pub fn scatter_add(&self, dim: usize, chosen: &Self, source: &Self) -> Result<Self, TensorError> {
        apply_one(Pick::ScatterAdd { dim }, &[self.clone(), chosen.clone(), source.clone()])
    }
}
