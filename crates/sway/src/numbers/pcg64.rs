//! numpy's default generator: PCG64 (XSL-RR), seeded as `SeedSequence` does.

const MULTIPLIER: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645;

/// numpy's default generator.
#[derive(Clone, Debug)]
pub struct Pcg64 {
    state: u128,
    increment: u128,
    /// The upper half of the last output, if only the lower was used.
    kept: Option<u32>,
}

impl Pcg64 {
    /// What `numpy.random.default_rng(seed)` starts as.
    pub fn new(seed: u64) -> Self {
        let words = spread_seed(seed);
        let pair = |at: usize| u64::from(words[at]) | u64::from(words[at + 1]) << 32;
        let state = u128::from(pair(0)) << 64 | u128::from(pair(2));
        let stream = u128::from(pair(4)) << 64 | u128::from(pair(6));
        let mut generator = Self { state: 0, increment: stream << 1 | 1, kept: None };
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
        if let Some(kept) = self.kept.take() {
            return kept;
        }
        let both = self.next_u64();
        self.kept = Some((both >> 32) as u32);
        both as u32
    }

    /// A number below `bound`, each as likely as the others (Lemire). Zero for
    /// the bounds 0 and 1, without a draw.
    pub fn below(&mut self, bound: u32) -> u32 {
        if bound < 2 {
            return 0;
        }
        let mut product = u64::from(self.next_u32()) * u64::from(bound);
        if (product as u32) < bound {
            let least = bound.wrapping_neg() % bound;
            while (product as u32) < least {
                product = u64::from(self.next_u32()) * u64::from(bound);
            }
        }
        (product >> 32) as u32
    }

    /// A number from 0 up to, not including, 1.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A normal number, by Box and Muller. (numpy cuts the bell into slices;
    /// its normal numbers are others.)
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

/// Eight words from a seed, as numpy's `SeedSequence` spreads it.
fn spread_seed(seed: u64) -> [u32; 8] {
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
    std::array::from_fn(|place| {
        let mixed = pool[place % 4] ^ factor;
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
    fn draws_what_numpy_draws() {
        // numpy.random.default_rng(0).random(3) and .integers(0, 10, 10).
        let mut generator = Pcg64::new(0);
        let found: Vec<f64> = (0..3).map(|_| generator.unit()).collect();
        assert_eq!(found, [0.6369616873214543, 0.2697867137638703, 0.04097352393619469]);
        let mut generator = Pcg64::new(0);
        let found: Vec<u32> = (0..10).map(|_| generator.below(10)).collect();
        assert_eq!(found, [8, 6, 5, 2, 3, 0, 0, 0, 1, 8]);
    }

    #[test]
    fn normal_numbers_are_normal() {
        let mut generator = Pcg64::new(7);
        let drawn: Vec<f64> = (0..20_000).map(|_| generator.normal()).collect();
        let mean = drawn.iter().sum::<f64>() / 20_000.0;
        let variance = drawn.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / 20_000.0;
        // Five deviations of the mean and of the variance of so many.
        assert!(mean.abs() < 0.036, "{mean}");
        assert!((variance - 1.0).abs() < 0.05, "{variance}");
    }

    proptest! {
        #[test]
        fn bounds_are_kept(seed: u64, bound in 1u32..1000) {
            let mut generator = Pcg64::new(seed);
            for _ in 0..50 {
                prop_assert!(generator.below(bound) < bound);
                let unit = generator.unit();
                prop_assert!((0.0..1.0).contains(&unit));
            }
        }
    }
}
