//! Items that two runs have in common.

use std::collections::{HashMap, VecDeque};

use crate::probe::{ItemResult, ItemResults};

/// The items of one probe in two runs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pairing<'a> {
    pub(super) pairs: Vec<(&'a ItemResult, &'a ItemResult)>,
    pub(super) only_before: Vec<&'a ItemResult>,
    pub(super) only_after: Vec<&'a ItemResult>,
}

impl<'a> Pairing<'a> {
    /// Pairs items with equal texts. Where a text occurs several times, the
    /// first is paired with the first, and so on.
    pub(super) fn of(before: &'a ItemResults, after: &'a ItemResults) -> Self {
        let mut waiting: HashMap<&str, VecDeque<&ItemResult>> = HashMap::new();
        for item in &after.items {
            waiting.entry(item.item.as_str()).or_default().push_back(item);
        }
        let (mut pairs, mut only_before) = (Vec::new(), Vec::new());
        for item in &before.items {
            match waiting.get_mut(item.item.as_str()).and_then(VecDeque::pop_front) {
                Some(partner) => pairs.push((item, partner)),
                None => only_before.push(item),
            }
        }
        // In the order of the suite.
        let unpaired = |item: &&ItemResult| {
            waiting
                .get(item.item.as_str())
                .is_some_and(|left| left.iter().any(|one| std::ptr::eq(*one, *item)))
        };
        let only_after = after.items.iter().filter(unpaired).collect();
        Self { pairs, only_before, only_after }
    }

    /// Whether the base measured the same in both runs.
    pub(super) fn has_equal_bases(&self) -> bool {
        // Other numbers of threads or machines may round differently.
        let near = |one: f64, other: f64| (one - other).abs() <= 1e-3 * (1.0 + one.abs());
        self.pairs.iter().all(|(before, after)| near(before.base, after.base))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::Better;

    #[test]
    fn equal_texts_are_paired_in_order_and_others_are_named() {
        let results = |items: &[(&str, f64)]| {
            let items = items.iter().map(|(item, tuned)| ItemResult::new(item, 0.0, *tuned));
            ItemResults::new("nats", Better::Higher, items)
        };
        let before = results(&[("a", 1.0), ("b", 2.0), ("a", 3.0), ("c", 4.0)]);
        let after = results(&[("d", 8.0), ("a", 5.0), ("a", 6.0), ("a", 7.0), ("b", 9.0)]);
        let found = Pairing::of(&before, &after);
        let pairs: Vec<(f64, f64)> =
            found.pairs.iter().map(|(one, other)| (one.tuned, other.tuned)).collect();
        assert_eq!(pairs, [(1.0, 5.0), (2.0, 9.0), (3.0, 6.0)]);
        let names = |items: &[&ItemResult]| -> Vec<f64> { items.iter().map(|item| item.tuned).collect() };
        assert_eq!((names(&found.only_before), names(&found.only_after)), (vec![4.0], vec![8.0, 7.0]));
        assert!(found.has_equal_bases());
    }
}
