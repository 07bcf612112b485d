//! How often something happens, exactly.

/// The probability of at most `hits` in `count` tries.
pub fn at_most(hits: usize, count: usize, chance: f64) -> f64 {
    if hits >= count || chance <= 0.0 {
        return 1.0;
    }
    if chance >= 1.0 {
        return 0.0;
    }
    let odds = (chance / (1.0 - chance)).ln();
    let mut term = count as f64 * (-chance).ln_1p();
    let mut sum = term.exp();
    for hit in 1..=hits {
        term += ((count - hit + 1) as f64 / hit as f64).ln() + odds;
        sum += term.exp();
    }
    sum.clamp(0.0, 1.0)
}

/// The probability of at least `hits` in `count` tries.
pub fn at_least(hits: usize, count: usize, chance: f64) -> f64 {
    if hits == 0 { 1.0 } else { at_most(count - hits.min(count), count, 1.0 - chance) }
}

/// Where the true chance lies with 95 % confidence (Clopper and Pearson).
pub fn interval(hits: usize, count: usize) -> [f64; 2] {
    let search = |goes_up: &dyn Fn(f64) -> bool| {
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..100 {
            let middle = 0.5 * (low + high);
            if goes_up(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        0.5 * (low + high)
    };
    let low = if hits == 0 { 0.0 } else { search(&|chance| at_least(hits, count, chance) < 0.025) };
    let high = if hits >= count { 1.0 } else { search(&|chance| at_most(hits, count, chance) > 0.025) };
    [low, high]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_chances() {
        assert!((at_most(1, 3, 0.5) - 0.5).abs() < 1e-12);
        assert!((at_least(3, 3, 0.5) - 0.125).abs() < 1e-12);
        assert!((at_most(0, 10, 0.1) - 0.9f64.powi(10)).abs() < 1e-12);
        // Tables of Clopper and Pearson: 0 of 10, 3 of 10.
        let [low, high] = interval(0, 10);
        assert!(low == 0.0 && (high - 0.3084971).abs() < 1e-6, "{high}");
        let [low, high] = interval(3, 10);
        assert!((low - 0.0667395).abs() < 1e-6 && (high - 0.6524529).abs() < 1e-6, "{low} {high}");
        assert_eq!((at_most(2, 5, 0.0), at_most(2, 5, 1.0), at_most(5, 5, 0.3)), (1.0, 0.0, 1.0));
    }

    proptest! {
        #[test]
        fn both_tails_cover_everything(count in 1usize..200, part in 0f64..1.0, chance in 0.001f64..0.999) {
            let hits = (part * count as f64) as usize;
            let more = if hits == count { 0.0 } else { at_least(hits + 1, count, chance) };
            prop_assert!((at_most(hits, count, chance) + more - 1.0).abs() < 1e-9);
            let [low, high] = interval(hits, count);
            let rate = hits as f64 / count as f64;
            prop_assert!(low <= rate && rate <= high);
        }
    }
}
