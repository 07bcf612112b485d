//! Comparison and selection.

use weightloom_layout::{DType, Dims, Shape};

use super::{broadcast_all, check_same_device, common, shape_mismatch, sum_to_shape};
use crate::backend::on;
use crate::device::Device;
use crate::error::{Result, TensorError};
use crate::kernels::comparison::Comparison;
use crate::tape::{Context, Function, apply_one};
use crate::tensor::Tensor;

struct Select;

impl Function for Select {
    fn name(&self) -> &'static str {
        "select"
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let [condition, a, b] = inputs else {
            return Err(shape_mismatch("select", &inputs.iter().collect::<Vec<_>>()));
        };
        if condition.dtype() != DType::Bool {
            return Err(TensorError::DType { op: "select", dtype: condition.dtype() });
        }
        common("select", &[a, b])?;
        let device = check_same_device("select", &[condition, a, b])?;
        context.save(&[condition, &a.shape_only(), &b.shape_only()]);
        let [condition, a, b] = broadcast_all("select", [condition, a, b])?;
        Ok(vec![on(device).select(&condition, &a, &b)?])
    }

    fn backward(&self, context: Context, gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        let (Some(g), [condition, a, b]) = (&gradients[0], context.saved()) else {
            return Ok(vec![None, None, None]);
        };
        let zero = Tensor::full(0.0, g.dtype(), &[], g.device())?;
        let of_a = || sum_to_shape(condition.select(g, &zero)?, a.shape());
        let of_b = || sum_to_shape(condition.select(&zero, g)?, b.shape());
        let of_a = context.needs(1).then(of_a).transpose()?;
        let of_b = context.needs(2).then(of_b).transpose()?;
        Ok(vec![None, of_a, of_b])
    }
}

/// The triangle that is kept.
#[derive(Clone, Copy)]
enum Triangle {
    Lower,
    Upper,
}

macro_rules! comparison_methods {
    ($($(#[$doc:meta])* $method:ident => $op:ident;)*) => {
        impl Tensor {
            $($(#[$doc])*
            pub fn $method(&self, other: &Self) -> Result<Self> {
                self.compared(Comparison::$op, other)
            })*
        }
    };
}

comparison_methods! {
    /// Whether elements are equal, as bools, with broadcasting.
    eq => Equal;
    /// Whether elements are different, as bools, with broadcasting.
    ne => Different;
    /// Whether elements are less than the other's, as bools, with broadcasting.
    lt => Less;
    /// Whether elements are less or equal, as bools, with broadcasting.
    le => LessOrEqual;
    /// Whether elements are greater, as bools, with broadcasting.
    gt => Greater;
    /// Whether elements are greater or equal, as bools, with broadcasting.
    ge => GreaterOrEqual;
}

impl Tensor {
    fn compared(&self, op: Comparison, other: &Self) -> Result<Self> {
        let (device, _) = common(op.name(), &[self, other])?;
        let [a, b] = broadcast_all(op.name(), [self, other])?;
        on(device).compare(op, &a, &b)
    }

    /// Elements of `a` where this tensor of bools is true, else of `b`, with
    /// broadcasting.
    pub fn select(&self, a: &Self, b: &Self) -> Result<Self> {
        apply_one(Select, &[self.clone(), a.clone(), b.clone()])
    }

    /// `value` where a mask of bools is true, with broadcasting.
    pub fn masked_fill(&self, mask: &Self, value: f64) -> Result<Self> {
        let value = Self::full(value, self.dtype(), &[], self.device())?;
        mask.select(&value, self)
    }

    /// 0, 1, 2, …, as `i64`.
    pub fn arange(count: usize, device: Device) -> Result<Self> {
        if device == Device::Meta {
            return Ok(Self::meta(Shape::new(&[count])?, DType::I64));
        }
        Self::from_slice(&(0..count as i64).collect::<Vec<_>>(), &[count])?.to(device)
    }

    /// One-hot encoding of `i64` indices along a new last dim. Indices out of range
    /// give zeros.
    pub fn one_hot(&self, classes: usize) -> Result<Self> {
        super::indices("one_hot", self)?;
        let dims: Dims = self.shape().iter().copied().chain([1]).collect();
        let indices = self.reshape(&Shape::new(&dims)?)?;
        indices.eq(&Self::arange(classes, self.device())?)?.cast(DType::I64)
    }

    /// The lower triangle of the last two dims, with zeros elsewhere. `offset` moves
    /// the diagonal to the right.
    pub fn tril(&self, offset: i64) -> Result<Self> {
        self.triangle("tril", offset, Triangle::Lower)
    }

    /// The upper triangle of the last two dims, with zeros elsewhere. `offset` moves
    /// the diagonal to the right.
    pub fn triu(&self, offset: i64) -> Result<Self> {
        self.triangle("triu", offset, Triangle::Upper)
    }

    fn triangle(&self, op: &'static str, offset: i64, side: Triangle) -> Result<Self> {
        let &[.., rows, columns] = &self.shape()[..] else { return Err(shape_mismatch(op, &[self])) };
        let columns = Self::arange(columns, self.device())?;
        // The column at which the diagonal crosses each row.
        let crossings = if self.device() == Device::Meta {
            Self::meta(Shape::new(&[rows, 1])?, DType::I64)
        } else {
            let crossings: Vec<i64> = (0..rows as i64).map(|row| row.saturating_add(offset)).collect();
            Self::from_slice(&crossings, &[rows, 1])?.to(self.device())?
        };
        let keep = match side {
            Triangle::Lower => columns.le(&crossings)?,
            Triangle::Upper => columns.ge(&crossings)?,
        };
        keep.select(self, &Self::full(0.0, self.dtype(), &[], self.device())?)
    }
}
