//! Changing the dtype of stored elements.
//!
//! Floats round to the nearest, ties to even; floats to integers are cut
//! towards zero and saturate; integers to shorter ones keep their low bits, as
//! in torch; anything that is not zero is true.

use half::{bf16, f16};
use weightloom_layout::{DType, F8E4M3, F8E5M2};

/// Casts elements of one dtype to another, buffer to buffer. Both are whole
/// elements, little endian, and equally many.
pub fn cast(from: DType, source: &[u8], to: DType, target: &mut [u8]) {
    if from == to {
        target.copy_from_slice(source);
        return;
    }
    macro_rules! into {
        ($source:ty) => {
            match to {
                DType::F64 => convert::<$source, f64>(source, target),
                DType::F32 => convert::<$source, f32>(source, target),
                DType::Bf16 => convert::<$source, bf16>(source, target),
                DType::F16 => convert::<$source, f16>(source, target),
                DType::F8E4M3 => convert::<$source, F8E4M3>(source, target),
                DType::F8E5M2 => convert::<$source, F8E5M2>(source, target),
                DType::I64 => convert::<$source, i64>(source, target),
                DType::I32 => convert::<$source, i32>(source, target),
                DType::I16 => convert::<$source, i16>(source, target),
                DType::I8 => convert::<$source, i8>(source, target),
                DType::U64 => convert::<$source, u64>(source, target),
                DType::U32 => convert::<$source, u32>(source, target),
                DType::U16 => convert::<$source, u16>(source, target),
                DType::U8 => convert::<$source, u8>(source, target),
                DType::Bool => convert::<$source, Truth>(source, target),
            }
        };
    }
    match from {
        DType::F64 => into!(f64),
        DType::F32 => into!(f32),
        DType::Bf16 => into!(bf16),
        DType::F16 => into!(f16),
        DType::F8E4M3 => into!(F8E4M3),
        DType::F8E5M2 => into!(F8E5M2),
        DType::I64 => into!(i64),
        DType::I32 => into!(i32),
        DType::I16 => into!(i16),
        DType::I8 => into!(i8),
        DType::U64 => into!(u64),
        DType::U32 => into!(u32),
        DType::U16 => into!(u16),
        DType::U8 => into!(u8),
        DType::Bool => into!(Truth),
    }
}

fn convert<S: Number, T: Number>(source: &[u8], target: &mut [u8]) {
    let pairs = source.chunks_exact(size_of::<S>()).zip(target.chunks_exact_mut(size_of::<T>()));
    for (from, to) in pairs {
        let from: S = bytemuck::pod_read_unaligned(from);
        to.copy_from_slice(bytemuck::bytes_of(&T::from_value(from.value())));
    }
}

/// A number wide enough for what it came from.
#[derive(Clone, Copy)]
pub(crate) enum Value {
    Single(f32),
    Double(f64),
    Signed(i64),
    Unsigned(u64),
}

/// A stored number.
pub(crate) trait Number: bytemuck::Pod {
    fn value(self) -> Value;
    fn from_value(value: Value) -> Self;
}

macro_rules! number {
    ($($type:ty, $wide:ident, |$x:ident| $to:expr, |$v:ident| $from:expr;)*) => {
        $(impl Number for $type {
            #[inline(always)]
            fn value(self) -> Value {
                let $x = self;
                Value::$wide($to)
            }

            #[inline(always)]
            fn from_value(value: Value) -> Self {
                match value {
                    Value::Single($v) => $from,
                    Value::Double($v) => $from,
                    Value::Signed($v) => $from,
                    Value::Unsigned($v) => $from,
                }
            }
        })*
    };
}

// The same expression for each kind of `v`; `as` rounds once.
number! {
    f64, Double, |x| x, |v| v as f64;
    f32, Single, |x| x, |v| v as f32;
    i64, Signed, |x| x, |v| v as i64;
    i32, Signed, |x| i64::from(x), |v| v as i32;
    i16, Signed, |x| i64::from(x), |v| v as i16;
    i8, Signed, |x| i64::from(x), |v| v as i8;
    u64, Unsigned, |x| x, |v| v as u64;
    u32, Unsigned, |x| u64::from(x), |v| v as u32;
    u16, Unsigned, |x| u64::from(x), |v| v as u16;
    u8, Unsigned, |x| u64::from(x), |v| v as u8;
}

impl Number for bf16 {
    #[inline(always)]
    fn value(self) -> Value {
        Value::Single(f32::from_bits(u32::from(self.to_bits()) << 16))
    }

    #[inline(always)]
    fn from_value(value: Value) -> Self {
        match value {
            Value::Single(v) => Self::from_f32(v),
            wider => Self::from_f32(narrow(wider)),
        }
    }
}

impl Number for f16 {
    #[inline(always)]
    fn value(self) -> Value {
        Value::Single(self.to_f32())
    }

