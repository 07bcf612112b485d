//! Rows that are planned for many documents at once.
//!
//! The documents of an epoch are taken in blocks of about two million tokens. The
//! lengths of its documents determine the rows of a block, so all ranks plan the
//! same, and a position is the start of a block and a number of rows.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap, HashSet};

use super::order::{Order, Shuffle};
use super::sample::Sample;

/// Rows of a block at most and at least, and its tokens in between.
const MOST_ROWS: u64 = 4096;
const FEWEST_ROWS: u64 = 64;
const TOKENS: u64 = 1 << 21;

/// Documents of a block at most.
const MOST_DOCUMENTS: u64 = 1 << 18;

/// Separates this use of the seed from others.
const PURPOSE: u64 = 0x726f_7773_2101_0001;

/// How rows are filled with what is shorter than a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fill {
    /// One after the other, cut where a row is full.
    InOrder,
    /// The longest first, each into the row with the least room that is enough.
    BestFit,
}

/// Consecutive tokens of a document in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) document: usize,
    pub(super) from: usize,
    pub(super) take: usize,
}

/// The segments of a row, of one token more than inputs.
pub(super) type PlannedRow = Vec<Segment>;

/// The rows of some documents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) rows: Vec<PlannedRow>,
    /// Documents in several rows.
    pub(super) cut: HashSet<usize>,
}

/// How blocks are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockSettings {
    pub(super) fill: Fill,
    pub(super) shuffle: Shuffle,
    /// Inputs per row.
    pub(super) size: usize,
}

impl BlockSettings {
    /// Whether a block with as many documents and tokens has enough.
    pub(super) fn is_full(&self, documents: u64, tokens: u64) -> bool {
        let row = self.size as u64 + 1;
        let most = row.saturating_mul(MOST_ROWS).min(TOKENS).max(row.saturating_mul(FEWEST_ROWS));
        tokens >= most || documents >= MOST_DOCUMENTS
    }

    /// The rows of documents with their lengths. Each token but the first of a
    /// document is a target once.
    pub(super) fn plan(&self, documents: &[(usize, usize)]) -> Plan {
        let mut planner = Planner { size: self.size, rows: Vec::new() };
        let mut rest: Vec<(usize, Segment)> = Vec::new();
        for (place, &(document, length)) in documents.iter().enumerate() {
            let mut from = 0;
            while length - from > self.size {
                planner.rows.push((place, vec![Segment { document, from, take: self.size + 1 }]));
                // The next row starts with the last target, as an input.
                from += self.size;
            }
            // Alone, a token has no target.
            if length - from >= 2 {
                rest.push((place, Segment { document, from, take: length - from }));
            }
        }
        match self.fill {
            Fill::InOrder => planner.in_order(&rest),
            Fill::BestFit => planner.best_fit(rest),
        }
        planner.rows.sort_by_key(|(place, row)| (*place, row.first().map_or(0, |first| first.from)));
        let rows: Vec<PlannedRow> = planner.rows.into_iter().map(|(_, row)| row).collect();
        let continued = rows.iter().flatten().filter(|segment| segment.from > 0);
        let cut = continued.map(|segment| segment.document).collect();
        Plan { cut, rows }
    }

    /// The order of the rows of a block.
    pub(super) fn order(&self, place: u64, rows: usize) -> Order {
        let shuffle = match self.shuffle {
            Shuffle::Never => Shuffle::Never,
            Shuffle::EachEpoch { seed } => {
                Shuffle::EachEpoch { seed: seed ^ PURPOSE ^ place.wrapping_mul(0x9e37_79b9_7f4a_7c15) }
            }
        };
        Order::new(rows, shuffle)
    }
}

/// Rows with the place of their first document.
struct Planner {
    size: usize,
    rows: Vec<(usize, PlannedRow)>,
}

impl Planner {
    fn in_order(&mut self, rest: &[(usize, Segment)]) {
        let mut row: Option<(usize, PlannedRow)> = None;
        let mut room = self.size + 1;
        for &(place, mut segment) in rest {
            loop {
                // A single token would be no target, since it is the first of its
                // segment.
                if room < 2 {
                    self.rows.extend(row.take());
                    room = self.size + 1;
                }
                let take = segment.take.min(room);
                row.get_or_insert_with(|| (place, Vec::new())).1.push(Segment { take, ..segment });
                room -= take;
                if take == segment.take {
                    break;
                }
                // As between rows of a long document.
                segment.from += take - 1;
                segment.take -= take - 1;
                room = 0;
            }
        }
        self.rows.extend(row);
    }

