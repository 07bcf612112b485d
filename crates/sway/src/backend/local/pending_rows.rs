//! Distributions that wait for others to be compared with.

use std::collections::HashMap;
use std::hash::Hash;
use std::rc::Rc;

use super::score_answer::{LogProbs, log_probs};

/// Distributions held until every comparison with them is done.
pub(in crate::backend) struct PendingRows<K> {
    /// Remaining comparisons.
    uses: HashMap<K, usize>,
    rows: HashMap<K, Rc<LogProbs>>,
}

impl<K> Default for PendingRows<K> {
    fn default() -> Self {
        Self { uses: HashMap::new(), rows: HashMap::new() }
    }
}

impl<K: Clone + Eq + Hash> PendingRows<K> {
    /// Announces a comparison with a row.
    pub(in crate::backend) fn expect(&mut self, key: &K) {
        *self.uses.entry(key.clone()).or_default() += 1;
    }

    /// Holds a row if it will be compared.
    pub(in crate::backend) fn add(&mut self, key: &K, logits: &[f32]) {
        if self.uses.contains_key(key) {
            self.rows.insert(key.clone(), Rc::new(log_probs(logits)));
        }
    }

    /// The rows of a comparison, once both are there.
    pub(in crate::backend) fn take(&mut self, [own, other]: &[K; 2]) -> Option<[Rc<LogProbs>; 2]> {
        let rows = [Rc::clone(self.rows.get(own)?), Rc::clone(self.rows.get(other)?)];
        self.release(own);
        self.release(other);
        Some(rows)
    }

    /// Drops a row after its last comparison.
    fn release(&mut self, key: &K) {
        if let Some(uses) = self.uses.get_mut(key) {
            *uses -= 1;
            if *uses == 0 {
                self.uses.remove(key);
                self.rows.remove(key);
            }
        }
    }
}
