//! Element-wise operations.

use weightloom_layout::DType;
use weightloom_tensor::Tensor;

use super::broadcast;
use crate::dispatch::{Op, dispatch_one};
use crate::dtensor::DTensor;
use crate::error::Result;
use crate::registry::{BuiltIn, Call};
use crate::rule::Rule;

fn plain(call: &Call<'_>) -> Result<Rule> {
    Ok(broadcast(call))
}

/// Linear in its first operand.
fn linear(call: &Call<'_>) -> Result<Rule> {
    Ok(broadcast(call).term(&[0]))
}

fn sum(call: &Call<'_>) -> Result<Rule> {
    Ok(broadcast(call).term(&[0]).term(&[1]))
}

fn product(call: &Call<'_>) -> Result<Rule> {
    Ok(broadcast(call).term(&[0, 1]))
}

/// Linear in its second operand.
fn gate(call: &Call<'_>) -> Result<Rule> {
    Ok(broadcast(call).term(&[1]))
}

/// Casts to a wider float are linear; rounding is not.
fn cast(call: &Call<'_>) -> Result<Rule> {
    let (from, to) = (call.inputs[0].dtype(), call.outputs[0].1);
    let exact =
        from.is_float() && to.is_float() && (to == DType::F64 || to == DType::F32 && from.size() == 2);
    if exact { linear(call) } else { plain(call) }
}

pub(crate) const RULES: &[BuiltIn] = &[
    ("neg", linear),
    ("scale", linear),
    ("cast", cast),
    ("exp", plain),
    ("log", plain),
    ("sqrt", plain),
    ("rsqrt", plain),
    ("abs", plain),
    ("cos", plain),
    ("sin", plain),
    ("relu", plain),
    ("sigmoid", plain),
    ("tanh", plain),
    ("silu", plain),
    ("gelu", plain),
    ("gelu_tanh", plain),
    ("powf", plain),
    ("clamp", plain),
    ("add", sum),
    ("sub", sum),
    ("mul", product),
    ("div", linear),
    ("pow", plain),
    ("swiglu", gate),
    ("geglu", gate),
    ("geglu_tanh", gate),
];

macro_rules! unary {
    ($($method:ident),*) => {
        impl DTensor {
            $(#[doc = concat!("As [`Tensor::", stringify!($method), "`].")]
            pub fn $method(&self) -> Result<Self> {
                let op = Op { name: stringify!($method), arguments: &[] };
                dispatch_one(&op, &[self], &|x, _| Ok(vec![x[0].$method()?]))
            })*
        }
    };
}

unary!(neg, exp, log, sqrt, rsqrt, abs, cos, sin, relu, sigmoid, tanh, silu, gelu, gelu_tanh);

macro_rules! binary {
    ($($method:ident),*) => {
        impl DTensor {
            $(#[doc = concat!("As [`Tensor::", stringify!($method), "`].")]
            pub fn $method(&self, other: &Self) -> Result<Self> {
                let op = Op { name: stringify!($method), arguments: &[] };
                dispatch_one(&op, &[self, other], &|x, _| Ok(vec![x[0].$method(&x[1])?]))
            })*
        }
    };
}

binary!(add, sub, mul, div, pow, swiglu, geglu, geglu_tanh);

impl DTensor {
    /// As [`Tensor::scale`].
    pub fn scale(&self, factor: f64) -> Result<Self> {
        let op = Op { name: "scale", arguments: &[] };
        dispatch_one(&op, &[self], &|x, _| Ok(vec![x[0].scale(factor)?]))
    }

    /// As [`Tensor::powf`].
    pub fn powf(&self, power: f64) -> Result<Self> {
        let op = Op { name: "powf", arguments: &[] };
        dispatch_one(&op, &[self], &|x, _| Ok(vec![x[0].powf(power)?]))
    }

    /// As [`Tensor::clamp`].
    pub fn clamp(&self, low: f64, high: f64) -> Result<Self> {
        let op = Op { name: "clamp", arguments: &[] };
        dispatch_one(&op, &[self], &|x, _| Ok(vec![x[0].clamp(low, high)?]))
    }

    /// As [`Tensor::cast`].
    pub fn cast(&self, to: DType) -> Result<Self> {
        let op = Op { name: "cast", arguments: &[to as u64] };
        dispatch_one(&op, &[self], &|x: &[Tensor], _| Ok(vec![x[0].cast(to)?]))
    }
}