    fn best_fit(&mut self, mut rest: Vec<(usize, Segment)>) {
        rest.sort_by_key(|(place, segment)| (Reverse(segment.take), *place));
        // Rows with room, by the room that they have.
        let mut open: BTreeSet<(usize, usize)> = BTreeSet::new();
        for (place, segment) in rest {
            let fit = open.range((segment.take, 0)..).next().copied();
            let (room, row) = match fit {
                Some(found) => {
                    open.remove(&found);
                    found
                }
                None => {
                    self.rows.push((place, Vec::new()));
                    (self.size + 1, self.rows.len() - 1)
                }
            };
            let (first, segments) = &mut self.rows[row];
            *first = place.min(*first);
            segments.push(segment);
            if room - segment.take >= 2 {
                open.insert((room - segment.take, row));
            }
        }
    }
}

/// The block of a position, and the documents of its rows.
pub(super) struct Block {
    /// Epoch and place of its first document.
    pub(super) start: (u64, u64),
    /// The place after its last document.
    pub(super) end: u64,
    pub(super) rows: Vec<PlannedRow>,
    pub(super) order: Order,
    /// Documents that are tokenized, by number.
    pub(super) samples: HashMap<usize, Sample>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn settings(fill: Fill, size: usize) -> BlockSettings {
        BlockSettings { fill, shuffle: Shuffle::Never, size }
    }

    fn plan(fill: Fill, size: usize, lengths: &[usize]) -> Plan {
        let documents: Vec<(usize, usize)> = lengths.iter().copied().enumerate().collect();
        settings(fill, size).plan(&documents)
    }

    fn shown(plan: &Plan) -> Vec<Vec<(usize, usize, usize)>> {
        let row = |row: &PlannedRow| row.iter().map(|s| (s.document, s.from, s.take)).collect();
        plan.rows.iter().map(row).collect()
    }

    #[test]
    fn best_fit_fills_the_row_with_the_least_room() {
        // Rows hold ten tokens.
        let found = plan(Fill::BestFit, 9, &[4, 6, 7, 3, 2]);
        assert_eq!(shown(&found), [vec![(1, 0, 6), (0, 0, 4)], vec![(2, 0, 7), (3, 0, 3)], vec![(4, 0, 2)]]);
        assert!(found.cut.is_empty());
        // A long document is cut into rows, and its end is packed.
        let found = plan(Fill::BestFit, 9, &[3, 24]);
        assert_eq!(shown(&found), [vec![(1, 18, 6), (0, 0, 3)], vec![(1, 0, 10)], vec![(1, 9, 10)]]);
        assert_eq!(found.cut, HashSet::from([1]));
    }

    #[test]
    fn rows_in_order_are_cut_where_they_are_full() {
        let found = plan(Fill::InOrder, 9, &[6, 7, 22, 2]);
        let expected = [
            vec![(0, 0, 6), (1, 0, 4)],
            vec![(1, 3, 4), (2, 18, 4), (3, 0, 2)],
            vec![(2, 0, 10)],
            vec![(2, 9, 10)],
        ];
        assert_eq!((shown(&found), found.cut), (expected.to_vec(), HashSet::from([1, 2])));
    }

    proptest! {
        /// Every token but the first of each document is a target once, no row is too
        /// long, and best fit cuts no document that fits into a row.
        #[test]
        fn every_token_is_planned_once(
            lengths in prop::collection::vec(0_usize..60, 0..40),
            size in 2_usize..30,
            in_order in any::<bool>(),
        ) {
            let fill = if in_order { Fill::InOrder } else { Fill::BestFit };
            let lengths: Vec<usize> = lengths.into_iter().map(|length| if length < 2 { 0 } else { length }).collect();
            let plan = plan(fill, size, &lengths);
            let mut targets: Vec<Vec<u32>> = lengths.iter().map(|&length| vec![0; length]).collect();
            let mut rows_of = vec![0; lengths.len()];
            for row in &plan.rows {
                prop_assert!(row.iter().map(|segment| segment.take).sum::<usize>() <= size + 1);
                for segment in row {
                    rows_of[segment.document] += 1;
                    let covered = segment.from + 1..segment.from + segment.take;
                    targets[segment.document][covered].iter_mut().for_each(|times| *times += 1);
                }
            }
            for (document, targets) in targets.iter().enumerate() {
                prop_assert!(targets.iter().skip(1).all(|&times| times == 1), "{} {:?}", document, targets);
                if fill == Fill::BestFit && (2..=size + 1).contains(&lengths[document]) {
                    prop_assert_eq!(rows_of[document], 1);
                }
            }
            prop_assert_eq!(plan.cut.len(), rows_of.iter().filter(|&&rows| rows > 1).count());
        }
    }
}
