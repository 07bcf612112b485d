//! The order of documents of several sets, by weight.
//!
//! Each set gives the share of the text that its weight says, measured in bytes:
//! documents are drawn in proportion to the weight and in inverse proportion to
//! the mean size of the set's documents. A fixed cycle of slots spreads the sets
//! evenly. A set with a number of epochs ends after them, and the others share its
//! weight. So the document at a place is a function of seed and place.

use super::order::{Order, Shuffle};

/// Draws in a cycle. Shares are exact to this resolution.
const SLOTS: usize = 1 << 14;

/// A set of documents with consecutive numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MixtureSet {
    /// The number of its first document.
    pub(super) first: u64,
    pub(super) documents: u64,
    pub(super) bytes: u64,
    pub(super) weight: f64,
    /// Passes over the set; without end if not set.
    pub(super) epochs: Option<u64>,
}

impl MixtureSet {
    /// Draws until the set ends.
    fn draws(&self) -> Option<u64> {
        Some(self.epochs?.saturating_mul(self.documents))
    }
}

/// The order of the documents of all sets.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MixtureOrder {
    sets: Vec<(MixtureSet, Order)>,
    phases: Vec<Phase>,
    /// Places of an epoch of the mixture, in which every set has its epochs.
    places: u64,
}

/// A stretch in which the same sets are drawn.
#[derive(Clone, Debug, PartialEq)]
struct Phase {
    start: u64,
    /// Draws of each set before it.
    drawn: Vec<u64>,
    cycle: Cycle,
}

/// The sets of successive draws.
#[derive(Clone, Debug, PartialEq)]
struct Cycle {
    /// The set of each slot, and earlier slots of that set.
    slots: Vec<(u32, u32)>,
    /// Slots of each set.
    counts: Vec<u64>,
}

impl Cycle {
    /// A cycle for sets with these shares; a share of 0 has no slots.
    fn new(shares: &[f64]) -> Self {
        let sum: f64 = shares.iter().sum();
        let mut counts: Vec<u64> = shares
            .iter()
            .map(|share| match *share > 0.0 {
                true => ((share / sum * SLOTS as f64) as u64).max(1),
                false => 0,
            })
            .collect();
        // What rounding leaves over goes to the largest, where it changes least.
        let most = (0..counts.len()).max_by_key(|&set| counts[set]).unwrap_or(0);
        let others: u64 = counts.iter().sum::<u64>() - counts[most];
        counts[most] = (SLOTS as u64).saturating_sub(others).max(1);
        let mut places: Vec<(f64, usize)> = Vec::with_capacity(SLOTS);
        for (set, &count) in counts.iter().enumerate() {
            places.extend((0..count).map(|slot| ((slot as f64 + 0.5) / count as f64, set)));
        }
        places.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        let mut seen = vec![0_u32; counts.len()];
        let slots = places.into_iter().map(|(_, set)| {
            let earlier = seen[set];
            seen[set] += 1;
            (set as u32, earlier)
        });
        Self { slots: slots.collect(), counts }
    }

    fn len(&self) -> u64 {
        self.slots.len() as u64
    }

    /// Draws of a set in the first `places` places.
    fn draws(&self, set: usize, places: u64) -> u64 {
        let rest = &self.slots[..(places % self.len()) as usize];
        let rest = rest.iter().filter(|(slot, _)| *slot as usize == set).count() as u64;
        places / self.len() * self.counts[set] + rest
    }

    /// The place after this many draws of a set, one or more.
    fn place_after(&self, set: usize, draws: u64) -> u64 {
        let last = draws.saturating_sub(1);
        let (cycles, earlier) = (last / self.counts[set], last % self.counts[set]);
        let is_last = |&(slot, before): &(u32, u32)| slot as usize == set && u64::from(before) == earlier;
        let slot = self.slots.iter().position(is_last).unwrap_or(0) as u64;
        cycles.saturating_mul(self.len()).saturating_add(slot + 1)
    }
}

impl MixtureOrder {
    pub(super) fn new(sets: &[MixtureSet], shuffle: Shuffle) -> Self {
        let mut phases: Vec<Phase> = Vec::new();
        let (mut start, mut drawn) = (0_u64, vec![0_u64; sets.len()]);
        let places = loop {
            let left = |set: usize| sets[set].draws().map(|draws| draws - drawn[set]);
            let share = |set: usize| match left(set) {
                Some(0) => 0.0,
                _ => {
                    let mean = (sets[set].bytes as f64 / sets[set].documents.max(1) as f64).max(1.0);
                    sets[set].weight / mean
                }
            };
            let shares: Vec<f64> = (0..sets.len()).map(share).collect();
            if shares.iter().all(|share| *share <= 0.0) {
                break start;
            }
            let cycle = Cycle::new(&shares);
            let ends = (0..sets.len())
                .filter(|&set| shares[set] > 0.0)
                .filter_map(|set| Some(cycle.place_after(set, left(set)?)));
            let end = ends.min();
            let before = drawn.clone();
            if let Some(end) = end {
                for (set, drawn) in drawn.iter_mut().enumerate() {
                    *drawn += cycle.draws(set, end);
                }
            }
            phases.push(Phase { start, drawn: before, cycle });
            match end {
                Some(end) => start = start.saturating_add(end),
                None => break u64::MAX,
            }
        };
        let order = |(number, set): (usize, &MixtureSet)| {
            let shuffle = match shuffle {
                Shuffle::Never => Shuffle::Never,
                Shuffle::EachEpoch { seed } => {
                    Shuffle::EachEpoch { seed: seed.wrapping_add((number as u64) << 32) }
                }
            };
            (*set, Order::new(set.documents as usize, shuffle))
        };
        Self { sets: sets.iter().enumerate().map(order).collect(), phases, places }
    }

