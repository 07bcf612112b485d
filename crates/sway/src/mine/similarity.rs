//! Predicting the value of a text from texts that share its words.

use std::collections::{BTreeMap, BTreeSet};

/// The nearest texts that a prediction averages.
const NEIGHBOURS: usize = 8;

/// Texts with values, by their words.
pub(super) struct WordIndex {
    texts: Vec<(BTreeSet<String>, f64)>,
    /// How much a shared word counts: rare words say more.
    weights: BTreeMap<String, f64>,
    mean: f64,
}

impl WordIndex {
    pub(super) fn new<'a>(texts: impl Iterator<Item = (&'a str, f64)>) -> Self {
        let texts: Vec<(BTreeSet<String>, f64)> = texts.map(|(text, value)| (words(text), value)).collect();
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for word in texts.iter().flat_map(|(words, _)| words) {
            *counts.entry(word.clone()).or_default() += 1;
        }
        let total = texts.len() as f64;
        let weight = |count: usize| (1.0 + total / count as f64).ln();
        let weights = counts.into_iter().map(|(word, count)| (word, weight(count))).collect();
        let mean = texts.iter().map(|(_, value)| value).sum::<f64>() / total.max(1.0);
        Self { texts, weights, mean }
    }

    /// The mean value of the nearest texts, weighted by their similarity; the
    /// mean of all if no text shares a word.
    pub(super) fn predict(&self, text: &str) -> f64 {
        let words = words(text);
        let mut near: Vec<(f64, f64)> = self
            .texts
            .iter()
            .map(|(other, value)| (self.similarity(&words, other), *value))
            .filter(|(similarity, _)| *similarity > 0.0)
            .collect();
        near.sort_by(|one, other| other.0.total_cmp(&one.0));
        near.truncate(NEIGHBOURS);
        let total: f64 = near.iter().map(|(similarity, _)| similarity).sum();
        if total == 0.0 {
            return self.mean;
        }
        near.iter().map(|(similarity, value)| similarity * value).sum::<f64>() / total
    }

    /// The weight of shared words, as a share of the weight of all words.
    fn similarity(&self, one: &BTreeSet<String>, other: &BTreeSet<String>) -> f64 {
        let weight = |word: &String| self.weights.get(word).copied().unwrap_or(1.0);
        let shared: f64 = one.intersection(other).map(weight).sum();
        let all: f64 = one.union(other).map(weight).sum();
        if all > 0.0 { shared / all } else { 0.0 }
    }
}

fn words(text: &str) -> BTreeSet<String> {
    let split = text.split(|letter: char| !letter.is_alphanumeric());
    split.filter(|word| !word.is_empty()).map(str::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_share_rare_words_predict() {
        let index = WordIndex::new(
            [("The horse ran", 1.0), ("The ship sank", 0.0), ("The horse ate", 0.8)].into_iter(),
        );
        assert!(index.predict("A horse!") > 0.85);
        assert!(index.predict("SHIP") < 0.1);
        assert!((index.predict("nothing alike") - 0.6).abs() < 1e-12);
        assert!((index.predict("") - 0.6).abs() < 1e-12);
    }
}
