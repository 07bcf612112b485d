//! Texts cut into chunks that are read at once.

use std::collections::HashMap;

/// A text, and the number of the variant that reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Item<'a> {
    pub(super) tokens: &'a [u32],
    pub(super) variant: usize,
}

/// Where chunks end, for items in order, so that none has more tokens than
/// this; beginnings that texts share count once. A longer text is a chunk of
/// its own.
pub(super) fn ends(items: &[Item<'_>], most: usize) -> Vec<usize> {
    let mut ends = Vec::new();
    let (mut start, mut sum) = (0, 0);
    let mut before: HashMap<usize, &[u32]> = HashMap::new();
    for (place, item) in items.iter().enumerate() {
        let shared = |other: &&[u32]| item.tokens.iter().zip(*other).take_while(|(a, b)| a == b).count();
        let new = item.tokens.len() - before.get(&item.variant).map_or(0, shared);
        if sum + new > most && place > start {
            ends.push(place);
            before.clear();
            (start, sum) = (place, item.tokens.len());
        } else {
            sum += new;
        }
        before.insert(item.variant, item.tokens);
    }
    if start < items.len() {
        ends.push(items.len());
    }
    ends
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn shared_beginnings_count_once_and_long_texts_stand_alone() {
        let (a, b, long) = ([1, 2, 3, 4], [1, 2, 3, 5], [7; 20]);
        let item = |tokens, variant| Item { tokens, variant };
        assert_eq!(ends(&[item(&a, 0), item(&b, 0)], 5), [2]);
        assert_eq!(ends(&[item(&a, 0), item(&b, 1)], 5), [1, 2]);
        assert_eq!(ends(&[item(&a, 0), item(&long, 0), item(&b, 0)], 5), [1, 2, 3]);
        assert_eq!(ends(&[], 5), Vec::<usize>::new());
    }

    proptest! {
        #[test]
        fn chunks_cover_all_items_and_are_small(
            texts in prop::collection::vec((prop::collection::vec(0u32..3, 1..9), 0usize..3), 0..30),
            most in 1usize..40,
        ) {
            let mut items: Vec<Item<'_>> =
                texts.iter().map(|(tokens, variant)| Item { tokens, variant: *variant }).collect();
            items.sort_unstable();
            let ends = ends(&items, most);
            prop_assert_eq!(ends.last().copied().unwrap_or(0), items.len());
            let mut start = 0;
            for end in ends {
                prop_assert!(end > start);
                // Prefixes, each with its variant, are what must be read.
                let unique: std::collections::BTreeSet<(usize, &[u32])> = items[start..end]
                    .iter()
                    .flat_map(|item| (1..=item.tokens.len()).map(|end| (item.variant, &item.tokens[..end])))
                    .collect();
                prop_assert!(unique.len() <= most || end - start == 1);
                start = end;
            }
        }
    }
}
