//! Rust types of elements, and the types they are computed in.

use bytemuck::Pod;
use half::{bf16, f16};
use pulp::Simd;
use weightloom_layout::DType;

/// The Rust type of a tensor element.
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

/// A floating-point element type. `f64` and `f32` are computed as they are, half
/// types in `f32` with one rounding at the end.
pub trait Float: Element {
    /// The type it is computed in.
    type Wide: Wide;

    /// Whether that is the type itself, so that storing intermediate values loses
    /// nothing.
    const COMPUTES_IN_ITSELF: bool;

    /// Converts to the compute type.
    fn widen(self) -> Self::Wide;

    /// Rounds to the element type.
    fn narrow(wide: Self::Wide) -> Self;
}

/// `f32` or `f64`.
pub trait Wide:
    Float<Wide = Self> + num_traits::Float + num_traits::FromPrimitive + std::iter::Sum + std::ops::AddAssign
{
    /// `e^x`, to about one unit in the last place. As the functions below, it
    /// vectorises and uses fused multiply-add if `S` has it.
    fn exp_simd<S: Simd>(self) -> Self;

    /// `e^x` for `x` up to 88, with less work: where it is below the smallest
    /// normal number, zero.
    fn exp_negative<S: Simd>(self) -> Self;

    /// The error function.
    fn erf_simd<S: Simd>(self) -> Self;

    /// The hyperbolic tangent.
    fn tanh_simd<S: Simd>(self) -> Self;
}

/// `a · b + c`, rounded once where that is one instruction. Elsewhere it would
/// be a call.
#[inline(always)]
fn multiply_add<S: Simd>(a: f32, b: f32, c: f32) -> f32 {
    if S::IS_SCALAR { a * b + c } else { a.mul_add(b, c) }
}

/// A polynomial, from its highest coefficient.
#[inline(always)]
fn polynomial<S: Simd, const N: usize>(coefficients: [f32; N], x: f32) -> f32 {
    let rest = coefficients[1..].iter();
    rest.fold(coefficients[0], |sum, &coefficient| multiply_add::<S>(sum, x, coefficient))
}