    /// Places of an epoch; `u64::MAX` if a set has no end.
    pub(super) fn len(&self) -> u64 {
        self.places
    }

    /// The document at a place of an epoch of the mixture.
    pub(super) fn at(&self, epoch: u64, place: u64) -> u64 {
        let phase = self.phases.partition_point(|phase| phase.start <= place).saturating_sub(1);
        let Some(Phase { start, drawn, cycle }) = self.phases.get(phase) else { return 0 };
        let local = place - start;
        let (set, earlier) = cycle.slots[(local % cycle.len()) as usize];
        let number = set as usize;
        let (set, order) = &self.sets[number];
        let draw = drawn[number] + local / cycle.len() * cycle.counts[number] + u64::from(earlier);
        let passes = epoch.saturating_mul(set.epochs.unwrap_or(0));
        let documents = set.documents.max(1);
        set.first + order.at(passes.saturating_add(draw / documents), draw % documents)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(first: u64, documents: u64, weight: f64, epochs: Option<u64>) -> MixtureSet {
        MixtureSet { first, documents, bytes: 10 * documents, weight, epochs }
    }

    const SHUFFLE: Shuffle = Shuffle::EachEpoch { seed: 3 };

    #[test]
    fn sets_are_drawn_by_their_weights() {
        let sets = [set(0, 100, 3.0, None), set(100, 7, 1.0, None)];
        let order = MixtureOrder::new(&sets, SHUFFLE);
        assert_eq!(order.len(), u64::MAX);
        // At any time the shares are right within one draw.
        let mut first = 0;
        for place in 0..5000 {
            first += u64::from(order.at(0, place) < 100);
            let expected = 0.75 * (place + 1) as f64;
            assert!((first as f64 - expected).abs() <= 1.0, "{first} of {place}");
        }
        // The small set is passed completely again and again.
        let small: Vec<u64> = (0..5000).map(|place| order.at(0, place)).filter(|&at| at >= 100).collect();
        for pass in small.chunks_exact(7) {
            let mut pass = pass.to_vec();
            pass.sort_unstable();
            assert!(pass.into_iter().eq(100..107));
        }
    }

    /// Long documents are drawn less often, so that the shares of text are right.
    #[test]
    fn weights_are_shares_of_the_text() {
        let long = MixtureSet { bytes: 90_000, ..set(0, 100, 1.0, None) };
        let order = MixtureOrder::new(&[long, set(100, 100, 1.0, None)], SHUFFLE);
        let first = (0..9100).filter(|&place| order.at(0, place) < 100).count();
        // Of 9,100 draws, 100 have 900 bytes and the others 10.
        assert!((99..=101).contains(&first), "{first}");
    }

    #[test]
    fn a_set_ends_after_its_epochs_and_the_others_go_on() {
        let sets = [set(0, 10, 1.0, Some(1)), set(10, 10, 1.0, Some(3)), set(20, 5, 2.0, Some(1))];
        let order = MixtureOrder::new(&sets, SHUFFLE);
        assert_eq!(order.len(), 45);
        for epoch in 0..2 {
            let all: Vec<u64> = (0..45).map(|place| order.at(epoch, place)).collect();
            for document in 0..25 {
                let times = if (10..20).contains(&document) { 3 } else { 1 };
                assert_eq!(all.iter().filter(|&&at| at == document).count(), times, "{document}");
            }
            // In the end only the second set is left.
            assert!(all[40..].iter().all(|document| (10..20).contains(document)));
        }
        assert_ne!(order.at(0, 44), order.at(1, 44));
    }

    proptest! {
        #[test]
        fn every_set_has_its_epochs(
            sizes in prop::collection::vec((1_u64..30, 0.01_f64..9.0, 0_u64..4, 1_u64..999), 1..5),
            shuffled in any::<bool>(),
        ) {
            let mut first = 0;
            let sets: Vec<MixtureSet> = sizes.iter().map(|&(documents, weight, epochs, bytes)| {
                let set = MixtureSet { bytes, ..set(first, documents, weight, Some(epochs)) };
                first += documents;
                set
            }).collect();
            let order = MixtureOrder::new(&sets, if shuffled { SHUFFLE } else { Shuffle::Never });
            let all: u64 = sets.iter().filter_map(MixtureSet::draws).sum();
            prop_assert_eq!(order.len(), all);
            let mut times = vec![0; first as usize];
            (0..all).for_each(|place| times[order.at(0, place) as usize] += 1);
            for set in sets {
                let range = set.first as usize..(set.first + set.documents) as usize;
                prop_assert!(times[range].iter().all(|&times| times == set.epochs.unwrap()));
            }
        }
    }
}
