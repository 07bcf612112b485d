//! Random numbers as PyTorch draws them on a CPU, so that noise of one seed is
//! the noise that dlm-sway has for it.
//!
//! The generator is the Mersenne Twister MT19937. Normal numbers are made of
//! uniform ones by the transform of Box and Muller: sixteen at a time where
//! there are as many, in pairs otherwise.

const STATE: usize = 624;
const MIDDLE: usize = 397;

/// Normal numbers in PyTorch's order.
pub(super) struct Noise {
    state: [u32; STATE],
    next: usize,
    /// The second of a pair.
    left: Option<f64>,
}

impl Noise {
    /// The sequence of a seed. As PyTorch does, its low half alone counts.
    pub(super) fn new(seed: u64) -> Self {
        let mut state = [0; STATE];
        state[0] = seed as u32;
        for place in 1..STATE {
            let before: u32 = state[place - 1];
            state[place] = (before ^ (before >> 30)).wrapping_mul(1_812_433_253).wrapping_add(place as u32);
        }
        Self { state, next: STATE, left: None }
    }

    fn word(&mut self) -> u32 {
        if self.next == STATE {
            self.turn();
        }
        let mut word = self.state[self.next];
        self.next += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    fn turn(&mut self) {
        for place in 0..STATE {
            let high = self.state[place] & 0x8000_0000;
            let low = self.state[(place + 1) % STATE] & 0x7fff_ffff;
            let mixed = (high | low) >> 1;
            let odd = if low & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[place] = self.state[(place + MIDDLE) % STATE] ^ mixed ^ odd;
        }
        self.next = 0;
    }

    /// A number in [0, 1), a multiple of 2⁻²⁴.
    fn single(&mut self) -> f64 {
        f64::from(self.word() & 0x00ff_ffff) / f64::from(1 << 24)
    }

    /// A number in [0, 1), a multiple of 2⁻⁵³.
    fn double(&mut self) -> f64 {
        let high = u64::from(self.word());
        let both = (high << 32) | u64::from(self.word());
        (both & ((1 << 53) - 1)) as f64 / (1u64 << 53) as f64
    }

    /// The normal numbers of one tensor, in single precision.
    pub(super) fn normals(&mut self, count: usize) -> Vec<f32> {
        if count < 16 {
            return (0..count).map(|_| self.one() as f32).collect();
        }
        let mut drawn: Vec<f64> = (0..count).map(|_| self.single()).collect();
        let mut made = vec![0.0; count];
        for (drawn, made) in drawn.chunks_exact(16).zip(made.chunks_exact_mut(16)) {
            transform(drawn, made);
        }
        if !count.is_multiple_of(16) {
            // The last sixteen are drawn anew.
            drawn.truncate(0);
            drawn.extend((0..16).map(|_| self.single()));
            transform(&drawn, &mut made[count - 16..]);
        }
        made
    }

    fn one(&mut self) -> f64 {
        if let Some(left) = self.left.take() {
            return left;
        }
        let angle = std::f64::consts::TAU * self.double();
        let radius = (-2.0 * (1.0 - self.double()).ln()).sqrt();
        self.left = Some(radius * angle.sin());
        radius * angle.cos()
    }
}

/// Sixteen uniform numbers become as many normal ones.
fn transform(drawn: &[f64], made: &mut [f32]) {
    for place in 0..8 {
        let radius = (-2.0 * (1.0 - drawn[place]).ln()).sqrt();
        let angle = std::f64::consts::TAU * drawn[place + 8];
        made[place] = (radius * angle.cos()) as f32;
        made[place + 8] = (radius * angle.sin()) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_twister() {
        // The ten-thousandth number of the seed 5489 is known from the C++
        // standard.
        let mut noise = Noise::new(5489);
        let last = (0..10_000).map(|_| noise.word()).last();
        assert_eq!(last, Some(4_123_659_995));
    }

    #[test]
    fn normals_are_those_of_torch() {
        let found = Noise::new(1000).normals(64);
        for (found, expected) in found.iter().zip([-0.530_559_f32, -1.129_970_6, -0.673_383_5]) {
            assert!((found - expected).abs() <= 2.4e-7, "{found} is not {expected}");
        }
    }

    #[test]
    fn any_number_of_normals_is_normal() {
        for count in [0, 1, 5, 15, 16, 17, 31, 33, 4099] {
            let mut noise = Noise::new(3);
            let found = noise.normals(count);
            assert_eq!(found.len(), count);
            assert!(found.iter().all(|x| x.is_finite() && x.abs() < 8.0));
        }
        let many = Noise::new(3).normals(4099);
        let mean: f32 = many.iter().sum::<f32>() / 4099.0;
        let square: f32 = many.iter().map(|x| x * x).sum::<f32>() / 4099.0;
        // Five standard deviations of the means of 4099 draws.
        assert!(mean.abs() < 0.08 && (square - 1.0).abs() < 0.12, "{mean} {square}");
    }

    #[test]
    fn few_normals_come_in_pairs() {
        let (mut apart, mut together) = (Noise::new(9), Noise::new(9));
        let one_by_one: Vec<f32> = (0..6).flat_map(|_| apart.normals(1)).collect();
        assert_eq!(one_by_one, together.normals(6));
    }
}
