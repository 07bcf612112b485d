//! Element by element.

use shardloom_layout::DType;

use super::{common, mismatch, summed_to};
use crate::device::Device;
use crate::element::with_float;
use crate::error::TensorError;
use crate::kernels::copy;
use crate::kernels::elementwise::{Binary, Unary, binary, full, unary, unary_gradient};
use crate::tape::{Context, Function, apply_one};
use crate::tensor::Tensor;
use crate::view::broadcast;

struct UnaryFunction(Unary);

impl Function for UnaryFunction {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let x = inputs[0].packed(self.name())?;
        context.save(&[&x]);
        if x.device() == Device::Meta {
            return Ok(vec![Tensor::meta(x.shape().clone(), x.dtype())]);
        }
        Ok(vec![with_float!(self.name(), x.dtype(), T => unary::<T>(self.0, &x))?])
    }

    fn backward(
        &self,
        context: &Context,
        gradients: &[Option<Tensor>],
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let (Some(gradient), [x]) = (&gradients[0], context.saved()) else { return Ok(vec![None]) };
        let gradient = gradient.packed(self.name())?;
        Ok(vec![Some(with_float!(self.name(), x.dtype(), T => unary_gradient::<T>(self.0, x, &gradient))?)])
    }
}

struct BinaryFunction(Binary);

impl Function for BinaryFunction {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let (a, b) = (&inputs[0], &inputs[1]);
        let (device, dtype) = common(self.name(), &[a, b])?;
        if self.0 == Binary::SwiGlu && a.shape() != b.shape() {
            return Err(mismatch("swiglu", &[a, b]));
        }
        context.save(&[a, b]);
        if device == Device::Meta {
            let shape = broadcast(a.shape(), b.shape()).ok_or_else(|| mismatch(self.name(), &[a, b]))?;
            return Ok(vec![Tensor::meta(shape, dtype)]);
        }
        Ok(vec![with_float!(self.name(), dtype, T => binary::<T>(self.0, a, b))?])
    }

    fn backward(
        &self,
        context: &Context,
        gradients: &[Option<Tensor>],
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        let (Some(g), [a, b]) = (&gradients[0], context.saved()) else { return Ok(vec![None, None]) };
        let of_a = || match self.0 {
            Binary::Add | Binary::Sub => Ok(g.clone()),
            Binary::Mul => g.mul(b),
            Binary::Div => g.div(b),
            Binary::SwiGlu => {
                let (a, slope) = (a.packed("swiglu")?, g.mul(b)?);
                with_float!("swiglu", a.dtype(), T => unary_gradient::<T>(Unary::Silu, &a, &slope))
            }
        };
        let of_b = || match self.0 {
            Binary::Add => Ok(g.clone()),
            Binary::Sub => g.neg(),
            Binary::Mul => g.mul(a),
            Binary::Div => g.mul(a)?.div(&b.mul(b)?)?.neg(),
            Binary::SwiGlu => g.mul(&a.silu()?),
        };
        let of_a = context.needs(0).then(|| summed_to(&of_a()?, a.shape())).transpose()?;
        let of_b = context.needs(1).then(|| summed_to(&of_b()?, b.shape())).transpose()?;
        Ok(vec![of_a, of_b])
    }
}

struct Cast {
    from: DType,
    to: DType,
}

impl Function for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn forward(&self, _: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>, TensorError> {
        let x = inputs[0].packed("cast")?;
        if x.device() == Device::Meta {
            return Ok(vec![Tensor::meta(x.shape().clone(), self.to)]);
        }
        Ok(vec![copy::cast(&x, self.to)?])
    }

    fn backward(
        &self,
        _: &Context,
        gradients: &[Option<Tensor>],
    ) -> Result<Vec<Option<Tensor>>, TensorError> {
        if !self.to.is_float() || !self.from.is_float() {
            return Err(TensorError::NotDifferentiable { function: "cast" });
        }
        Ok(vec![gradients[0].as_ref().map(|gradient| gradient.cast(self.from)).transpose()?])
    }
}

macro_rules! unary_methods {
    ($($(#[$doc:meta])* $method:ident => $op:ident;)*) => {
        impl Tensor {
            $($(#[$doc])*
            pub fn $method(&self) -> Result<Self, TensorError> {
                apply_one(UnaryFunction(Unary::$op), std::slice::from_ref(self))
            })*
        }
    };
}

unary_methods! {
    /// `-x`.
    neg => Neg;
    /// `e^x`.
    exp => Exp;
    /// The natural logarithm.
    log => Log;
    /// The square root.
    sqrt => Sqrt;
    /// `1 / sqrt(x)`.
    rsqrt => Rsqrt;
    /// The absolute value; its derivative at 0 is 0.
    abs => Abs;
    /// `max(x, 0)`; its derivative at 0 is 0.
    relu => Relu;
    /// `1 / (1 + e^-x)`.
    sigmoid => Sigmoid;
    /// The hyperbolic tangent.
    tanh => Tanh;
    /// `x · sigmoid(x)`.
    silu => Silu;
    /// `x · Φ(x)`, with the error function.
    gelu => Gelu;
    /// The tanh approximation of [`gelu`](Self::gelu).
    gelu_tanh => GeluTanh;
}

macro_rules! binary_methods {
    ($($(#[$doc:meta])* $method:ident => $op:ident;)*) => {
        impl Tensor {
            $($(#[$doc])*
            pub fn $method(&self, other: &Self) -> Result<Self, TensorError> {
                apply_one(BinaryFunction(Binary::$op), &[self.clone(), other.clone()])
            })*
        }
    };
}

binary_methods! {
    /// The sum, with broadcasting.
    add => Add;
    /// The difference, with broadcasting.
    sub => Sub;
    /// The product, element by element, with broadcasting.
    mul => Mul;
    /// The quotient, element by element, with broadcasting.
    div => Div;
    /// `silu(self) · other`, the gate of most language models, in one pass.
    swiglu => SwiGlu;
}

impl Tensor {
    /// The same values in another dtype. Floats become integers by cutting off
    /// the fraction.
    pub fn cast(&self, to: DType) -> Result<Self, TensorError> {
        if to == self.dtype() {
            return Ok(self.clone());
        }
        apply_one(Cast { from: self.dtype(), to }, std::slice::from_ref(self))
    }

    /// Ones of the same shape and dtype.
    pub(crate) fn ones_like(&self) -> Result<Self, TensorError> {
        if self.device() == Device::Meta {
            return Ok(Self::meta(self.shape().clone(), self.dtype()));
        }
        with_float!("backward", self.dtype(), T => full::<T>(self.shape(), 1.0))
    }

    /// This tensor times a number.
    pub fn scale(&self, factor: f64) -> Result<Self, TensorError> {
        let one = shardloom_layout::Shape::default();
        if self.device() == Device::Meta {
            return self.mul(&Self::meta(one, self.dtype()));
        }
        self.mul(&with_float!("scale", self.dtype(), T => full::<T>(&one, factor))?)
    }
}
