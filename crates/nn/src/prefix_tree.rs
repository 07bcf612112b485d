//! Sequences that share prefixes, as a tree.
//!
//! The tokens of all nodes form one row without gaps, so that everything but
//! attention runs on all of them at once. The tokens of a node attend to its
//! ancestors and to earlier tokens of the node. Keys have the same order as in
//! the sequence alone, so results have the same bits.

mod forward;

use std::ops::Range;
use std::sync::Arc;

use weightloom_dtensor::DTensor;

use crate::attention::LayerAttention;
use crate::cache::Cache;
use crate::error::NnError;

/// Shorter prefixes are computed again: looking them up costs more.
const MIN_SHARED_TOKENS: usize = 4;

/// Tokens that continue another node or begin a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    parent: Option<usize>,
    /// Its tokens in the row of all tokens.
    span: Range<usize>,
    /// The position of its first token in a sequence.
    start: usize,
    /// The index of its adapter.
    adapter: usize,
}

/// A tree of shared prefixes.
#[derive(Clone, Debug, Default)]
pub(crate) struct PrefixTree {
    nodes: Vec<Node>,
    /// The last node and the length of each sequence.
    sequences: Vec<(usize, usize)>,
    tokens: Vec<u32>,
}

impl PrefixTree {
    /// Builds the tree of `(tokens, adapter)` sequences. Only sequences with the
    /// same adapter share nodes.
    pub(crate) fn new(sequences: &[(&[u32], usize)]) -> Self {
        let mut order: Vec<usize> = (0..sequences.len()).collect();
        let key = |sequence: usize| (sequences[sequence].1, sequences[sequence].0);
        order.sort_by(|&a, &b| key(a).cmp(&key(b)));
        let mut tree = Self { sequences: vec![(0, 0); sequences.len()], ..Self::default() };
        // The nodes of the previous sequence, root first.
        let mut path: Vec<usize> = Vec::new();
        for (number, &sequence) in order.iter().enumerate() {
            let (tokens, adapter) = sequences[sequence];
            let shared = |other: Option<&usize>| match other {
                Some(&other) if sequences[other].1 == adapter => common_prefix(tokens, sequences[other].0),
                _ => 0,
            };
            let before = shared(number.checked_sub(1).map(|before| &order[before]));
            while path.last().is_some_and(|&last| tree.end(last) > before) {
                path.pop();
            }
            let mut at = path.last().map_or(0, |&last| tree.end(last));
            // A node ends where a later sequence diverges from it.
            loop {
                let split = order[number + 1..]
                    .iter()
                    .map(|other| shared(Some(other)))
                    .take_while(|&common| common > at)
                    .filter(|&common| common - at >= MIN_SHARED_TOKENS)
                    .min();
                let end = split.unwrap_or(tokens.len());
                if end > at {
                    path.push(tree.push(path.last().copied(), &tokens[at..end], at, adapter));
                }
                at = end;
                if at >= tokens.len() {
                    break;
                }
            }
            tree.sequences[sequence] = (path.last().copied().unwrap_or(0), tokens.len());
        }
        tree
    }

    fn push(&mut self, parent: Option<usize>, tokens: &[u32], start: usize, adapter: usize) -> usize {
        let span = self.tokens.len()..self.tokens.len() + tokens.len();
        self.tokens.extend_from_slice(tokens);
        self.nodes.push(Node { parent, span, start, adapter });
        self.nodes.len() - 1
    }

    /// The length of a sequence that ends with a node.
    fn end(&self, node: usize) -> usize {
        self.nodes[node].start + self.nodes[node].span.len()
    }

    /// All tokens in one row.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The position of each token in its sequence.
    pub(crate) fn positions(&self) -> Vec<usize> {
        self.nodes.iter().flat_map(|node| node.start..node.start + node.span.len()).collect()
    }

    /// The adapter index of each token.
    pub(crate) fn adapters(&self) -> impl Iterator<Item = usize> {
        self.nodes.iter().flat_map(|node| std::iter::repeat_n(node.adapter, node.span.len()))
    }

    /// The number of tokens of a sequence.
    pub(crate) fn length(&self, sequence: usize) -> Option<usize> {
        self.sequences.get(sequence).map(|(_, length)| *length)
    }

    /// The tokens of a sequence in the row of all tokens.
    pub(crate) fn spans(&self, sequence: usize) -> Vec<Range<usize>> {
        self.path(self.sequences[sequence].0)
    }

    fn path(&self, node: usize) -> Vec<Range<usize>> {
        let ancestors = std::iter::successors(Some(node), |&node| self.nodes[node].parent);
        let mut spans: Vec<Range<usize>> = ancestors.map(|node| self.nodes[node].span.clone()).collect();
        spans.reverse();
        spans
    }

    /// The number of sequences.
    pub(crate) fn sequence_count(&self) -> usize {
        self.sequences.len()
    }
}

/// Consecutive tokens of a tree that one forward pass computes. Their ancestors
/// are computed in the same pass, or are in its cache.
pub(crate) struct TreeChunk {
    tree: Arc<PrefixTree>,
    range: Range<usize>,
}

