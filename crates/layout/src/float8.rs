//! The two 8-bit floating-point formats, for storage and casts.

use bytemuck::{Pod, Zeroable};

/// Four bits of exponent, three of mantissa, no infinities. Saturates at the
/// largest number, 448, as in torch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct F8E4M3(u8);

/// Five bits of exponent, two of mantissa: a truncated f16. The largest number
/// is 57,344; overflow becomes infinite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct F8E5M2(u8);

/// `mantissa · 2^exponent` for exponents that f32 has.
fn scaled(mantissa: f32, exponent: i32) -> f32 {
    mantissa * f32::from_bits(((exponent + 127) as u32) << 23)
}

/// The nearest number with `bits` bits of mantissa and no exponent below
/// `least`, ties to even, as a code without its sign. The code grows with the
/// number, past the largest one too.
fn nearest(x: f32, bits: i32, least: i32) -> u32 {
    let magnitude = x.abs();
    let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(least);
    // In units of the last place of its exponent; exact, by powers of two.
    let units = scaled(scaled(magnitude, -exponent.min(120)), bits - (exponent - exponent.min(120)));
    let whole = units.round_ties_even() as u32;
    // Rounding up to the next exponent carries into it by itself.
    whole.saturating_add(((exponent - least) as u32) << bits)
}

impl F8E4M3 {
    /// The number.
    pub fn to_f32(self) -> f32 {
        let (exponent, mantissa) = (i32::from(self.0 >> 3 & 15), f32::from(self.0 & 7));
        let magnitude = match (exponent, self.0 & 7) {
            (15, 7) => f32::NAN,
            (0, _) => scaled(mantissa, -9),
            _ => scaled(8.0 + mantissa, exponent - 10),
        };
        if self.0 & 0x80 == 0 { magnitude } else { -magnitude }
    }

    /// The nearest to a number.
    pub fn from_f32(x: f32) -> Self {
        let sign = (x.to_bits() >> 24) as u8 & 0x80;
        let code = if x.is_nan() { 0x7f } else { nearest(x, 3, -6).min(0x7e) };
        Self(sign | code as u8)
    }
}

impl F8E5M2 {
    /// The number.
    pub fn to_f32(self) -> f32 {
        let (exponent, mantissa) = (i32::from(self.0 >> 2 & 31), f32::from(self.0 & 3));
        let magnitude = match (exponent, self.0 & 3) {
            (31, 0) => f32::INFINITY,
            (31, _) => f32::NAN,
            (0, _) => scaled(mantissa, -16),
            _ => scaled(4.0 + mantissa, exponent - 17),
        };
        if self.0 & 0x80 == 0 { magnitude } else { -magnitude }
    }

    /// The nearest to a number.
    pub fn from_f32(x: f32) -> Self {
        let sign = (x.to_bits() >> 24) as u8 & 0x80;
        let code = if x.is_nan() { 0x7f } else { nearest(x, 2, -14).min(0x7c) };
        Self(sign | code as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every code comes back, and every number between two neighbours goes to
    /// the nearer one, the middle to the even one.
    fn check(to: fn(u8) -> f32, from: fn(f32) -> u8, largest: u8) {
        for code in 0..=u8::MAX {
            if to(code).is_nan() {
                assert!(to(from(to(code))).is_nan());
            } else {
                assert_eq!(from(to(code)), code);
            }
        }
        for low in 0..largest {
            let (a, b) = (to(low), to(low + 1));
            let middle = (a + b) / 2.0;
            let even = if low % 2 == 0 { low } else { low + 1 };
            assert_eq!(from(middle), even, "{a} {b}");
            assert_eq!(from(middle.next_down()), low);
            assert_eq!(from(middle.next_up()), low + 1);
            assert_eq!(from(-middle), even | 0x80);
        }
    }

    #[test]
    fn every_code_and_every_boundary() {
        check(|code| F8E4M3(code).to_f32(), |x| F8E4M3::from_f32(x).0, 0x7e);
        check(|code| F8E5M2(code).to_f32(), |x| F8E5M2::from_f32(x).0, 0x7b);
        assert_eq!(F8E4M3(0x7e).to_f32(), 448.0);
        assert_eq!(F8E5M2(0x7b).to_f32(), 57_344.0);
        assert_eq!(F8E4M3::from_f32(1e9).to_f32(), 448.0);
        assert_eq!(F8E4M3::from_f32(f32::NEG_INFINITY).to_f32(), -448.0);
        assert!(F8E4M3::from_f32(f32::NAN).to_f32().is_nan());
        assert_eq!(F8E5M2::from_f32(61_440.0).to_f32(), f32::INFINITY);
        assert_eq!(F8E5M2::from_f32(-f32::MAX).to_f32(), f32::NEG_INFINITY);
        assert_eq!(F8E4M3::from_f32(f32::MIN_POSITIVE).to_f32(), 0.0);
    }
}
