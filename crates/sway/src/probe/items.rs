//! Item-by-item results, which plots show and comparisons of runs pair.

use serde::{Deserialize, Serialize};

/// What one item measured in the base and in the fine-tuned model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ItemResult {
    /// The text that identifies the item, the same in every run of the suite.
    pub item: String,
    /// The value of the base.
    pub base: f64,
    /// The value of the fine-tuned model.
    pub tuned: f64,
}

/// Which values of an item are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// For example log-probabilities of a correct answer.
    Higher,
    /// For example nats per token.
    Lower,
}

/// The items of a probe, as part of its [`Evidence`](super::Evidence).
///
/// ```
/// use weightloom_sway::probe::{Better, Evidence, ItemResult, ItemResults};
///
/// let items = vec![ItemResult { item: "The sky is → blue".to_owned(), base: -0.2, tuned: -1.4 }];
/// let results = ItemResults { items, item_unit: "nats per token".to_owned(), better: Better::Higher };
/// assert!(results.gain(&results.items[0]) < -1.1);
/// assert_eq!(Evidence::of(&results).read::<ItemResults>(), Some(results));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ItemResults {
    /// In the order of the suite.
    pub items: Vec<ItemResult>,
    /// The unit of the values.
    pub item_unit: String,
    /// Which values are better.
    pub better: Better,
}

impl ItemResults {
    /// How much better the fine-tuned model does on an item; negative if worse.
    pub fn gain(&self, item: &ItemResult) -> f64 {
        match self.better {
            Better::Higher => item.tuned - item.base,
            Better::Lower => item.base - item.tuned,
        }
    }
}
