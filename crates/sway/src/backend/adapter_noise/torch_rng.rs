//! PyTorch's CPU random generator, so that a seed gives the same noise as in
//! dlm-sway.
//!
//! The generator is the Mersenne Twister MT19937. Normal numbers come from the
//! Box-Muller transform: sixteen at a time for tensors of at least sixteen
//! elements, in pairs otherwise.

const STATE: usize = 624;
const SHIFT: usize = 397;

/// PyTorch's generator of normal numbers on a CPU.
pub(super) struct TorchRng {
    state: [u32; STATE],
    next: usize,
    /// The second number of a Box-Muller pair.
    spare: Option<f64>,
}

impl TorchRng {
    /// Seeds the generator; as in PyTorch, only the low 32 bits count.
    pub(super) fn new(seed: u64) -> Self {
        let mut state = [0; STATE];
        state[0] = seed as u32;
        for index in 1..STATE {
            let before: u32 = state[index - 1];
            state[index] = (before ^ (before >> 30)).wrapping_mul(1_812_433_253).wrapping_add(index as u32);
        }
        Self { state, next: STATE, spare: None }
    }

    fn next_u32(&mut self) -> u32 {
        if self.next == STATE {
            self.twist();
        }
        let mut word = self.state[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    fn twist(&mut self) {
        for index in 0..STATE {
            let high = self.state[index] & 0x8000_0000;
            let low = self.state[(index + 1) % STATE] & 0x7fff_ffff;
            let mixed = (high | low) >> 1;
            let odd = if low & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[index] = self.state[(index + SHIFT) % STATE] ^ mixed ^ odd;
        }
        self.next = 0;
    }

    /// A uniform multiple of 2⁻²⁴ in `[0, 1)`.
    fn uniform_f32(&mut self) -> f64 {
        f64::from(self.next_u32() & 0x00ff_ffff) / f64::from(1 << 24)
    }

    /// A uniform multiple of 2⁻⁵³ in `[0, 1)`.
    fn uniform_f64(&mut self) -> f64 {
        let high = u64::from(self.next_u32());
        let both = (high << 32) | u64::from(self.next_u32());
        (both & ((1 << 53) - 1)) as f64 / (1u64 << 53) as f64
    }

    /// Fills a tensor of `count` elements with normal numbers.
    pub(super) fn normals(&mut self, count: usize) -> Vec<f32> {
        if count < 16 {
            return (0..count).map(|_| self.normal() as f32).collect();
        }
        let mut uniform: Vec<f64> = (0..count).map(|_| self.uniform_f32()).collect();
        let mut normal = vec![0.0; count];
        for (uniform, normal) in uniform.chunks_exact(16).zip(normal.chunks_exact_mut(16)) {
            box_muller(uniform, normal);
        }
        if !count.is_multiple_of(16) {
            // PyTorch redraws the last sixteen.
            uniform.truncate(0);
            uniform.extend((0..16).map(|_| self.uniform_f32()));
            box_muller(&uniform, &mut normal[count - 16..]);
        }
        normal
    }

    fn normal(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let angle = std::f64::consts::TAU * self.uniform_f64();
        let radius = (-2.0 * (1.0 - self.uniform_f64()).ln()).sqrt();
        self.spare = Some(radius * angle.sin());
        radius * angle.cos()
    }
}

/// Transforms sixteen uniform numbers to normal ones.
fn box_muller(uniform: &[f64], normal: &mut [f32]) {
    for index in 0..8 {
        let radius = (-2.0 * (1.0 - uniform[index]).ln()).sqrt();
        let angle = std::f64::consts::TAU * uniform[index + 8];
        normal[index] = (radius * angle.cos()) as f32;
        normal[index + 8] = (radius * angle.sin()) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_match_mt19937() {
        // The C++ standard gives the ten-thousandth number for seed 5489.
        let mut rng = TorchRng::new(5489);
        let last = (0..10_000).map(|_| rng.next_u32()).last();
        assert_eq!(last, Some(4_123_659_995));
    }

    #[test]
    fn normals_match_torch() {
        let found = TorchRng::new(1000).normals(64);
        for (found, expected) in found.iter().zip([-0.530_559_f32, -1.129_970_6, -0.673_383_5]) {
            assert!((found - expected).abs() <= 2.4e-7, "{found} is not {expected}");
        }
    }

    #[test]
    fn any_count_of_normals_is_normal() {
        for count in [0, 1, 5, 15, 16, 17, 31, 33, 4099] {
            let mut rng = TorchRng::new(3);
            let found = rng.normals(count);
            assert_eq!(found.len(), count);
            assert!(found.iter().all(|x| x.is_finite() && x.abs() < 8.0));
        }
        let many = TorchRng::new(3).normals(4099);
        let mean: f32 = many.iter().sum::<f32>() / 4099.0;
        let square: f32 = many.iter().map(|x| x * x).sum::<f32>() / 4099.0;
        // Five standard deviations of the means of 4099 draws.
        assert!(mean.abs() < 0.08 && (square - 1.0).abs() < 0.12, "{mean} {square}");
    }

    #[test]
    fn small_tensors_share_box_muller_pairs() {
        let (mut one_by_one, mut together) = (TorchRng::new(9), TorchRng::new(9));
        let singles: Vec<f32> = (0..6).flat_map(|_| one_by_one.normals(1)).collect();
        assert_eq!(singles, together.normals(6));
    }
}