    #[inline(always)]
    fn from_value(value: Value) -> Self {
        match value {
            Value::Single(v) => Self::from_f32(v),
            wider => Self::from_f32(narrow(wider)),
        }
    }
}

/// A number cut to the bits of an f32, with the last of them set if anything
/// was lost, so that rounding it further rounds as the number itself would.
/// (`from_f64` of the half types drops bits before it rounds.)
fn narrow(value: Value) -> f32 {
    let magnitude = |x: u64| {
        let spare = (64 - x.leading_zeros()).saturating_sub(24);
        let cut = x >> spare << spare;
        (cut | u64::from(cut != x) << spare) as f32
    };
    match value {
        Value::Single(v) => v,
        Value::Signed(v) => magnitude(v.unsigned_abs()).copysign(v as f32),
        Value::Unsigned(v) => magnitude(v),
        Value::Double(v) => {
            let near = v as f32;
            let exact = f64::from(near);
            if exact == v || v.is_nan() {
                return near;
            }
            let cut = if exact.abs() > v.abs() { near.to_bits() - 1 } else { near.to_bits() };
            f32::from_bits(cut | 1)
        }
    }
}

macro_rules! float8 {
    ($($type:ty),*) => {
        $(impl Number for $type {
            fn value(self) -> Value {
                Value::Single(self.to_f32())
            }

            fn from_value(value: Value) -> Self {
                Self::from_f32(narrow(value))
            }
        })*
    };
}

float8!(F8E4M3, F8E5M2);

/// A byte that is 0 or 1.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
struct Truth(u8);

impl Number for Truth {
    fn value(self) -> Value {
        Value::Unsigned(u64::from(self.0 != 0))
    }

    fn from_value(value: Value) -> Self {
        let truth = match value {
            Value::Single(v) => v != 0.0,
            Value::Double(v) => v != 0.0,
            Value::Signed(v) => v != 0,
            Value::Unsigned(v) => v != 0,
        };
        Self(u8::from(truth))
    }
}

/// Reads each element as the nearest f64, for statistics and differences.
pub(crate) fn for_each_f64(dtype: DType, bytes: &[u8], mut each: impl FnMut(f64)) {
    let mut wide = [0; 8 * 512];
    for part in bytes.chunks(dtype.size() * 512) {
        let count = part.len() / dtype.size();
        let wide = &mut wide[..count * 8];
        cast(dtype, part, DType::F64, wide);
        for value in wide.chunks_exact(8) {
            each(bytemuck::pod_read_unaligned(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one<S: Number, T: Number>(from: DType, to: DType, x: S) -> T {
        let mut bytes = vec![0; size_of::<T>()];
        cast(from, bytemuck::bytes_of(&x), to, &mut bytes);
        bytemuck::pod_read_unaligned(&bytes)
    }

    #[test]
    fn every_bf16_survives_f32_and_back() {
        for bits in 0..=u16::MAX {
            let x = bf16::from_bits(bits);
            let wide: f32 = one(DType::Bf16, DType::F32, x);
            let back: bf16 = one(DType::F32, DType::Bf16, wide);
            assert!(back.to_bits() == bits || x.is_nan() && back.is_nan());
        }
    }

    #[test]
    fn large_integers_round_once() {
        // Just above the middle of two bf16: the lowest bit, which f64 drops,
        // decides.
        let middle: u64 = (1 << 60) + (1 << 52);
        assert_eq!(one::<u64, bf16>(DType::U64, DType::Bf16, middle).to_f64(), (1u64 << 60) as f64);
        assert_eq!(
            one::<u64, bf16>(DType::U64, DType::Bf16, middle + 1).to_f64(),
            ((1u64 << 60) + (1 << 53)) as f64
        );
        assert_eq!(one::<i64, f16>(DType::I64, DType::F16, -2049).to_f64(), -2048.0);
        assert_eq!(one::<i64, f16>(DType::I64, DType::F16, -2051).to_f64(), -2052.0);
        let middle = 1.0 + 0.5f64.powi(8);
        assert_eq!(one::<f64, bf16>(DType::F64, DType::Bf16, middle).to_f64(), 1.0);
        assert_eq!(
            one::<f64, bf16>(DType::F64, DType::Bf16, middle.next_up()).to_f64(),
            1.0 + 0.5f64.powi(7)
        );
        assert_eq!(one::<f64, bf16>(DType::F64, DType::Bf16, 1e300), bf16::INFINITY);
    }

    #[test]
    fn floats_to_integers_saturate_and_truth_is_not_zero() {
        assert_eq!(one::<f32, i32>(DType::F32, DType::I32, 1e20), i32::MAX);
        assert_eq!(one::<f32, i32>(DType::F32, DType::I32, -1.9), -1);
        assert_eq!(one::<f32, Truth>(DType::F32, DType::Bool, 0.5).0, 1);
        assert_eq!(one::<u8, f32>(DType::Bool, DType::F32, 7), 1.0);
    }
}
