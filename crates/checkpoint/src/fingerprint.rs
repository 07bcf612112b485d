//! Fingerprints: hashes of elements that do not depend on how they are stored.
//!
//! Each element is hashed with its position in the whole tensor, and the hashes
//! are added up. So regions may be hashed in any order, on any rank, and from
//! any format, and one all-reduce combines the sums across ranks. Sums of
//! fixed chunks of a tensor serve as checksums at the same time.
//!
//! Fingerprints detect damage and mistakes. They do not resist deliberate
//! collisions.

use std::fmt;
use std::ops::{Add, AddAssign};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use weightloom_layout::{DType, Region, RegionError, Shape};

// Odd numbers without pattern; the first two digits of a prime's root would do
// as well.
const VALUE_LOW: u64 = 0x9e37_79b1;
const VALUE_HIGH: u64 = 0xc2b2_ae3d;
const POSITION: u64 = 0x9fb2_1c65_1e98_df25;
const START: u64 = 0x2d35_8dcc_aa6c_78a5;

/// A sum of element hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ElementSum {
    /// Sum of the hashes, which is also the checksum of a chunk.
    pub low: u64,
    /// Sum of a second mix of them.
    pub high: u64,
}

impl Add for ElementSum {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { low: self.low.wrapping_add(other.low), high: self.high.wrapping_add(other.high) }
    }
}

impl AddAssign for ElementSum {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl ElementSum {
    /// The sum of elements that are contiguous in the whole tensor, from the
    /// element with number `position`.
    pub fn of_run(width: usize, position: u64, bytes: &[u8]) -> Self {
        pulp::Arch::new().dispatch(Run::<BOTH> { width, position, bytes })
    }

    /// The low half of the sum, which is faster and suffices for checksums.
    pub fn low_of_run(width: usize, position: u64, bytes: &[u8]) -> u64 {
        pulp::Arch::new().dispatch(Run::<LOW> { width, position, bytes }).low
    }

    /// The sum of a region's elements, row-major in `bytes`.
    pub fn of_region(
        dtype: DType,
        shape: &Shape,
        region: &Region,
        bytes: &[u8],
    ) -> Result<Self, RegionError> {
        let width = dtype.size();
        let mut sum = Self::default();
        let mut rest = bytes;
        for run in region.runs(shape)? {
            let (part, behind) = rest.split_at(run.len() * width);
            sum += Self::of_run(width, run.start as u64, part);
            rest = behind;
        }
        Ok(sum)
    }
}

const BOTH: u8 = 2;
const LOW: u8 = 1;

/// A run, and how many halves of its sum to compute.
struct Run<'a, const HALVES: u8> {
    width: usize,
    position: u64,
    bytes: &'a [u8],
}

impl<const HALVES: u8> pulp::NullaryFnOnce for Run<'_, HALVES> {
    type Output = ElementSum;

    #[inline(always)]
    fn call(self) -> ElementSum {
        let Self { width, position, bytes } = self;
        match width {
            1 => sum::<1, HALVES>(position, bytes, |[a]| u64::from(a) * VALUE_LOW),
            2 => sum::<2, HALVES>(position, bytes, |x| u64::from(u16::from_le_bytes(x)) * VALUE_LOW),
            4 => sum::<4, HALVES>(position, bytes, |x| u64::from(u32::from_le_bytes(x)) * VALUE_LOW),
            _ => sum::<8, HALVES>(position, bytes, |x| {
                let x = u64::from_le_bytes(x);
                ((x & 0xffff_ffff) * VALUE_LOW).wrapping_add((x >> 32) * VALUE_HIGH)
            }),
        }
    }
}

#[inline(always)]
fn sum<const WIDTH: usize, const HALVES: u8>(
    position: u64,
    bytes: &[u8],
    spread: impl Fn([u8; WIDTH]) -> u64,
) -> ElementSum {
    let mut total = ElementSum::default();
    let mut key = START.wrapping_add(position.wrapping_mul(POSITION));
    let (elements, _) = bytes.as_chunks::<WIDTH>();
    for &element in elements {
        // Multiplying the halves of a number mixes them in one instruction
        // that every vector unit has.
        let mixed = spread(element).wrapping_add(key);
        let product = (mixed & 0xffff_ffff) * (mixed >> 32);
        total.low = total.low.wrapping_add(product);
        if HALVES == BOTH {
            total.high = total.high.wrapping_add((product >> 32) ^ mixed);
        }
        key = key.wrapping_add(POSITION);
    }
    total
}

/// The hash of a tensor, or of a whole checkpoint: 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub u128);

impl Fingerprint {
    /// The fingerprint of a tensor with this sum of elements.
    pub fn of_tensor(dtype: DType, shape: &Shape, sum: ElementSum) -> Self {
        let mut hash = Mixer::new();
        hash.text(dtype.name());
        hash.number(shape.ndim() as u64);
        shape.iter().for_each(|&size| hash.number(size as u64));
        hash.number(sum.low);
        hash.number(sum.high);
        hash.finish()
    }

