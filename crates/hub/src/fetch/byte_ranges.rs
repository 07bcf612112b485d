//! The downloaded byte ranges of a file.

use std::collections::VecDeque;
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
    pub(super) fn missing(&self, size: u64, limit: u64) -> MissingRanges {
        let mut gaps = VecDeque::new();
        let mut at = 0;
        for (start, end) in self.0.iter().copied().chain([(size, size)]) {
            let start = start.min(size);
            if at < start {
                gaps.push_back(at..start);
            }
            at = at.max(end);
        }
        MissingRanges { gaps, limit: limit.max(1) }
    }
}

/// Missing ranges, made one by one: a server can claim any size, and a list of
/// all ranges would take memory in proportion.
#[derive(Clone, Debug)]
pub(super) struct MissingRanges {
    gaps: VecDeque<Range<u64>>,
    limit: u64,
}

impl MissingRanges {
    /// The number of ranges that are left, up to a limit.
    pub(super) fn count_up_to(&self, limit: usize) -> usize {
        self.clone().take(limit).count()
    }
}

impl Iterator for MissingRanges {
    type Item = Range<u64>;

    fn next(&mut self) -> Option<Range<u64>> {
        let gap = self.gaps.front_mut()?;
        let range = gap.start..gap.start.saturating_add(self.limit).min(gap.end);
        gap.start = range.end;
        if gap.is_empty() {
            self.gaps.pop_front();
        }
        Some(range)
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
        let missing = |size, limit| ranges.missing(size, limit).collect::<Vec<_>>();
        assert_eq!(missing(50, 100), vec![0..10, 40..50]);
        assert_eq!(missing(15, 4), vec![0..4, 4..8, 8..10]);
    }

    #[test]
    fn ranges_of_a_huge_file_take_no_memory() {
        let mut missing = ByteRanges::default().missing(u64::MAX, 1 << 20);
        assert_eq!(missing.count_up_to(9), 9);
        assert_eq!(missing.next(), Some(0..1 << 20));
        assert_eq!(missing.nth(2), Some(3 << 20..4 << 20));
        assert_eq!(missing.gaps.len(), 1);
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
            let missing: Vec<_> = ranges.missing(size, limit).collect();
            prop_assert!(missing.iter().all(|range| range.end - range.start <= limit));
            let bytes: Vec<u64> = missing.into_iter().flatten().collect();
            let expected: Vec<u64> = (0..size).filter(|byte| !there[*byte as usize]).collect();
            prop_assert_eq!(bytes, expected);
        }
    }
}
