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

    /// Whether it is computed in itself, so that nothing is lost by storing
    /// what is not yet final.
    const COMPUTES_IN_ITSELF: bool;

    /// Before computing.
    fn widen(self) -> Self::Wide;

    /// After computing.
    fn narrow(wide: Self::Wide) -> Self;
}

/// `f32` or `f64`.
pub trait Wide:
    Float<Wide = Self> + num_traits::Float + num_traits::FromPrimitive + std::iter::Sum + std::ops::AddAssign
{
    /// `e^x`, to about one unit in the last place, in code that vectorises.
    fn exponential(self) -> Self;

    /// The error function.
    fn error_function(self) -> Self;
}

impl Wide for f32 {
    /// `x = n ln 2 + r` with `|r| ≤ ln 2 / 2`, a polynomial for `e^r`, and `2^n`
    /// from its bits. No branches, so that loops over it become vector code.
    #[inline(always)]
    fn exponential(self) -> Self {
        const LN2_HIGH: f32 = 0.693_359_4;
        const LN2_LOW: f32 = -2.121_944_4e-4;
        // Adding this rounds to a whole number, which then is in the low bits.
        const ROUND: f32 = 12_582_912.0;
        // Beyond these the result is 0 or ∞ in any case. A NaN stays one.
        let x = if self > 89.0 { 89.0 } else { self };
        let x = if x < -104.0 { -104.0 } else { x };
        let shifted = x * std::f32::consts::LOG2_E + ROUND;
        let n = shifted - ROUND;
        let r = (x - n * LN2_HIGH) - n * LN2_LOW;
        let tail = 1.987_569_1e-4f32;
        let tail = tail * r + 1.398_199_9e-3;
        let tail = tail * r + 8.333_452e-3;
        let tail = tail * r + 4.166_579_6e-2;
        let tail = tail * r + 1.666_666_5e-1;
        let tail = tail * r + 0.5;
        let e = tail * r * r + r + 1.0;
        // 2^n in two factors, each of which is a normal number.
        let whole = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
        let first = whole >> 1;
        let power = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
        e * power(first) * power(whole.wrapping_sub(first))
    }

    /// A quotient of polynomials on [-4, 4], outside of which it is ±1.
    #[inline(always)]
    fn error_function(self) -> Self {
        let x = if self > 4.0 { 4.0 } else { self };
        let x = if x < -4.0 { -4.0 } else { x };
        let s = x * x;
        let p = -2.726_142_3e-10f32;
        let p = p * s + 2.770_681_4e-8;
        let p = p * s - 2.101_024e-6;
        let p = p * s - 5.692_506_4e-5;
        let p = p * s - 7.349_906e-4;
        let p = p * s - 2.954_6e-3;
        let p = p * s - 1.609_603_3e-2;
        let q = -1.456_607_2e-5f32;
        let q = q * s - 2.133_740_6e-4;
        let q = q * s - 1.682_827e-3;
        let q = q * s - 7.373_329e-3;
        let q = q * s - 1.426_473_9e-2;
        x * p / q
    }
}

impl Wide for f64 {
    fn exponential(self) -> Self {
        self.exp()
    }

    fn error_function(self) -> Self {
        libm::erf(self)
    }
}

macro_rules! float {
    ($($narrow:ty, $wide:ty, $itself:expr, $widen:expr, $round:expr;)*) => {
        $(impl Float for $narrow {
            type Wide = $wide;

            const COMPUTES_IN_ITSELF: bool = $itself;

            #[inline(always)]
            fn widen(self) -> $wide {
                $widen(self)
            }

            #[inline(always)]
            fn narrow(wide: $wide) -> Self {
                $round(wide)
            }
        })*
    };
}

float! {
    f64, f64, true, |x| x, |x| x;
    f32, f32, true, |x| x, |x| x;
    bf16, f32, false, bf16::to_f32, bf16::from_f32;
    f16, f32, false, f16::to_f32, f16::from_f32;
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

#[cfg(test)]
mod tests {
    use super::Wide;

    /// Distance in representable numbers.
    fn ulps(a: f32, b: f32) -> u32 {
        let key = |x: f32| {
            let bits = x.to_bits() as i32;
            if bits < 0 { i32::MIN.wrapping_sub(bits) } else { bits }
        };
        key(a).abs_diff(key(b))
    }

    #[test]
    fn the_exponential_is_exact_to_two_units() {
        let mut worst = 0;
        for i in -1_040_000..=887_000 {
            let x = i as f32 / 10_000.0;
            let exact = f64::from(x).exp() as f32;
            // Subnormal results lose bits by nature.
            if exact >= f32::MIN_POSITIVE {
                worst = worst.max(ulps(x.exponential(), exact));
            }
        }
        assert!(worst <= 2, "{worst}");
        assert_eq!(0f32.exponential(), 1.0);
        assert_eq!(f32::NEG_INFINITY.exponential(), 0.0);
        assert_eq!((-1e9f32).exponential(), 0.0);
        assert_eq!(f32::INFINITY.exponential(), f32::INFINITY);
        assert_eq!(100f32.exponential(), f32::INFINITY);
        assert!(f32::NAN.exponential().is_nan());
    }

    #[test]
    fn the_error_function_is_exact_to_five_units_of_one() {
        // Twelve roundings in two polynomials, a product and a quotient near 1.
        let bound = 5.0 * f32::EPSILON;
        for i in -60_000..=60_000 {
            let x = i as f32 / 10_000.0;
            let error = (x.error_function() - libm::erff(x)).abs();
            assert!(error <= bound, "erf({x}) is off by {error}");
        }
        assert!(f32::NAN.error_function().is_nan());
    }
}
