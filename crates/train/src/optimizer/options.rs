//! Checks of the options of built-in optimizers.

use crate::extensions::OptionProblem;

/// An option, its value, and the numbers that it may have.
pub(super) struct NumberOption {
    pub(super) option: &'static str,
    pub(super) found: f64,
    pub(super) range: Range,
}

/// The numbers that an option may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Range {
    /// From 0 to below 1.
    Share,
    /// Above 0.
    Positive,
    /// At least 0.
    NotNegative,
    /// Below 0.
    Negative,
}

impl Range {
    fn has(self, value: f64) -> bool {
        // NaN is in no range.
        match self {
            Self::Share => (0.0..1.0).contains(&value),
            Self::Positive => value > 0.0 && value.is_finite(),
            Self::NotNegative => (0.0..f64::INFINITY).contains(&value),
            Self::Negative => value < 0.0 && value.is_finite(),
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::Share => "a number from 0 to below 1",
            Self::Positive => "a positive number",
            Self::NotNegative => "0 or more",
            Self::Negative => "a negative number",
        }
    }
}

/// A number under `train.optimizer.options`.
pub(super) fn number(option: &'static str, found: f64, range: Range) -> NumberOption {
    NumberOption { option, found, range }
}

/// Two decay rates.
pub(super) fn betas([first, second]: [f64; 2]) -> Vec<NumberOption> {
    vec![number("betas.0", first, Range::Share), number("betas.1", second, Range::Share)]
}

/// The options whose values are out of range.
pub(super) fn problems(options: impl IntoIterator<Item = NumberOption>) -> Vec<OptionProblem> {
    let wrong = options.into_iter().filter(|option| !option.range.has(option.found));
    wrong
        .map(|NumberOption { option, found, range }| {
            OptionProblem::new(option, format!("{found} is not {}", range.description()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_are_named() {
        let all = |value: f64| {
            let ranges = [Range::Share, Range::Positive, Range::NotNegative, Range::Negative];
            problems(ranges.map(|range| number("x", value, range))).len()
        };
        assert_eq!([0.5, 0.0, 1.0, -1.0].map(all), [1, 2, 2, 3]);
        assert_eq!([f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(all), [4; 3]);
        let found = problems([number("eps", 0.0, Range::Positive)]);
        assert_eq!(found, [OptionProblem::new("eps", "0 is not a positive number")]);
    }
}
