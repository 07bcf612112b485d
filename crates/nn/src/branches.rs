//! Texts that share beginnings, as branches of trees.
//!
//! Tokens of all branches stand in one row without gaps, so that everything but
//! attention is done to all of them at once. A branch's tokens see those of the
//! branches that it grows from, and those before them in their own. Keys stand
//! in the same order as if the text were alone, so results are the same bits.

use std::ops::Range;

use weightloom_dtensor::DTensor;
use weightloom_tensor::Attention as Options;

use crate::cache::Cache;
use crate::error::NnError;

/// Beginnings that are shorter are not shared: looking them up would cost more
/// than computing them again.
const SHORTEST_SHARED: usize = 4;

/// Some tokens that follow another branch, or begin a text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Branch {
    parent: Option<usize>,
    /// Where its tokens are in the row of all tokens.
    place: Range<usize>,
    /// Where its first token stands in a text.
    start: usize,
    /// The change that it is read with.
    change: usize,
}

/// All branches of some texts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Branches {
    branches: Vec<Branch>,
    /// The last branch of each text, and how long the text is.
    texts: Vec<(usize, usize)>,
    tokens: Vec<u32>,
}

impl Branches {
    /// The branches of texts, each with the number of its change. Texts with
    /// the same change share beginnings; changes stand side by side.
    pub(crate) fn new(texts: &[(&[u32], usize)]) -> Self {
        let mut order: Vec<usize> = (0..texts.len()).collect();
        let key = |text: usize| (texts[text].1, texts[text].0);
        order.sort_by(|&a, &b| key(a).cmp(&key(b)));
        let mut made = Self { texts: vec![(0, 0); texts.len()], ..Self::default() };
        // Where the text before is: its branches, root first.
        let mut path: Vec<usize> = Vec::new();
        for (number, &text) in order.iter().enumerate() {
            let (tokens, change) = texts[text];
            let shared = |other: Option<&usize>| match other {
                Some(&other) if texts[other].1 == change => common(tokens, texts[other].0),
                _ => 0,
            };
            let before = shared(number.checked_sub(1).map(|before| &order[before]));
            // As much as is in branches; what is cut off below is shared no more.
            while path.last().is_some_and(|&last| made.end(last) > before) {
                path.pop();
            }
            let mut at = path.last().map_or(0, |&last| made.end(last));
            // A branch ends where the text after leaves it, so that it can be
            // grown from there.
            loop {
                let cut = order[number + 1..]
                    .iter()
                    .map(|other| shared(Some(other)))
                    .take_while(|&common| common > at)
                    .filter(|&common| common - at >= SHORTEST_SHARED)
                    .min();
                let end = cut.unwrap_or(tokens.len());
                if end > at {
                    path.push(made.grow(path.last().copied(), &tokens[at..end], at, change));
                }
                at = end;
                if at >= tokens.len() {
                    break;
                }
            }
            made.texts[text] = (path.last().copied().unwrap_or(0), tokens.len());
        }
        made
    }

    fn grow(&mut self, parent: Option<usize>, tokens: &[u32], start: usize, change: usize) -> usize {
        let place = self.tokens.len()..self.tokens.len() + tokens.len();
        self.tokens.extend_from_slice(tokens);
        self.branches.push(Branch { parent, place, start, change });
        self.branches.len() - 1
    }

    /// How long a text is that ends with a branch.
    fn end(&self, branch: usize) -> usize {
        self.branches[branch].start + self.branches[branch].place.len()
    }

    /// All tokens in one row.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Where each token stands in its text.
    pub(crate) fn positions(&self) -> Vec<usize> {
        self.branches.iter().flat_map(|branch| branch.start..branch.start + branch.place.len()).collect()
    }

    /// The change of each token.
    pub(crate) fn changes(&self) -> impl Iterator<Item = usize> {
        self.branches.iter().flat_map(|branch| std::iter::repeat_n(branch.change, branch.place.len()))
    }

    /// How many tokens a text has.
    pub(crate) fn length(&self, text: usize) -> Option<usize> {
        self.texts.get(text).map(|(_, length)| *length)
    }

    /// Where the tokens of a text are in the row, in pieces.
    pub(crate) fn pieces(&self, text: usize) -> Vec<Range<usize>> {
        self.path(self.texts[text].0)
    }

    fn path(&self, branch: usize) -> Vec<Range<usize>> {
        let parents = std::iter::successors(Some(branch), |&branch| self.branches[branch].parent);
        let mut pieces: Vec<Range<usize>> =
            parents.map(|branch| self.branches[branch].place.clone()).collect();
        pieces.reverse();
        pieces
    }