/// `x = n ln 2 + r` with `|r| ≤ ln 2 / 2`, and a polynomial for `e^r`. Returns
/// that and a number whose low bits are `n`. No branches, so that loops over it
/// become vector code.
#[inline(always)]
fn split_exponential<S: Simd>(x: f32) -> (f32, u32) {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let shifted = multiply_add::<S>(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = multiply_add::<S>(n, -LN2_HIGH, x);
    let r = multiply_add::<S>(n, -LN2_LOW, r);
    let tail = polynomial::<S, _>(
        [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5],
        r,
    );
    (multiply_add::<S>(tail, r * r, r) + 1.0, shifted.to_bits())
}

/// Adding this rounds to a whole number, which then is in the low bits.
const ROUND: f32 = 12_582_912.0;

impl Wide for f32 {
    #[inline(always)]
    fn exp_simd<S: Simd>(self) -> Self {
        // Beyond these the result is 0 or ∞ in any case. A NaN stays one.
        let x = if self > 89.0 { 89.0 } else { self };
        let x = if x < -104.0 { -104.0 } else { x };
        let (e, bits) = split_exponential::<S>(x);
        // 2^n in two factors, each of which is a normal number.
        let whole = (bits as i32).wrapping_sub(ROUND.to_bits() as i32);
        let first = whole >> 1;
        let power = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
        e * power(first) * power(whole.wrapping_sub(first))
    }

    #[inline(always)]
    fn exp_negative<S: Simd>(self) -> Self {
        let (e, bits) = split_exponential::<S>(self);
        // n is added to the exponent. A NaN has no low bits and stays one.
        let scaled = f32::from_bits(e.to_bits().wrapping_add(bits << 23));
        if self < -87.336_54 { 0.0 } else { scaled }
    }

    /// A quotient of polynomials on [-4, 4], outside of which it is ±1.
    #[inline(always)]
    fn erf_simd<S: Simd>(self) -> Self {
        let x = if self > 4.0 { 4.0 } else { self };
        let x = if x < -4.0 { -4.0 } else { x };
        let s = x * x;
        let p = polynomial::<S, _>(
            [
                -2.726_142_3e-10,
                2.770_681_4e-8,
                -2.101_024e-6,
                -5.692_506_4e-5,
                -7.349_906e-4,
                -2.954_6e-3,
                -1.609_603_3e-2,
            ],
            s,
        );
        let q = polynomial::<S, _>(
            [-1.456_607_2e-5, -2.133_740_6e-4, -1.682_827e-3, -7.373_329e-3, -1.426_473_9e-2],
            s,
        );
        x * p / q
    }

    /// From the exponential; near zero, where that cancels, a polynomial.
    #[inline(always)]
    fn tanh_simd<S: Simd>(self) -> Self {
        let far = 1.0 - 2.0 / ((2.0 * self).exp_simd::<S>() + 1.0);
        let s = self * self;
        let p = polynomial::<S, _>(
            [-5.704_988_5e-3, 2.063_909e-2, -5.373_971_5e-2, 1.333_144_2e-1, -3.333_328_3e-1],
            s,
        );
        let near = multiply_add::<S>(p * s, self, self);
        if self.abs() < 0.625 { near } else { far }
    }
}

impl Wide for f64 {
    fn exp_simd<S: Simd>(self) -> Self {
        self.exp()
    }

    fn exp_negative<S: Simd>(self) -> Self {
        self.exp()
    }

    fn erf_simd<S: Simd>(self) -> Self {
        libm::erf(self)
    }

    fn tanh_simd<S: Simd>(self) -> Self {
        self.tanh()
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
    bf16, f32, false, bf16_to_f32, bf16_from_f32;
    f16, f32, false, f16_to_f32, f16_from_f32;
}

/// A bf16 is the upper half of an f32.
#[inline(always)]
fn bf16_to_f32(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

/// Rounds to the nearest, ties to even, without branches.
#[inline(always)]
fn bf16_from_f32(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let not_a_number = (bits >> 16) | 0x40;
    bf16::from_bits(if x.is_nan() { not_a_number } else { rounded } as u16)
}

/// Exponent and mantissa moved into place and the exponent's bias corrected by
/// a multiplication; subnormal numbers by a subtraction.
#[inline(always)]
fn f16_to_f32(x: f16) -> f32 {
    let bits = u32::from(x.to_bits()) << 16;
    let sign = bits & 0x8000_0000;
    let magnitude = bits << 1;
    let normal = f32::from_bits((magnitude >> 4) + (0xe0 << 23)) * f32::from_bits(0x0780_0000);
    let subnormal = f32::from_bits((magnitude >> 17) | (126 << 23)) - 0.5;
    let value = if magnitude < 1 << 27 { subnormal } else { normal };
    f32::from_bits(sign | value.to_bits())
}

/// Adds a power of two that leaves just the bits a f16 has, rounded to the
/// nearest, ties to even.
#[inline(always)]
fn f16_from_f32(x: f32) -> f16 {
    let bits = x.to_bits();
    // Too large becomes ∞ by the first factor, and the second undoes it.
    let scaled = (x.abs() * f32::from_bits(0x7780_0000)) * f32::from_bits(0x0880_0000);
    let doubled = bits << 1;
    let exponent = (doubled & 0xff00_0000).max(0x7100_0000);
    let rounded = (f32::from_bits((exponent >> 1) + 0x0780_0000) + scaled).to_bits();
    let magnitude = ((rounded >> 13) & 0x7c00) + (rounded & 0x0fff);
    let magnitude = if doubled > 0xff00_0000 { 0x7e00 } else { magnitude };
    f16::from_bits(((bits >> 16) & 0x8000 | magnitude) as u16)
}

/// Runs an expression with `$T` as the Rust type of a floating dtype, or fails
/// with the operation's name.
macro_rules! with_float {
    ($op:expr, $dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            weightloom_layout::DType::F64 => {
                type $T = f64;
                $body
            }
            weightloom_layout::DType::F32 => {
                type $T = f32;
                $body
            }
            weightloom_layout::DType::Bf16 => {
                type $T = half::bf16;
                $body
            }
            weightloom_layout::DType::F16 => {
                type $T = half::f16;
                $body
            }
            dtype => Err($crate::error::TensorError::DType { op: $op, dtype }),
        }
    };
}

pub(crate) use with_float;

/// Runs an expression with `$T` as the type of a parameter and `$G` as the type of
/// its gradient: the same, or a half type for `f32`.
macro_rules! with_gradient {
    ($op:expr, $kept:expr, $given:expr, ($T:ident, $G:ident) => $body:expr) => {
        match ($kept, $given) {
            (weightloom_layout::DType::F32, weightloom_layout::DType::Bf16) => {
                type $T = f32;
                type $G = half::bf16;
                $body
            }
            (weightloom_layout::DType::F32, weightloom_layout::DType::F16) => {
                type $T = f32;
                type $G = half::f16;
                $body
            }
            _ => $crate::element::with_float!($op, $given, $T => {
                type $G = $T;
                $body
            }),
        }
    };
}

pub(crate) use with_gradient;

/// Runs an expression with `$T` as the Rust type of a dtype whose elements can
/// be compared, or fails with the operation's name. Bools are bytes.
macro_rules! with_element {
    ($op:expr, $dtype:expr, $T:ident => $body:expr) => {
        with_element!(@ $op, $dtype, $T => $body, F64 f64, F32 f32, Bf16 half::bf16, F16 half::f16,
            I64 i64, I32 i32, I16 i16, I8 i8, U64 u64, U32 u32, U16 u16, U8 u8, Bool u8)
    };
    (@ $op:expr, $dtype:expr, $T:ident => $body:expr, $($name:ident $type:ty),*) => {
        match $dtype {
            $(weightloom_layout::DType::$name => {
                type $T = $type;
                $body
            })*
            dtype => Err($crate::error::TensorError::DType { op: $op, dtype }),
        }
    };
}

pub(crate) use with_element;

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::{Float, Simd, Wide};

    /// All half numbers, and f32 numbers around every rounding boundary.
    #[test]
    fn half_types_convert_as_the_standard_says() {
        for bits in 0..=u16::MAX {
            let (h, b) = (f16::from_bits(bits), bf16::from_bits(bits));
            if h.is_nan() {
                assert!(h.widen().is_nan());
            } else {
                assert_eq!(h.widen().to_bits(), h.to_f32().to_bits());
            }
            if b.is_nan() {
                assert!(b.widen().is_nan());
            } else {
                assert_eq!(b.widen().to_bits(), b.to_f32().to_bits());
            }
            for (place, low) in
                [0u32, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff].iter().enumerate()
            {
                for exponent_shift in [0, 3, 13] {
                    let x =
                        f32::from_bits((u32::from(bits) << 16 | low) ^ ((place as u32) << exponent_shift));
                    if x.is_nan() {
                        assert!(f16::narrow(x).is_nan() && bf16::narrow(x).is_nan());
                    } else {
                        assert_eq!(f16::narrow(x).to_bits(), f16::from_f32(x).to_bits(), "{x:e}");
                        assert_eq!(bf16::narrow(x).to_bits(), bf16::from_f32(x).to_bits(), "{x:e}");
                    }
                }
            }
        }
    }

    /// Distance in representable numbers.
    fn ulps(a: f32, b: f32) -> u32 {
        let key = |x: f32| {
            let bits = x.to_bits() as i32;
            if bits < 0 { i32::MIN.wrapping_sub(bits) } else { bits }
        };
        key(a).abs_diff(key(b))
    }

    /// Calls a test with and without fused multiplications.
    macro_rules! fused_or_not {
        ($test:ident) => {
            $test::<pulp::Scalar>();
            #[cfg(target_arch = "x86_64")]
            $test::<pulp::x86::V3>();
        };
    }

    #[test]
    fn the_exponential_is_exact_to_two_units() {
        fn check<S: Simd>() {
            for i in -1_040_000..=887_000 {
                let x = i as f32 / 10_000.0;
                let exact = f64::from(x).exp() as f32;
                // Subnormal results lose bits by nature.
                if exact >= f32::MIN_POSITIVE {
                    assert!(ulps(x.exp_simd::<S>(), exact) <= 2, "{x}");
                }
                let decay = x.exp_negative::<S>();
                if exact < f32::MIN_POSITIVE {
                    assert!(decay <= f32::MIN_POSITIVE, "{x}");
                } else if x < 88.0 {
                    assert!(ulps(decay, exact) <= 2, "{x}");
                }
            }
            for f in [f32::exp_simd::<S>, f32::exp_negative::<S>] {
                assert_eq!(f(0.0), 1.0);
                assert_eq!(f(f32::NEG_INFINITY), 0.0);
                assert_eq!(f(-1e9), 0.0);
                assert!(f(f32::NAN).is_nan());
            }
            assert_eq!(f32::INFINITY.exp_simd::<S>(), f32::INFINITY);
            assert_eq!(100f32.exp_simd::<S>(), f32::INFINITY);
        }
        fused_or_not!(check);
    }

    #[test]
    fn the_hyperbolic_tangent_is_exact_to_three_units() {
        fn check<S: Simd>() {
            for i in -100_000..=100_000 {
                let x = i as f32 / 10_000.0;
                assert!(ulps(x.tanh_simd::<S>(), f64::from(x).tanh() as f32) <= 3, "{x}");
            }
            assert_eq!(f32::INFINITY.tanh_simd::<S>(), 1.0);
            assert_eq!(f32::NEG_INFINITY.tanh_simd::<S>(), -1.0);
            assert!(f32::NAN.tanh_simd::<S>().is_nan());
        }
        fused_or_not!(check);
    }

    #[test]
    fn the_error_function_is_exact_to_five_units_of_one() {
        // Twelve roundings in two polynomials, a product and a quotient near 1.
        fn check<S: Simd>() {
            let bound = 5.0 * f32::EPSILON;
            for i in -60_000..=60_000 {
                let x = i as f32 / 10_000.0;
                let error = (x.erf_simd::<S>() - libm::erff(x)).abs();
                assert!(error <= bound, "erf({x}) is off by {error}");
            }
            assert!(f32::NAN.erf_simd::<S>().is_nan());
        }
        fused_or_not!(check);
    }
}
