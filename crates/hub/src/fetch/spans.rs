//! Which bytes of a file are there.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Stretches of bytes, in order, none touching another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Spans(Vec<(u64, u64)>);

impl Spans {
    /// Adds a stretch.
    pub(super) fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        // All that touch the new one become one with it.
        let first = self.0.partition_point(|&(_, end)| end < range.start);
        let behind = self.0.partition_point(|&(start, _)| start <= range.end);
        let (mut start, mut end) = (range.start, range.end);
        for &(from, to) in &self.0[first..behind] {
            (start, end) = (start.min(from), end.max(to));
        }
        self.0.splice(first..behind, [(start, end)]);
    }

    /// How many bytes there are.
    pub(super) fn total(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// Behind the last byte that is there.
    pub(super) fn end(&self) -> u64 {
        self.0.last().map_or(0, |&(_, end)| end)
    }

    /// Whether stretches read from a file are what this type promises.
    pub(super) fn is_sound(&self) -> bool {
        self.0.iter().all(|(start, end)| start < end) && self.0.windows(2).all(|pair| pair[0].1 < pair[1].0)
    }

    /// What is not there of a file, in pieces of at most so many bytes.
    pub(super) fn missing(&self, size: u64, piece: u64) -> Vec<Range<u64>> {
        let piece = piece.max(1);
        let mut pieces = Vec::new();
        let mut at = 0;
        for (start, end) in self.0.iter().copied().chain([(size, size)]) {
            let start = start.min(size);
            while at < start {
                let next = at.saturating_add(piece).min(start);
                pieces.push(at..next);
                at = next;
            }
            at = at.max(end);
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn stretches_that_touch_become_one() {
        let mut spans = Spans::default();
        for range in [10..20, 30..40, 20..30, 5..5] {
            spans.add(range);
        }
        assert_eq!(spans, Spans(vec![(10, 40)]));
        assert_eq!(spans.missing(50, 100), vec![0..10, 40..50]);
        assert_eq!(spans.missing(15, 4), vec![0..4, 4..8, 8..10]);
    }

    #[test]
    fn stretches_from_a_file_are_looked_at() {
        for text in ["[[5,5]]", "[[5,3]]", "[[0,5],[5,7]]", "[[9,10],[0,5]]"] {
            assert!(!serde_json::from_str::<Spans>(text).unwrap().is_sound(), "{text}");
        }
        assert!(serde_json::from_str::<Spans>("[[0,5],[6,7]]").unwrap().is_sound());
    }

    proptest! {
        #[test]
        fn present_and_missing_bytes_are_the_file(
            ranges in prop::collection::vec((0_u64..200, 0_u64..50), 0..20),
            size in 0_u64..260,
            piece in 1_u64..40,
        ) {
            let mut spans = Spans::default();
            let mut there = vec![false; 300];
            for (start, length) in ranges {
                spans.add(start..start + length);
                there[start as usize..(start + length) as usize].fill(true);
                prop_assert!(spans.is_sound());
            }
            prop_assert_eq!(spans.total(), there.iter().filter(|byte| **byte).count() as u64);
            let missing = spans.missing(size, piece);
            prop_assert!(missing.iter().all(|range| range.end - range.start <= piece));
            let bytes: Vec<u64> = missing.into_iter().flatten().collect();
            let expected: Vec<u64> = (0..size).filter(|byte| !there[*byte as usize]).collect();
            prop_assert_eq!(bytes, expected);
        }
    }
}
