//! Tests of a mean or a share against a limit.

use super::claim::Limit;
use crate::numbers::binomial;
use crate::numbers::student_t::TTest;

/// Standard errors that show a limit kept at 5 % with a power of 80 %.
const POWER: f64 = 1.645 + 0.842;

/// How many units would probably show on which side of a limit a mean lies.
fn needed(test: &TTest, limit: f64) -> Option<usize> {
    let distance = (test.mean - limit).abs();
    (distance > 0.0).then(|| ((POWER * test.std_dev / distance).powi(2).ceil() as usize).max(2))
}

/// Tests that a mean lies above a limit.
pub fn mean_above(values: &[f64], limit: f64, unit: &'static str) -> Limit {
    let units = values.len();
    match TTest::of(values) {
        Some(test) => Limit {
            bound: format!("limit {limit}"),
            within: test.p_greater(limit),
            beyond: test.p_less(limit),
            units,
            needed: needed(&test, limit),
            unit,
        },
        // One number has no variance; two are the least that decide.
        None => {
            Limit { bound: format!("limit {limit}"), within: 1.0, beyond: 1.0, units, needed: Some(2), unit }
        }
    }
}

/// Tests that a share lies below a limit.
pub fn share_below(hits: usize, count: usize, limit: f64, unit: &'static str) -> Limit {
    let share = hits as f64 / count as f64;
    let deviation = (limit * (1.0 - limit)).max(0.0).sqrt();
    let distance = (share - limit).abs();
    Limit {
        bound: format!("limit {} of {count}", most_hits(count, limit)),
        within: binomial::at_most(hits, count, limit),
        beyond: binomial::at_least(hits, count, limit),
        units: count,
        needed: (distance > 0.0).then(|| (POWER * deviation / distance).powi(2).ceil() as usize),
        unit,
    }
}

/// The most hits of a share that is below a limit.
pub(crate) fn most_hits(count: usize, limit: f64) -> usize {
    (count as f64 * limit).ceil().max(1.0) as usize - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_number_does_not_decide() {
        let found = mean_above(&[5.0], 0.0, "items");
        assert_eq!((found.within, found.beyond, found.needed), (1.0, 1.0, Some(2)));
    }

    #[test]
    fn means_and_shares_are_tested_against_limits() {
        let found = mean_above(&[0.1, 0.12, 0.09, 0.11], 0.0, "items");
        assert!(found.within < 0.001 && found.beyond > 0.999);
        let found = share_below(0, 200, 0.15, "items");
        assert!(found.within < 1e-10);
        let found = share_below(3, 10, 0.15, "items");
        assert!(found.within > 0.05 && found.beyond > 0.05);
        assert!(found.needed.is_some_and(|needed| needed > 10));
        let found = share_below(9, 10, 0.15, "items");
        assert!(found.beyond < 1e-5);
    }
}
