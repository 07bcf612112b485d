//! numpy's default generator: PCG64 (XSL-RR), seeded as `SeedSequence` does.

const MULTIPLIER: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645;

/// numpy's default random generator.
#[derive(Clone, Debug)]
pub struct Pcg64 {
    state: u128,
    increment: u128,
    /// Upper half of the last output if only the lower half was used.
    upper_half: Option<u32>,
}

impl Pcg64 {
    /// The state of `numpy.random.default_rng(seed)`.
    pub fn new(seed: u64) -> Self {
        let words = expand_seed(seed);
        let pair = |at: usize| u64::from(words[at]) | u64::from(words[at + 1]) << 32;
        let state = u128::from(pair(0)) << 64 | u128::from(pair(2));
        let stream = u128::from(pair(4)) << 64 | u128::from(pair(6));
        let mut generator = Self { state: 0, increment: stream << 1 | 1, upper_half: None };
        generator.step();
        generator.state = generator.state.wrapping_add(state);
        generator.step();
        generator
    }

    fn step(&mut self) {
        self.state = self.state.wrapping_mul(MULTIPLIER).wrapping_add(self.increment);
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.step();
        let folded = (self.state >> 64) as u64 ^ self.state as u64;
        folded.rotate_right((self.state >> 122) as u32)
    }

    /// The next 32 bits: the lower half of an output, then its upper half.
    pub fn next_u32(&mut self) -> u32 {
        if let Some(upper) = self.upper_half.take() {
            return upper;
        }
        let both = self.next_u64();
        self.upper_half = Some((both >> 32) as u32);
        both as u32
    }

    /// A uniform integer below `bound` (Lemire's method). Returns 0 without
    /// drawing for the bounds 0 and 1.
    pub fn below(&mut self, bound: u32) -> u32 {
        if bound < 2 {
            return 0;
        }
        let mut product = u64::from(self.next_u32()) * u64::from(bound);
        if (product as u32) < bound {
            let threshold = bound.wrapping_neg() % bound;
            while (product as u32) < threshold {
                product = u64::from(self.next_u32()) * u64::from(bound);
            }
        }
        (product >> 32) as u32
    }

    /// A uniform number in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A standard normal number by the Box-Muller transform. (numpy uses the
    /// ziggurat method, so its normal numbers differ.)
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// Expands a seed to eight words as numpy's `SeedSequence` does.
fn expand_seed(seed: u64) -> [u32; 8] {
    let entropy = [seed as u32, (seed >> 32) as u32, 0, 0];
    let mut factor: u32 = 0x43b0_d7e5;
    let mut hash = |value: u32| {
        let mixed = value ^ factor;
        factor = factor.wrapping_mul(0x931e_8875);
        let mixed = mixed.wrapping_mul(factor);
        mixed ^ mixed >> 16
    };
    let mut pool = entropy.map(&mut hash);
    for source in 0..4 {
        for target in 0..4 {
            if source != target {
                let hashed = hash(pool[source]);
                let mixed =
                    pool[target].wrapping_mul(0xca01_f9dd).wrapping_sub(hashed.wrapping_mul(0x4973_f715));
                pool[target] = mixed ^ mixed >> 16;
            }
        }
    }
    let mut factor: u32 = 0x8b51_f9dd;
    std::array::from_fn(|index| {
        let mixed = pool[index % 4] ^ factor;
        factor = factor.wrapping_mul(0x58f3_8ded);
        let mixed = mixed.wrapping_mul(factor);
        mixed ^ mixed >> 16
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn matches_numpy() {
        // numpy.random.default_rng(0).random(3) and .integers(0, 10, 10).
        let mut generator = Pcg64::new(0);
        let found: Vec<f64> = (0..3).map(|_| generator.unit()).collect();
        assert_eq!(found, [0.6369616873214543, 0.2697867137638703, 0.04097352393619469]);
        let mut generator = Pcg64::new(0);
        let found: Vec<u32> = (0..10).map(|_| generator.below(10)).collect();
        assert_eq!(found, [8, 6, 5, 2, 3, 0, 0, 0, 1, 8]);
    }

    #[test]
    fn normal_numbers_have_mean_0_and_variance_1() {
        let mut generator = Pcg64::new(7);
        let drawn: Vec<f64> = (0..20_000).map(|_| generator.normal()).collect();
        let mean = drawn.iter().sum::<f64>() / 20_000.0;
        let variance = drawn.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / 20_000.0;
        // Five standard deviations of the sample mean and variance.
        assert!(mean.abs() < 0.036, "{mean}");
        assert!((variance - 1.0).abs() < 0.05, "{variance}");
    }

    proptest! {
        #[test]
        fn draws_are_within_bounds(seed: u64, bound in 1u32..1000) {
            let mut generator = Pcg64::new(seed);
            for _ in 0..50 {
                prop_assert!(generator.below(bound) < bound);
                let unit = generator.unit();
                prop_assert!((0.0..1.0).contains(&unit));
            }
        }
    }
}
