//! Element-wise operations.

use weightloom_layout::DType;

use super::{broadcast_all, check_float, common, shape_mismatch, sum_to_shape};
use crate::backend::on;
use crate::error::{Result, TensorError};
use crate::kernels::elementwise::{Binary, Gate, Unary};
use crate::tape::{Context, Function, apply_one, is_grad_enabled};
use crate::tensor::Tensor;

struct UnaryFunction(Unary);

impl Function for UnaryFunction {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn is_cheap(&self) -> bool {
        true
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let x = inputs[0].contiguous(self.name())?;
        check_float(self.name(), x.dtype())?;
        context.save(&[&x]);
        Ok(vec![on(x.device()).unary(self.0, &x)?])
    }

    fn backward(&self, context: Context, mut gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        let (Some(gradient), [x]) = (gradients[0].take(), context.saved()) else { return Ok(vec![None]) };
        let gradient = gradient.into_contiguous(self.name())?;
        Ok(vec![Some(on(x.device()).unary_gradient(self.0, x, gradient)?)])
    }
}

struct BinaryFunction(Binary);

impl Function for BinaryFunction {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn is_cheap(&self) -> bool {
        matches!(self.0, Binary::Gate(_))
    }

    fn forward(&self, context: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let (a, b) = (&inputs[0], &inputs[1]);
        let (device, dtype) = common(self.name(), &[a, b])?;
        check_float(self.name(), dtype)?;
        if matches!(self.0, Binary::Gate(_)) && a.shape() != b.shape() {
            return Err(shape_mismatch(self.name(), &[a, b]));
        }
        let [wide_a, wide_b] = broadcast_all(self.name(), [a, b])?;
        // Save only the values that the backward rule needs.
        match self.0 {
            Binary::Add | Binary::Sub => {
                context.save(&[&a.shape_only(), &b.shape_only()]);
            }
            Binary::Mul | Binary::Div | Binary::Pow | Binary::Gate(_) => context.save(&[a, b]),
        }
        Ok(vec![on(device).binary(self.0, &wide_a, &wide_b)?])
    }

    fn backward(&self, context: Context, mut gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        let Some(g) = gradients[0].take() else { return Ok(vec![None, None]) };
        if let Binary::Gate(gate) = self.0 {
            let Ok([a, b]) = <[Tensor; 2]>::try_from(context.into_saved()) else {
                return Ok(vec![None, None]);
            };
            let (a, b) = (a.contiguous(self.name())?, b.into_contiguous(self.name())?);
            let of_both = on(a.device()).gate_gradient(gate, &a, b, g.into_contiguous(self.name())?)?;
            return Ok(of_both.map(Some).into());
        }
        let [a, b] = context.saved() else { return Ok(vec![None, None]) };
        let of_a = || match self.0 {
            Binary::Mul => g.mul(b),
            Binary::Div => g.div(b),
            // At power 0 the derivative is 0, even where a^-1 is infinite.
            Binary::Pow => {
                let one = Tensor::full(1.0, b.dtype(), &[], b.device())?;
                let zero = Tensor::full(0.0, b.dtype(), &[], b.device())?;
                let slope = g.mul(b)?.mul(&a.pow(&b.sub(&one)?)?)?;
                b.eq(&zero)?.select(&zero, &slope)
            }
            Binary::Add | Binary::Sub | Binary::Gate(_) => Ok(g.clone()),
        };
        let of_b = || match self.0 {
            Binary::Sub => g.neg(),
            Binary::Mul => g.mul(a),
            Binary::Div => g.mul(a)?.div(&b.mul(b)?)?.neg(),
            // Where a is 0, so is the derivative for every power above 0.
            Binary::Pow => {
                let zero = Tensor::full(0.0, a.dtype(), &[], a.device())?;
                let slope = g.mul(&a.pow(b)?)?.mul(&a.log()?)?;
                a.eq(&zero)?.select(&zero, &slope)
            }
            Binary::Add | Binary::Gate(_) => Ok(g.clone()),
        };
        let of_a = context.needs(0).then(|| sum_to_shape(of_a()?, a.shape())).transpose()?;
        let of_b = context.needs(1).then(|| sum_to_shape(of_b()?, b.shape())).transpose()?;
        Ok(vec![of_a, of_b])
    }

