//! Element-wise kernels.

use weightloom_cuda::Arg;
use weightloom_layout::DType;

use super::{Cuda, Strides, address, bytes, count, each, float};
use crate::error::Result;
use crate::kernels::elementwise::{Binary, ElementwiseKernels, Gate, Unary};
use crate::tensor::Tensor;

/// The number of an operation in the kernels.
fn unary_code(op: Unary) -> i32 {
    match op {
        Unary::Neg => 0,
        Unary::Exp => 1,
        Unary::Log => 2,
        Unary::Sqrt => 3,
        Unary::Rsqrt => 4,
        Unary::Abs => 5,
        Unary::Relu => 6,
        Unary::Sigmoid => 7,
        Unary::Tanh => 8,
        Unary::Silu => 9,
        Unary::Gelu => 10,
        Unary::GeluTanh => 11,
        Unary::Cos => 12,
        Unary::Sin => 13,
        Unary::Power(_) => 14,
        Unary::Clamp(..) => 15,
    }
}

fn binary_code(op: Binary) -> i32 {
    match op {
        Binary::Add => 0,
        Binary::Sub => 1,
        Binary::Mul => 2,
        Binary::Div => 3,
        Binary::Pow => 4,
        Binary::Gate(gate) => 5 + gate_code(gate),
    }
}

fn gate_code(gate: Gate) -> i32 {
    match gate {
        Gate::SwiGlu => 0,
        Gate::GeGlu => 1,
        Gate::GeGluTanh => 2,
    }
}

/// The parameters of an operation: of a power itself and, for its derivative, one
/// less.
fn parameters(op: Unary) -> [Arg<'static>; 2] {
    let [p, q] = match op {
        Unary::Power(power) => [power, power - 1.0],
        Unary::Clamp(low, high) => [low, high],
        _ => [0.0; 2],
    };
    [Arg::F64(p), Arg::F64(q)]
}

impl ElementwiseKernels for Cuda {
    fn add_halves(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let (op, n) = ("add", a.shape().volume());
        let (a, b) = (a.contiguous(op)?, b.contiguous(op)?);
        let out = self.empty(DType::F32, a.shape())?;
        let kernel = format!("add_wide_{}", float(op, a.dtype())?);
        let args = [address(op, &out)?, address(op, &a)?, address(op, &b)?, count(n)];
        self.launch(&kernel, each(n), n, &args)?;
        Ok(out)
    }

    fn unary(&self, op: Unary, x: &Tensor) -> Result<Tensor> {
        let (name, n) = (op.name(), x.shape().volume());
        let kernel = format!("unary_{}", float(name, x.dtype())?);
        let out = self.empty(x.dtype(), x.shape())?;
        let [p, q] = parameters(op);
        let args = [address(name, &out)?, address(name, x)?, count(n), Arg::I32(unary_code(op)), p, q];
        self.launch(&kernel, each(n), n, &args)?;
        Ok(out)
    }

    fn unary_gradient(&self, op: Unary, x: &Tensor, gradient: Tensor) -> Result<Tensor> {
        let (name, n) = (op.name(), x.shape().volume());
        let kernel = format!("unary_gradient_{}", float(name, x.dtype())?);
        let reused = self.reuse(name, gradient)?;
        let [p, q] = parameters(op);
        let args = [
            address(name, &reused.out)?,
            address(name, x)?,
            reused.source,
            count(n),
            Arg::I32(unary_code(op)),
            p,
            q,
        ];
        self.launch(&kernel, each(n), n, &args)?;
        Ok(reused.out)
    }

    fn binary(&self, op: Binary, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let (name, n) = (op.name(), a.shape().volume());
        let kernel = format!("binary_{}", float(name, a.dtype())?);
        let out = self.empty(a.dtype(), a.shape())?;
        let strides = Strides::new(a.shape(), [a.strides(), b.strides()]);
        let args = [
            address(name, &out)?,
            address(name, a)?,
            address(name, b)?,
            count(n),
            bytes(&strides),
            Arg::I32(binary_code(op)),
        ];
        self.launch(&kernel, each(n), n, &args)?;
        Ok(out)
    }

    fn add_into(&self, into: &mut Tensor, x: &Tensor) -> Result<()> {
        let (x, n) = (x.contiguous("add")?, into.shape().volume());
        let kernel = format!("add_into_{}", float("add", into.dtype())?);
        let origin = into.origin().clone();
        // In place if `into` is the only reference.
        let reused = if into.is_unique_and_contiguous() {
            let at = address("add", into)?;
            return self.launch(&kernel, each(n), n, &[at, at, address("add", &x)?, count(n)]);
        } else {
            self.reuse("add", into.detach())?
        };
        let args = [address("add", &reused.out)?, reused.source, address("add", &x)?, count(n)];
        self.launch(&kernel, each(n), n, &args)?;
        *into = reused.out.with_origin(origin);
        Ok(())
    }

    fn gate_gradient(&self, gate: Gate, a: &Tensor, b: Tensor, gradient: Tensor) -> Result<[Tensor; 2]> {
        let (name, n) = (Binary::Gate(gate).name(), a.shape().volume());
        let kernel = format!("gate_gradient_{}", float(name, a.dtype())?);
        let (of_a, of_b) = (self.reuse(name, gradient)?, self.reuse(name, b)?);
        let args = [
            address(name, &of_a.out)?,
            address(name, &of_b.out)?,
            address(name, a)?,
            of_b.source,
            of_a.source,
            count(n),
            Arg::I32(gate_code(gate)),
        ];
        self.launch(&kernel, each(n), n, &args)?;
        Ok([of_a.out, of_b.out])
    }
}
