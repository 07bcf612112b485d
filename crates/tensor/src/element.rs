//! Rust types of elements, and the arithmetic they are computed in.

use bytemuck::Pod;
use half::{bf16, f16};
use shardloom_layout::DType;

/// A Rust type that is one tensor element.
pub trait Element: Pod + Send + Sync {
    /// Its dtype.
    const DTYPE: DType;
}

macro_rules! element {
    ($($rust:ty => $dtype:ident),* $(,)?) => {
        $(impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        })*
    };
}

element! {
    f64 => F64, f32 => F32, bf16 => Bf16, f16 => F16,
    i64 => I64, i32 => I32, i16 => I16, i8 => I8,
    u64 => U64, u32 => U32, u16 => U16, u8 => U8,
}

/// An element type that is computed with: `f64` and `f32` in themselves, the
/// half types in `f32` with one rounding at the end.
pub trait Float: Element {
    /// What it is computed in.
    type Wide: Wide;

    /// Before computing.
    fn widen(self) -> Self::Wide;

    /// After computing.
    fn narrow(wide: Self::Wide) -> Self;
}

/// `f32` or `f64`.
pub trait Wide:
    Float<Wide = Self> + num_traits::Float + num_traits::FromPrimitive + std::iter::Sum + std::ops::AddAssign
{
    /// The error function.
    fn erf(self) -> Self;
}

impl Wide for f32 {
    fn erf(self) -> Self {
        libm::erff(self)
    }
}

impl Wide for f64 {
    fn erf(self) -> Self {
        libm::erf(self)
    }
}

macro_rules! float {
    ($($narrow:ty, $wide:ty, $widen:expr, $round:expr;)*) => {
        $(impl Float for $narrow {
            type Wide = $wide;

            fn widen(self) -> $wide {
                $widen(self)
            }

            fn narrow(wide: $wide) -> Self {
                $round(wide)
            }
        })*
    };
}

float! {
    f64, f64, |x| x, |x| x;
    f32, f32, |x| x, |x| x;
    bf16, f32, bf16::to_f32, bf16::from_f32;
    f16, f32, f16::to_f32, f16::from_f32;
}

/// Runs an expression with `$T` as the Rust type of a floating dtype, or fails
/// with the operation's name.
macro_rules! with_float {
    ($op:expr, $dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            shardloom_layout::DType::F64 => {
                type $T = f64;
                $body
            }
            shardloom_layout::DType::F32 => {
                type $T = f32;
                $body
            }
            shardloom_layout::DType::Bf16 => {
                type $T = half::bf16;
                $body
            }
            shardloom_layout::DType::F16 => {
                type $T = half::f16;
                $body
            }
            dtype => Err($crate::error::TensorError::DType { op: $op, dtype }),
        }
    };
}

pub(crate) use with_float;