    /// The fingerprint of a checkpoint with these tensors, in any order.
    pub fn of_whole<'a>(tensors: impl IntoIterator<Item = (&'a str, Self)>) -> Self {
        let mut sum = 0u128;
        for (name, Self(fingerprint)) in tensors {
            let mut hash = Mixer::new();
            hash.text(name);
            hash.number(fingerprint as u64);
            hash.number((fingerprint >> 64) as u64);
            sum = sum.wrapping_add(hash.finish().0);
        }
        let mut hash = Mixer::new();
        hash.number(sum as u64);
        hash.number((sum >> 64) as u64);
        hash.finish()
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:032x}", self.0))
    }
}

/// Text that is not a fingerprint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid fingerprint `{text}`: expected 32 hexadecimal digits")]
#[allow(missing_docs)]
pub struct ParseFingerprintError {
    pub text: String,
}

impl FromStr for Fingerprint {
    type Err = ParseFingerprintError;

    fn from_str(text: &str) -> Result<Self, ParseFingerprintError> {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let parsed = digits.then(|| u128::from_str_radix(text, 16).ok()).flatten();
        parsed.map(Self).ok_or_else(|| ParseFingerprintError { text: text.to_owned() })
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Mixes a few numbers into 128 bits. The same on every machine and in every
/// version: fingerprints are written down.
pub(crate) struct Mixer {
    low: u64,
    high: u64,
}

impl Mixer {
    pub(crate) fn new() -> Self {
        Self { low: START, high: POSITION }
    }

    pub(crate) fn number(&mut self, x: u64) {
        let product = u128::from(x ^ self.low) * u128::from(POSITION ^ self.high.rotate_left(29));
        self.low = self.low.rotate_left(23).wrapping_add(product as u64) ^ x;
        self.high = self.high.wrapping_mul(START | 1).wrapping_add((product >> 64) as u64) ^ product as u64;
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.number(u64::from_le_bytes(word));
        }
    }

    pub(crate) fn finish(mut self) -> Fingerprint {
        for round in 1..=3 {
            self.number(round);
        }
        Fingerprint(u128::from(self.high) << 64 | u128::from(self.low))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_the_whole_for_every_width_and_cut() {
        let bytes: Vec<u8> = (0..960u32).map(|i| (i * 37 % 251) as u8).collect();
        for dtype in [DType::U8, DType::Bf16, DType::F32, DType::F64] {
            let shape = Shape::new(&[8, 120 / dtype.size()]).unwrap();
            let whole = ElementSum::of_region(dtype, &shape, &Region::whole(&shape), &bytes).unwrap();
            for cut in 0..=shape[1] {
                let mut sum = ElementSum::default();
                for range in [0..cut, cut..shape[1]] {
                    let region = Region::whole(&shape).with_range(1, range.clone());
                    let mut part = Vec::new();
                    for row in bytes.chunks(shape[1] * dtype.size()) {
                        part.extend(&row[range.start * dtype.size()..range.end * dtype.size()]);
                    }
                    sum += ElementSum::of_region(dtype, &shape, &region, &part).unwrap();
                }
                assert_eq!(sum, whole, "{dtype} cut at {cut}");
            }
        }
    }

    #[test]
    fn every_flipped_bit_and_every_swap_of_neighbours_changes_the_sum() {
        let bytes: Vec<u8> = (0..256u32).map(|i| (i * i % 253) as u8).collect();
        for width in [1, 2, 4, 8] {
            let sum = ElementSum::of_run(width, 5, &bytes);
            for bit in 0..bytes.len() * 8 {
                let mut changed = bytes.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                let found = ElementSum::of_run(width, 5, &changed);
                assert!(found.low != sum.low && found.high != sum.high, "width {width}, bit {bit}");
            }
            for at in (0..bytes.len() - width).step_by(width) {
                let mut changed = bytes.clone();
                for byte in 0..width {
                    changed.swap(at + byte, at + width + byte);
                }
                if changed != bytes {
                    assert_ne!(ElementSum::of_run(width, 5, &changed).low, sum.low, "width {width}, at {at}");
                }
            }
            assert_ne!(ElementSum::of_run(width, 6, &bytes).low, sum.low);
            assert_eq!(ElementSum::low_of_run(width, 5, &bytes), sum.low);
        }
    }

    #[test]
    fn zeros_of_different_lengths_differ() {
        let mut seen = std::collections::HashSet::new();
        for length in 0..1000 {
            assert!(seen.insert(ElementSum::of_run(2, 0, &vec![0; 2 * length]).low));
        }
    }

    #[test]
    fn fingerprints_are_the_same_for_ever() {
        let sum = ElementSum::of_run(4, 0, bytemuck::cast_slice(&[1.0f32, -2.0, 3.5]));
        let shape = Shape::new(&[3]).unwrap();
        let one = Fingerprint::of_tensor(DType::F32, &shape, sum);
        let text = one.to_string();
        assert_eq!(text.parse(), Ok(one));
        let whole = Fingerprint::of_whole([("a", one), ("b", one)]);
        assert_eq!(whole, Fingerprint::of_whole([("b", one), ("a", one)]));
        assert_ne!(whole, Fingerprint::of_whole([("a", one), ("c", one)]));
        // Manifests contain fingerprints; a change would invalidate them.
        assert_eq!(text, "75c4975a31daea5a8702589c7faf12a6");
        assert_eq!(whole.to_string(), "012a9e1528411740204b6b3603f819bb");
    }
}
