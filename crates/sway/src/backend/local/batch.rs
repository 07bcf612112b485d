//! Batches of sequences for scoring.

use std::collections::HashMap;

/// A token sequence and the index of the variant that scores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BatchItem<'a> {
    pub(super) tokens: &'a [u32],
    pub(super) variant: usize,
}

/// Sorts items for [`batch_ends`]. Variants of a short sequence become
/// neighbours, so that a batch reads the weights once for all of them. Long
/// sequences are grouped by variant and then by common prefix, which is
/// computed once.
pub(super) fn sort<T>(items: &mut [T], max_tokens: usize, sequence: impl for<'t> Fn(&'t T) -> BatchItem<'t>) {
    items.sort_by(|a, b| {
        let (a, b) = (sequence(a), sequence(b));
        let is_long = |sequence: &BatchItem<'_>| 2 * sequence.tokens.len() > max_tokens;
        let variant = |sequence: &BatchItem<'_>| if is_long(sequence) { sequence.variant } else { 0 };
        (is_long(&a), variant(&a)).cmp(&(is_long(&b), variant(&b))).then_with(|| a.cmp(&b))
    });
}

/// The end of each batch of sorted sequences. A batch has at most `max_tokens`
/// tokens, with common prefixes counted once; a longer sequence is a batch by
/// itself, together with those that share most of it.
pub(super) fn batch_ends(sequences: &[BatchItem<'_>], max_tokens: usize) -> Vec<usize> {
    let mut ends = Vec::new();
    let (mut start, mut total) = (0, 0);
    let mut previous: HashMap<usize, &[u32]> = HashMap::new();
    for (index, sequence) in sequences.iter().enumerate() {
        let length = sequence.tokens.len();
        let shared = |other: &&[u32]| sequence.tokens.iter().zip(*other).take_while(|(a, b)| a == b).count();
        let new = length - previous.get(&sequence.variant).map_or(0, shared);
        // Another batch would compute the shared prefix again.
        let limit = if 2 * new < length { 2 * max_tokens.max(length) } else { max_tokens };
        if total + new > limit && index > start {
            ends.push(index);
            previous.clear();
            (start, total) = (index, length);
        } else {
            total += new;
        }
        previous.insert(sequence.variant, sequence.tokens);
    }
    if start < sequences.len() {
        ends.push(sequences.len());
    }
    ends
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn common_prefixes_count_once_and_long_sequences_are_alone() {
        let (a, b, long) = ([1, 2, 3, 4], [1, 2, 3, 5], [7; 20]);
        let sequence = |tokens, variant| BatchItem { tokens, variant };
        assert_eq!(batch_ends(&[sequence(&a, 0), sequence(&b, 0)], 5), [2]);
        assert_eq!(batch_ends(&[sequence(&a, 0), sequence(&b, 1)], 5), [1, 2]);
        assert_eq!(batch_ends(&[sequence(&a, 0), sequence(&long, 0), sequence(&b, 0)], 5), [1, 2, 3]);
        let longer: Vec<u32> = long.iter().copied().chain([8, 9]).collect();
        assert_eq!(batch_ends(&[sequence(&long, 0), sequence(&longer, 0)], 5), [2]);
        assert_eq!(batch_ends(&[sequence(&long, 0), sequence(&longer, 1)], 5), [1, 2]);
        assert_eq!(batch_ends(&[], 5), Vec::<usize>::new());
    }

    #[test]
    fn short_sequences_sort_by_tokens_and_long_ones_by_variant() {
        let (short, long, longer) = (vec![1, 2], vec![3; 8], vec![3; 9]);
        let sequence = |tokens, variant| BatchItem { tokens, variant };
        let mut sequences = [
            sequence(&long, 0),
            sequence(&long, 1),
            sequence(&longer, 0),
            sequence(&longer, 1),
            sequence(&short, 1),
            sequence(&short, 0),
        ];
        sort(&mut sequences, 10, |sequence| *sequence);
        let order: Vec<(usize, usize)> =
            sequences.iter().map(|sequence| (sequence.tokens.len(), sequence.variant)).collect();
        assert_eq!(order, [(2, 0), (2, 1), (8, 0), (9, 0), (8, 1), (9, 1)]);
    }

    proptest! {
        #[test]
        fn batches_cover_all_sequences_and_are_small(
            texts in prop::collection::vec((prop::collection::vec(0u32..3, 1..9), 0usize..3), 0..30),
            max_tokens in 1usize..40,
        ) {
            let mut sequences: Vec<BatchItem<'_>> =
                texts.iter().map(|(tokens, variant)| BatchItem { tokens, variant: *variant }).collect();
            sort(&mut sequences, max_tokens, |sequence| *sequence);
            let ends = batch_ends(&sequences, max_tokens);
            prop_assert_eq!(ends.last().copied().unwrap_or(0), sequences.len());
            let mut start = 0;
            for end in ends {
                prop_assert!(end > start);
                let batch = &sequences[start..end];
                // The distinct prefixes of each variant are the tokens computed.
                let unique: std::collections::BTreeSet<(usize, &[u32])> = batch
                    .iter()
                    .flat_map(|one| (1..=one.tokens.len()).map(|end| (one.variant, &one.tokens[..end])))
                    .collect();
                let longest = batch.iter().map(|one| one.tokens.len()).max().unwrap_or(0);
                prop_assert!(unique.len() <= 2 * max_tokens.max(longest) || end - start == 1);
                start = end;
            }
        }
    }
}
