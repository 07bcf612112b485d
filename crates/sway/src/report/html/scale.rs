//! From values to places on a drawing, and the round numbers beside its axes.

/// From values to places.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    pub low: f64,
    pub high: f64,
    from: f64,
    to: f64,
    /// How far round numbers on it lie apart.
    step: f64,
}

impl Scale {
    /// A scale that has a place for all these values.
    pub(super) fn new(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| value.is_finite()) {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        // A single value is in the middle.
        if high - low <= 0.0 || !(high - low).is_finite() {
            let half = if low == 0.0 { 1.0 } else { low.abs() / 2.0 };
            (low, high) = (low - half, high + half);
        }
        Self { low, high, from, to, step: step(high - low) }
    }

    /// Extends the scale to round numbers at both ends.
    pub(super) fn rounded(self) -> Self {
        let low = (self.low / self.step).floor() * self.step;
        let high = (self.high / self.step).ceil() * self.step;
        if low.is_finite() && high.is_finite() && low < high { Self { low, high, ..self } } else { self }
    }

    pub(super) fn at(&self, value: f64) -> f64 {
        let share = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        self.from + share * (self.to - self.from)
    }

    /// Round numbers on the scale, at most seven.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let step = self.step;
        let first = (self.low / step).ceil();
        let numbers = (0..=6).map(|place| (first + f64::from(place)) * step);
        // Correct for rounding at 0 and at the end of the scale.
        let numbers = numbers.map(|number| if number.abs() < step * 1e-6 { 0.0 } else { number });
        numbers.filter(|number| *number <= self.high + step * 1e-6).collect()
    }
}

/// 1, 2 or 5 with zeros, so that three to five of them fill a range.
fn step(range: f64) -> f64 {
    let wanted = range / 5.0;
    let power = 10f64.powf(wanted.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|round| round * power);
    let found = steps.into_iter().find(|step| *step >= wanted * (1.0 - 1e-9)).unwrap_or(range);
    if found.is_finite() && found > 0.0 { found } else { range }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Scale;

    fn scale(low: f64, high: f64) -> Scale {
        Scale::new([low, high].into_iter(), 0.0, 100.0)
    }

    #[test]
    fn axes_have_round_numbers() {
        assert_eq!(scale(0.0, 0.093).rounded().ticks(), [0.0, 0.02, 0.04, 0.06, 0.08, 0.1]);
        assert_eq!(scale(0.0, 1.25).rounded().ticks(), [0.0, 0.5, 1.0, 1.5]);
        assert_eq!(scale(-3.0, 7.0).rounded().ticks(), [-4.0, -2.0, 0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(scale(0.0, 0.0).rounded().ticks(), [-1.0, -0.5, 0.0, 0.5, 1.0]);
    }

    proptest! {
        #[test]
        fn every_scale_has_room_and_ticks(low in -1e9..1e9f64, size in 1e-9..1e9f64) {
            let given = scale(low, low + size);
            let rounded = given.rounded();
            prop_assert!(rounded.low <= given.low && rounded.high >= given.high);
            let ticks = rounded.ticks();
            prop_assert!((2..=7).contains(&ticks.len()), "{:?}", ticks);
            prop_assert!(ticks.is_sorted());
            for tick in ticks {
                prop_assert!((0.0..=100.0).contains(&rounded.at(tick)));
            }
        }
    }
}
