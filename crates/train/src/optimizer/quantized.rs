//! Numbers of eight bits with a shared scale.

/// Elements that share a scale.
pub(super) const BLOCK: usize = 256;

/// The values of all codes, from the lowest: between 1 and -1, with more of them near
/// zero (dynamic tree quantization, Dettmers 2015).
#[derive(Clone, Debug)]
pub(super) struct QuantMap {
    values: [f32; 256],
    /// Where codes meet: halfway between neighbors.
    bounds: [f32; 255],
}

/// Powers of ten that the values cover.
const EXPONENTS: i32 = 7;

impl QuantMap {
    /// Values from about -1 to 1.
    pub(super) fn signed() -> Self {
        let mut values = Vec::with_capacity(256);
        for exponent in 0..EXPONENTS {
            for mean in means(1 << exponent) {
                let value = 10_f64.powi(exponent - EXPONENTS + 1) as f32 * mean;
                values.extend([value, -value]);
            }
        }
        Self::new(values)
    }

    /// Values from 0 to 1.
    pub(super) fn unsigned() -> Self {
        let of_exponent = |exponent: i32| {
            means(2 << exponent).map(move |mean| 10_f64.powi(exponent - EXPONENTS + 1) as f32 * mean)
        };
        Self::new((0..EXPONENTS).flat_map(of_exponent).collect())
    }

    fn new(mut all: Vec<f32>) -> Self {
        all.extend([0.0, 1.0]);
        all.sort_by(f32::total_cmp);
        let mut values = [0.0; 256];
        values.copy_from_slice(&all);
        let mut bounds = [0.0; 255];
        for (bound, pair) in bounds.iter_mut().zip(values.windows(2)) {
            *bound = f32::midpoint(pair[0], pair[1]);
        }
        Self { values, bounds }
    }

    /// The value of a code, to be multiplied by the scale of its block.
    pub(super) fn value(&self, code: u8) -> f32 {
        self.values[usize::from(code)]
    }

    /// Writes the nearest codes of a block, and returns its scale: the largest magnitude.
    pub(super) fn quantize(&self, block: &[f32], codes: &mut [u8]) -> f32 {
        let scale = block.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        for (code, x) in codes.iter_mut().zip(block) {
            let share = x * inverse;
            // At most 255 bounds are below.
            *code = self.bounds.partition_point(|bound| *bound < share) as u8;
        }
        scale
    }
}

/// The middles of so many equal parts of the numbers from 0.1 to 1.
fn means(count: i32) -> impl Iterator<Item = f32> {
    let step = (1.0_f32 - 0.1) / count as f32;
    // As `torch.linspace`, from both ends.
    let boundary = move |at: i32| match at < (count + 1) / 2 {
        true => 0.1 + step * at as f32,
        false => 1.0 - step * (count - at) as f32,
    };
    (0..count).map(move |at| (boundary(at) + boundary(at + 1)) / 2.0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Record {
        maps: BTreeMap<String, Vec<f32>>,
    }

    #[test]
    fn values_are_those_of_bitsandbytes() {
        let text = include_str!("../../tests/fixtures/adamw_8bit.json");
        let record: Record = serde_json::from_str(text).expect("the fixture has maps");
        for (map, name) in [(QuantMap::signed(), "qmap1"), (QuantMap::unsigned(), "qmap2")] {
            for (found, expected) in map.values.iter().zip(&record.maps[name]) {
                // A rounding of either side.
                assert!((found - expected).abs() <= 2e-7 * expected.abs(), "{name}: {found} {expected}");
            }
        }
    }

    #[test]
    fn what_is_read_is_the_nearest_value() {
        for map in [QuantMap::signed(), QuantMap::unsigned()] {
            let block: Vec<f32> = (0..BLOCK).map(|at| (at as f32 * 0.13).sin().abs() * 3.0).collect();
            let mut codes = [0; BLOCK];
            let scale = map.quantize(&block, &mut codes);
            assert_eq!(scale, block.iter().copied().fold(0.0, f32::max));
            for (x, code) in block.iter().zip(codes) {
                let found = map.value(code) * scale;
                let nearest =
                    map.values.iter().map(|value| (value * scale - x).abs()).fold(f32::MAX, f32::min);
                assert!((found - x).abs() <= nearest * 1.000_1, "{x} {found}");
            }
            // A block of zeros stays one.
            assert_eq!(map.quantize(&[0.0; 4], &mut codes[..4]), 0.0);
        }
    }
}
