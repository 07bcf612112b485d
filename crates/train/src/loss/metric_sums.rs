//! Metrics that a loss reports, summed over examples.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Sums and counts of metrics on one rank.
#[derive(Debug, Default)]
pub struct MetricSums {
    names: &'static [&'static str],
    sums: Mutex<Vec<[f64; 2]>>,
}

const CHOSEN: &str = "rewards/chosen";
const REJECTED: &str = "rewards/rejected";
const MARGINS: &str = "rewards/margins";

impl MetricSums {
    /// Empty sums.
    pub fn new(names: &'static [&'static str]) -> Self {
        Self { names, sums: Mutex::new(vec![[0.0; 2]; names.len()]) }
    }

    /// Adds a value of an example. Names that the loss did not announce are ignored.
    pub fn add(&self, name: &str, value: f64) {
        self.add_sum(name, value, 1.0);
    }

    /// Adds a sum over some examples.
    pub fn add_sum(&self, name: &str, sum: f64, count: f64) {
        let Some(index) = self.names.iter().position(|known| *known == name) else { return };
        let [total, counted] = &mut self.locked()[index];
        *total += sum;
        *counted += count;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub(crate) fn reset(&self) {
        self.locked().fill([0.0; 2]);
    }

    /// Sums and counts, one after the other.
    pub(crate) fn flat(&self) -> Vec<f64> {
        self.locked().iter().flatten().copied().collect()
    }

    /// Means by name, from [`flat`](Self::flat) sums over all ranks. A margin that no
    /// example has alone is that of the means.
    pub(crate) fn means(&self, flat: &[f64]) -> BTreeMap<String, f64> {
        let pairs = self.names.iter().zip(flat.chunks_exact(2));
        let counted = pairs.filter(|(_, pair)| pair[1] > 0.0);
        let mut means: BTreeMap<String, f64> =
            counted.map(|(name, pair)| ((*name).to_owned(), pair[0] / pair[1])).collect();
        if let (Some(chosen), Some(rejected)) = (means.get(CHOSEN), means.get(REJECTED))
            && !means.contains_key(MARGINS)
        {
            means.insert(MARGINS.to_owned(), chosen - rejected);
        }
        means
    }

    fn locked(&self) -> MutexGuard<'_, Vec<[f64; 2]>> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_means_over_examples() {
        let sums = MetricSums::new(&["rewards/chosen", "rewards/rejected", "kl"]);
        sums.add("rewards/chosen", 2.0);
        sums.add("rewards/chosen", 4.0);
        sums.add("unknown", 1.0);
        assert_eq!(sums.means(&sums.flat()), BTreeMap::from([("rewards/chosen".to_owned(), 3.0)]));
        sums.add_sum("rewards/rejected", 4.0, 4.0);
        let means = sums.means(&sums.flat());
        assert_eq!(means["rewards/margins"], 2.0);
        assert!(!means.contains_key("kl"));
        sums.reset();
        assert!(sums.means(&sums.flat()).is_empty());
    }
}
