//! Texts cut into chunks that are read at once.

use std::collections::HashMap;

/// A text, and the number of the variant that reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Item<'a> {
    pub(super) tokens: &'a [u32],
    pub(super) variant: usize,
}

/// The order in which texts are read. Variants of a short text stand side by
/// side, so that weights are read once for all of them; long texts stand beside
/// others that begin alike, of the same variant, so that they share that.
pub(super) fn sort<T>(all: &mut [T], most: usize, item: impl for<'t> Fn(&'t T) -> Item<'t>) {
    all.sort_by(|a, b| {
        let (a, b) = (item(a), item(b));
        let is_long = |item: &Item<'_>| 2 * item.tokens.len() > most;
        let variant = |item: &Item<'_>| if is_long(item) { item.variant } else { 0 };
        (is_long(&a), variant(&a)).cmp(&(is_long(&b), variant(&b))).then_with(|| a.cmp(&b))
    });
}

/// Where chunks end, for items in order, so that none has more tokens than
/// this; beginnings that texts share count once. A longer text is a chunk of its
/// own, together with those that share most of it.
pub(super) fn ends(items: &[Item<'_>], most: usize) -> Vec<usize> {
    let mut ends = Vec::new();
    let (mut start, mut sum) = (0, 0);
    let mut before: HashMap<usize, &[u32]> = HashMap::new();
    for (place, item) in items.iter().enumerate() {
        let shared = |other: &&[u32]| item.tokens.iter().zip(*other).take_while(|(a, b)| a == b).count();
        let new = item.tokens.len() - before.get(&item.variant).map_or(0, shared);
        // What is shared would have to be read again.
        let room = if 2 * new < item.tokens.len() { 2 * most.max(item.tokens.len()) } else { most };
        if sum + new > room && place > start {
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
        let longer: Vec<u32> = long.iter().copied().chain([8, 9]).collect();
        assert_eq!(ends(&[item(&long, 0), item(&longer, 0)], 5), [2]);
        assert_eq!(ends(&[item(&long, 0), item(&longer, 1)], 5), [1, 2]);
        assert_eq!(ends(&[], 5), Vec::<usize>::new());
    }

    #[test]
    fn variants_of_short_texts_and_beginnings_of_long_ones_stand_side_by_side() {
        let (short, long, longer) = (vec![1, 2], vec![3; 8], vec![3; 9]);
        let item = |tokens, variant| Item { tokens, variant };
        let mut items = [
            item(&long, 0),
            item(&long, 1),
            item(&longer, 0),
            item(&longer, 1),
            item(&short, 1),
            item(&short, 0),
        ];
        sort(&mut items, 10, |item| *item);
        let order: Vec<(usize, usize)> = items.iter().map(|item| (item.tokens.len(), item.variant)).collect();
        assert_eq!(order, [(2, 0), (2, 1), (8, 0), (9, 0), (8, 1), (9, 1)]);
    }

    proptest! {
        #[test]
        fn chunks_cover_all_items_and_are_small(
            texts in prop::collection::vec((prop::collection::vec(0u32..3, 1..9), 0usize..3), 0..30),
            most in 1usize..40,
        ) {
            let mut items: Vec<Item<'_>> =
                texts.iter().map(|(tokens, variant)| Item { tokens, variant: *variant }).collect();
            sort(&mut items, most, |item| *item);
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
                let longest = items[start..end].iter().map(|item| item.tokens.len()).max().unwrap_or(0);
                prop_assert!(unique.len() <= 2 * most.max(longest) || end - start == 1);
                start = end;
            }
        }
    }
}
