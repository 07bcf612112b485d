//! The downloaded byte ranges of a file.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Sorted byte ranges; no two touch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct ByteRanges(Vec<(u64, u64)>);

impl ByteRanges {
    /// Adds a range and merges it with those it touches.
    pub(super) fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = self.0.partition_point(|&(_, end)| end < range.start);
        let end_index = self.0.partition_point(|&(start, _)| start <= range.end);
        let (mut start, mut end) = (range.start, range.end);
        for &(from, to) in &self.0[first..end_index] {
            (start, end) = (start.min(from), end.max(to));
        }
        self.0.splice(first..end_index, [(start, end)]);
    }

    /// Number of bytes.
    pub(super) fn total(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// End of the last range.
    pub(super) fn end(&self) -> u64 {
        self.0.last().map_or(0, |&(_, end)| end)
    }

    /// Whether ranges read from a file are sorted and separate.
    pub(super) fn is_valid(&self) -> bool {
        self.0.iter().all(|(start, end)| start < end) && self.0.windows(2).all(|pair| pair[0].1 < pair[1].0)
    }

    /// The missing ranges of a file, each of at most `limit` bytes.
    pub(super) fn missing(&self, size: u64, limit: u64) -> Vec<Range<u64>> {
        let limit = limit.max(1);
        let mut missing = Vec::new();
        let mut at = 0;
        for (start, end) in self.0.iter().copied().chain([(size, size)]) {
            let start = start.min(size);
            while at < start {
                let next = at.saturating_add(limit).min(start);
                missing.push(at..next);
                at = next;
            }
            at = at.max(end);
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_that_touch_are_merged() {
        let mut ranges = ByteRanges::default();
        for range in [10..20, 30..40, 20..30, 5..5] {
            ranges.add(range);
        }
        assert_eq!(ranges, ByteRanges(vec![(10, 40)]));
        assert_eq!(ranges.missing(50, 100), vec![0..10, 40..50]);
        assert_eq!(ranges.missing(15, 4), vec![0..4, 4..8, 8..10]);
    }

    #[test]
    fn ranges_from_a_file_are_validated() {
        for text in ["[[5,5]]", "[[5,3]]", "[[0,5],[5,7]]", "[[9,10],[0,5]]"] {
            assert!(!serde_json::from_str::<ByteRanges>(text).unwrap().is_valid(), "{text}");
        }
        assert!(serde_json::from_str::<ByteRanges>("[[0,5],[6,7]]").unwrap().is_valid());
    }

    proptest! {
        #[test]
        fn present_and_missing_bytes_are_the_file(
            added in prop::collection::vec((0_u64..200, 0_u64..50), 0..20),
            size in 0_u64..260,
            limit in 1_u64..40,
        ) {
            let mut ranges = ByteRanges::default();
            let mut there = vec![false; 300];
            for (start, length) in added {
                ranges.add(start..start + length);
                there[start as usize..(start + length) as usize].fill(true);
                prop_assert!(ranges.is_valid());
            }
            prop_assert_eq!(ranges.total(), there.iter().filter(|byte| **byte).count() as u64);
            let missing = ranges.missing(size, limit);
            prop_assert!(missing.iter().all(|range| range.end - range.start <= limit));
            let bytes: Vec<u64> = missing.into_iter().flatten().collect();
            let expected: Vec<u64> = (0..size).filter(|byte| !there[*byte as usize]).collect();
            prop_assert_eq!(bytes, expected);
        }
    }
}