    /// A product is linear in one factor as long as the other is a constant.
    fn is_linear(&self, context: &Context) -> bool {
        match self.0 {
            Binary::Add | Binary::Sub => true,
            Binary::Mul => !(context.needs(0) && context.needs(1)),
            Binary::Div => !context.needs(1),
            Binary::Pow | Binary::Gate(_) => false,
        }
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

    fn forward(&self, _: &mut Context, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let x = inputs[0].contiguous("cast")?;
        Ok(vec![on(x.device()).cast(&x, self.to)?])
    }

    fn backward(&self, _: Context, gradients: Vec<Option<Tensor>>) -> Result<Vec<Option<Tensor>>> {
        if !self.to.is_float() || !self.from.is_float() {
            return Err(TensorError::NotDifferentiable { function: "cast" });
        }
        Ok(vec![gradients[0].as_ref().map(|gradient| gradient.cast(self.from)).transpose()?])
    }

    fn is_linear(&self, _: &Context) -> bool {
        true
    }
}

macro_rules! unary_methods {
    ($($(#[$doc:meta])* $method:ident => $op:ident;)*) => {
        impl Tensor {
            $($(#[$doc])*
            pub fn $method(&self) -> Result<Self> {
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
    /// The cosine.
    cos => Cos;
    /// The sine.
    sin => Sin;
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
    ($($(#[$doc:meta])* $method:ident => $op:expr;)*) => {
        impl Tensor {
            $($(#[$doc])*
            pub fn $method(&self, other: &Self) -> Result<Self> {
                apply_one(BinaryFunction($op), &[self.clone(), other.clone()])
            })*
        }
    };
}

binary_methods! {
    /// The sum, with broadcasting.
    add => Binary::Add;
    /// The difference, with broadcasting.
    sub => Binary::Sub;
    /// The product, element by element, with broadcasting.
    mul => Binary::Mul;
    /// The quotient, element by element, with broadcasting.
    div => Binary::Div;
    /// The power, element by element, with broadcasting.
    pow => Binary::Pow;
    /// `silu(self) · other`, the gate of most language models, in one pass.
    swiglu => Binary::Gate(Gate::SwiGlu);
    /// `gelu(self) · other` in one pass.
    geglu => Binary::Gate(Gate::GeGlu);
    /// [`geglu`](Self::geglu) with the tanh approximation of gelu.
    geglu_tanh => Binary::Gate(Gate::GeGluTanh);
}

impl Tensor {
    /// `x^power`.
    pub fn powf(&self, power: f64) -> Result<Self> {
        apply_one(UnaryFunction(Unary::Power(power)), std::slice::from_ref(self))
    }

    /// Clamps to `low..=high`. The derivative is 1 in the range, its ends included,
    /// and 0 outside.
    pub fn clamp(&self, low: f64, high: f64) -> Result<Self> {
        apply_one(UnaryFunction(Unary::Clamp(low, high)), std::slice::from_ref(self))
    }

    /// Casts to another dtype. Integers drop the fraction; bools are true unless the
    /// value is zero.
    pub fn cast(&self, to: DType) -> Result<Self> {
        if to == self.dtype() {
            return Ok(self.clone());
        }
        apply_one(Cast { from: self.dtype(), to }, std::slice::from_ref(self))
    }

    /// `x · factor`.
    pub fn scale(&self, factor: f64) -> Result<Self> {
        check_float("scale", self.dtype())?;
        self.mul(&Self::full(factor, self.dtype(), &[], self.device())?)
    }

    /// Adds a tensor of the same shape, in place unless the memory is shared or a
    /// gradient is wanted. Clones keep the old elements.
    pub fn add_assign(&mut self, other: &Self) -> Result<()> {
        let (device, dtype) = common("add", &[self, other])?;
        check_float("add", dtype)?;
        if self.shape() != other.shape() {
            return Err(shape_mismatch("add", &[self, other]));
        }
        if is_grad_enabled() && (self.tracks_gradient() || other.tracks_gradient()) {
            *self = self.add(other)?;
            return Ok(());
        }
        on(device).add_into(self, other)
    }
}