impl TreeChunk {
    /// Some of the tokens, with the ones before them in a cache.
    pub(crate) fn new(tree: Arc<PrefixTree>, range: Range<usize>) -> Self {
        Self { tree, range }
    }

    /// All tokens of a tree.
    pub(crate) fn whole(tree: Arc<PrefixTree>) -> Self {
        let range = 0..tree.tokens.len();
        Self { tree, range }
    }

    /// Attention within each node and to its ancestors, of queries, keys and
    /// values `[tokens, heads, 1, width]`; the result is `[tokens, 1, heads,
    /// width]`. A cache holds the earlier tokens of the tree as one row.
    pub(crate) fn attention(
        &self,
        queries_keys_values: [&DTensor; 3],
        layer: LayerAttention,
        cache: Option<(&mut Cache, usize)>,
    ) -> Result<DTensor, NnError> {
        // A view with the tokens of each head next to each other.
        let [queries, keys, values] = queries_keys_values.map(|x| x.transpose(0, 2));
        let (queries, keys, values) = (queries?, keys?, values?);
        let [keys, values] = match cache {
            Some((cache, layer)) => cache.append(layer, [&keys, &values])?,
            None => [keys, values],
        };
        let mut attended = Vec::new();
        for (number, node) in self.tree.nodes.iter().enumerate() {
            let own = node.span.start.max(self.range.start)..node.span.end.min(self.range.end);
            if own.is_empty() {
                continue;
            }
            let mut path = self.tree.path(number);
            if let Some(last) = path.last_mut() {
                last.end = own.end;
            }
            let queries = queries.narrow(2, own.start - self.range.start, own.len())?;
            let output =
                layer.forward(&queries, &concat_spans(&keys, &path)?, &concat_spans(&values, &path)?)?;
            // `[1, heads, time, width]` is stored with heads inside tokens.
            attended.push(output.permute(&[2, 0, 1, 3])?);
        }
        Ok(DTensor::cat(&attended.iter().collect::<Vec<_>>(), 0)?)
    }
}

/// Concatenates spans of `[1, heads, tokens, width]`.
pub(crate) fn concat_spans(x: &DTensor, spans: &[Range<usize>]) -> Result<DTensor, NnError> {
    let parts: Result<Vec<DTensor>, _> =
        spans.iter().map(|span| x.narrow(2, span.start, span.len())).collect();
    match &parts?[..] {
        [only] => Ok(only.clone()),
        parts => Ok(DTensor::cat(&parts.iter().collect::<Vec<_>>(), 2)?),
    }
}

fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read_back(tree: &PrefixTree, sequence: usize) -> Vec<u32> {
        tree.spans(sequence).into_iter().flat_map(|span| tree.tokens()[span].to_vec()).collect()
    }

    proptest! {
        /// Every sequence can be read back, has the right positions, and shares
        /// prefixes with others of its adapter.
        #[test]
        fn sequences_are_complete_and_share_prefixes(
            sequences in prop::collection::vec((prop::collection::vec(0u32..2, 1..24), 0usize..3), 1..12),
        ) {
            let given: Vec<(&[u32], usize)> =
                sequences.iter().map(|(tokens, adapter)| (&tokens[..], *adapter)).collect();
            let tree = PrefixTree::new(&given);
            let (positions, adapters) = (tree.positions(), tree.adapters().collect::<Vec<_>>());
            prop_assert!(adapters.is_sorted());
            let mut used = vec![false; tree.tokens().len()];
            for (sequence, (tokens, adapter)) in sequences.iter().enumerate() {
                prop_assert_eq!(&read_back(&tree, sequence), tokens);
                let rows: Vec<usize> = tree.spans(sequence).into_iter().flatten().collect();
                for (at, &row) in rows.iter().enumerate() {
                    prop_assert_eq!(positions[row], at);
                    prop_assert_eq!(adapters[row], *adapter);
                    used[row] = true;
                }
            }
            prop_assert!(used.iter().all(|used| *used));
            // Only prefixes of fewer than `MIN_SHARED_TOKENS` tokens occur twice.
            let mut sorted = sequences.clone();
            sorted.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
            let alike = |pair: &[(Vec<u32>, usize)]| {
                if pair[0].1 == pair[1].1 { common_prefix(&pair[0].0, &pair[1].0) } else { 0 }
            };
            let least: usize = sequences.iter().map(|(tokens, _)| tokens.len()).sum::<usize>()
                - sorted.windows(2).map(alike).sum::<usize>();
            let most = least + sequences.len() * (MIN_SHARED_TOKENS - 1);
            prop_assert!((least..=most).contains(&tree.tokens().len()));
        }
    }

    #[test]
    fn a_repeated_sequence_is_computed_once() {
        let sequence = [1, 2, 3];
        let tree = PrefixTree::new(&[(&sequence, 0), (&sequence, 0), (&sequence, 1)]);
        assert_eq!(tree.tokens(), [1, 2, 3, 1, 2, 3]);
        assert_eq!(tree.spans(0), tree.spans(1));
    }
}
