//! The order of documents in an epoch.
//!
//! A shuffled list would take memory and have to be built first. Instead, a
//! cipher over document numbers (a Feistel network with cycle walking), keyed by
//! seed and epoch, maps a position to a document. The order is a function of
//! seed, epoch and position, the same on every rank, and a run can resume in the
//! middle of an epoch.

use weightloom_tensor::Stream;

use super::mixture::MixtureOrder;

/// Separates this use of the seed from others.
const PURPOSE: u64 = 0x6f72_6465_7221_0001;

/// Rounds of the network. Four look random; more are needed for few documents,
/// whose halves have few bits.
const ROUNDS: u64 = 8;

/// Bits of randomness in a number from a stream.
const MOST_HALF_BITS: u32 = 24;

/// Whether documents are shuffled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shuffle {
    /// Keep the order of files.
    Never,
    /// Use a new order in each epoch.
    EachEpoch { seed: u64 },
}

/// The order of a number of documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    documents: u64,
    shuffle: Shuffle,
    half_bits: u32,
}

impl Order {
    /// The number of documents.
    pub(super) fn len(&self) -> u64 {
        self.documents
    }

    pub(super) fn new(documents: usize, shuffle: Shuffle) -> Self {
        let documents = documents as u64;
        let bits = u64::BITS - documents.saturating_sub(1).leading_zeros();
        // The index takes 16 bytes per document: no machine has 2^48 of them.
        let half_bits = bits.div_ceil(2).clamp(1, MOST_HALF_BITS);
        Self { documents, shuffle, half_bits }
    }

    /// The document at a position of an epoch.
    pub(super) fn at(&self, epoch: u64, position: u64) -> u64 {
        let Shuffle::EachEpoch { seed } = self.shuffle else { return position };
        if self.documents < 2 {
            return position;
        }
        let stream = Stream { seed: seed ^ PURPOSE, number: epoch };
        // The network permutes a power of four, less than four times the number
        // of documents. Its cycles lead from a document to a document.
        let mut number = self.encipher(stream, position);
        while number >= self.documents {
            number = self.encipher(stream, number);
        }
        number
    }

    fn encipher(&self, stream: Stream, number: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits & mask, number & mask);
        for round in 0..ROUNDS {
            let drawn = stream.uniform(round << MOST_HALF_BITS | right) * (1 << MOST_HALF_BITS) as f32;
            // The high bits are the most random.
            let drawn = drawn as u64 >> (MOST_HALF_BITS - self.half_bits);
            (left, right) = (right, left ^ drawn);
        }
        left << self.half_bits | right
    }
}

/// The order of the documents of a run.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DocumentOrder {
    /// Every document once in an epoch.
    Plain(Order),
    /// Of several sets, by weight.
    Mixture(MixtureOrder),
}

impl DocumentOrder {
    /// The document at a place of an epoch.
    pub(super) fn at(&self, epoch: u64, place: u64) -> u64 {
        match self {
            Self::Plain(order) => order.at(epoch, place),
            Self::Mixture(order) => order.at(epoch, place),
        }
    }

    /// Places of an epoch; `u64::MAX` if it has no end.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Plain(order) => order.len(),
            Self::Mixture(order) => order.len(),
        }
    }

    /// Whether an epoch ends.
    pub(super) fn is_finite(&self) -> bool {
        self.len() < u64::MAX
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn order(documents: usize, seed: u64, epoch: u64) -> Vec<u64> {
        let order = Order::new(documents, Shuffle::EachEpoch { seed });
        (0..documents as u64).map(|place| order.at(epoch, place)).collect()
    }

    fn is_permutation(order: &[u64]) -> bool {
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        sorted.into_iter().eq(0..order.len() as u64)
    }

    #[test]
    fn orders_are_permutations() {
        for documents in 0..300 {
            assert!(is_permutation(&order(documents, 7, documents as u64 % 5)), "{documents}");
        }
        assert!(is_permutation(&order(100_003, 1, 0)));
    }

    /// Each permutation of up to four documents is equally likely, within five
    /// standard deviations.
    #[test]
    fn permutations_are_equally_likely() {
        for (documents, orders) in [(2, 2.0), (3, 6.0), (4, 24.0)] {
            let draws = 6000;
            let mut seen: HashMap<Vec<u64>, u32> = HashMap::new();
            for epoch in 0..draws {
                *seen.entry(order(documents, 3, epoch)).or_default() += 1;
            }
            assert_eq!(seen.len() as f64, orders, "{documents}");
            let expected = draws as f64 / orders;
            for (order, times) in seen {
                let away = (f64::from(times) - expected).abs();
                assert!(away < 5.0 * expected.sqrt(), "{order:?} {times} times, not {expected}");
            }
        }
    }

    /// Positions and documents are uncorrelated, and so are neighbours, within
    /// five standard errors for 10,000 pairs.
    #[test]
    fn large_orders_have_no_trend() {
        let (n, shuffled) = (10_000, order(10_000, 11, 2));
        let centre = (n - 1) as f64 / 2.0;
        let variance = ((n * n - 1) as f64) / 12.0;
        let mean = |pairs: &mut dyn Iterator<Item = (f64, f64)>| {
            pairs.map(|(one, other)| (one - centre) * (other - centre)).sum::<f64>() / n as f64 / variance
        };
        let bound = 5.0 / f64::from(n).sqrt();
        let places = mean(&mut shuffled.iter().enumerate().map(|(at, &to)| (at as f64, to as f64)));
        assert!(places.abs() < bound, "{places}");
        let neighbours = mean(&mut shuffled.windows(2).map(|pair| (pair[0] as f64, pair[1] as f64)));
        assert!(neighbours.abs() < bound, "{neighbours}");
    }

    #[test]
    fn unshuffled_documents_keep_their_order() {
        let order = Order::new(5, Shuffle::Never);
        assert!((0..5).all(|place| order.at(3, place) == place));
    }

    /// A later version must resume a saved run in the same order.
    #[test]
    fn orders_are_stable_across_versions() {
        assert_eq!(order(10, 42, 0), [1, 5, 4, 3, 0, 9, 7, 8, 2, 6]);
    }

    proptest! {
        #[test]
        fn orders_depend_on_seed_and_epoch(seed in any::<u64>(), epoch in 0..u64::MAX, documents in 20..200_usize) {
            let here = order(documents, seed, epoch);
            prop_assert!(is_permutation(&here));
            prop_assert_ne!(&here, &order(documents, seed, epoch + 1));
            prop_assert_ne!(&here, &order(documents, seed.wrapping_add(1), epoch));
        }
    }
}