    /// Attention within each branch and to those that it grows from, of
    /// `[tokens, heads, 1, width]` to keys and values alike; the result has the
    /// heads of a token side by side, `[tokens, 1, heads, width]`.
    pub(crate) fn attention(
        &self,
        queries_keys_values: [&DTensor; 3],
        how: Options,
        cache: Option<(&mut Cache, usize)>,
    ) -> Result<DTensor, NnError> {
        // Tokens of a head side by side, without moving anything.
        let [queries, keys, values] = queries_keys_values.map(|x| x.transpose(0, 2));
        let (queries, keys, values) = (queries?, keys?, values?);
        let mut seen = Vec::with_capacity(self.branches.len());
        for number in 0..self.branches.len() {
            let path = self.path(number);
            let own = &self.branches[number].place;
            let here = queries.narrow(2, own.start, own.len())?;
            let found = here.attention(&joined(&keys, &path)?, &joined(&values, &path)?, how)?;
            // `[1, heads, time, width]` lies in memory with heads inside tokens.
            seen.push(found.permute(&[2, 0, 1, 3])?);
        }
        if let Some((cache, place)) = cache {
            let rows: Result<Vec<[DTensor; 2]>, NnError> = (0..self.texts.len())
                .map(|text| {
                    let pieces = self.pieces(text);
                    Ok([joined(&keys, &pieces)?, joined(&values, &pieces)?])
                })
                .collect();
            cache.fill(place, &rows?)?;
        }
        Ok(DTensor::cat(&seen.iter().collect::<Vec<_>>(), 0)?)
    }
}

/// Pieces of `[1, heads, tokens, width]` behind each other.
fn joined(x: &DTensor, pieces: &[Range<usize>]) -> Result<DTensor, NnError> {
    let parts: Result<Vec<DTensor>, _> =
        pieces.iter().map(|piece| x.narrow(2, piece.start, piece.len())).collect();
    match &parts?[..] {
        [only] => Ok(only.clone()),
        parts => Ok(DTensor::cat(&parts.iter().collect::<Vec<_>>(), 2)?),
    }
}

fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read_back(branches: &Branches, text: usize) -> Vec<u32> {
        branches.pieces(text).into_iter().flat_map(|piece| branches.tokens()[piece].to_vec()).collect()
    }

    proptest! {
        /// Every text can be read back, stands where it should, and shares what
        /// it has in common with others of its change.
        #[test]
        fn texts_are_whole_and_share_beginnings(
            texts in prop::collection::vec((prop::collection::vec(0u32..2, 1..24), 0usize..3), 1..12),
        ) {
            let given: Vec<(&[u32], usize)> =
                texts.iter().map(|(tokens, change)| (&tokens[..], *change)).collect();
            let branches = Branches::new(&given);
            let (positions, changes) = (branches.positions(), branches.changes().collect::<Vec<_>>());
            prop_assert!(changes.is_sorted());
            let mut used = vec![false; branches.tokens().len()];
            for (text, (tokens, change)) in texts.iter().enumerate() {
                prop_assert_eq!(&read_back(&branches, text), tokens);
                let places: Vec<usize> = branches.pieces(text).into_iter().flatten().collect();
                for (at, &place) in places.iter().enumerate() {
                    prop_assert_eq!(positions[place], at);
                    prop_assert_eq!(changes[place], *change);
                    used[place] = true;
                }
            }
            prop_assert!(used.iter().all(|used| *used));
            // Nothing stands twice but beginnings that are too short to share,
            // fewer than `SHORTEST_SHARED` tokens where a text leaves another.
            let mut sorted = texts.clone();
            sorted.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
            let alike = |pair: &[(Vec<u32>, usize)]| {
                if pair[0].1 == pair[1].1 { common(&pair[0].0, &pair[1].0) } else { 0 }
            };
            let least: usize = texts.iter().map(|(tokens, _)| tokens.len()).sum::<usize>()
                - sorted.windows(2).map(alike).sum::<usize>();
            let most = least + texts.len() * (SHORTEST_SHARED - 1);
            prop_assert!((least..=most).contains(&branches.tokens().len()));
        }
    }

    #[test]
    fn a_text_twice_is_read_once() {
        let text = [1, 2, 3];
        let branches = Branches::new(&[(&text, 0), (&text, 0), (&text, 1)]);
        assert_eq!(branches.tokens(), [1, 2, 3, 1, 2, 3]);
        assert_eq!(branches.pieces(0), branches.pieces(1));
    }
}
