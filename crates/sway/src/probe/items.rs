//! Item-by-item results, which plots show and comparisons of runs pair.

use serde::{Deserialize, Serialize};

use crate::prompt::Prompt;

/// The most characters of an item's text.
const MOST_CHARS: usize = 160;
/// How many of them are the end of a text that is too long.
const END_CHARS: usize = 40;

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

impl ItemResult {
    /// A result. Line breaks of the text become spaces, and the middle of a
    /// long text is left out.
    pub fn new(text: &str, base: f64, tuned: f64) -> Self {
        Self { item: abbreviated(text), base, tuned }
    }
}

/// The beginning and the end of a text. Texts with a common beginning, such as
/// one prompt with several answers, stay apart.
fn abbreviated(text: &str) -> String {
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let count = flat.chars().count();
    if count <= MOST_CHARS {
        return flat;
    }
    let begin: String = flat.chars().take(MOST_CHARS - END_CHARS - 3).collect();
    let end: String = flat.chars().skip(count - END_CHARS).collect();
    format!("{begin} … {end}")
}

/// Which values of an item are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// For example log-probabilities of a correct answer.
    Higher,
    /// For example nats per token.
    Lower,
    /// Neither, for example divergences from the base.
    Neither,
}

/// The items of a probe, as part of its [`Evidence`](super::Evidence).
///
/// ```
/// use weightloom_sway::probe::{Better, Evidence, ItemResult, ItemResults};
///
/// let items = [ItemResult::new("The sky is → blue", -0.2, -1.4)];
/// let results = ItemResults::new("nats per token", Better::Higher, items).lost_from(1.0);
/// assert!(results.gain(&results.items[0]) < -1.1);
/// assert_eq!(results.lost(), 1);
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
    /// The loss from which an item counts as lost, where items are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item_lost_from: Option<f64>,
}

impl ItemResults {
    /// The unit of log-likelihoods and losses.
    pub const NATS_PER_TOKEN: &'static str = "nats per token";
    /// The unit of divergences and of differences between log-likelihoods.
    pub const NATS: &'static str = "nats";

    /// Results of items. An item with a value that is not finite is left out.
    pub fn new(unit: &str, better: Better, items: impl IntoIterator<Item = ItemResult>) -> Self {
        let finite = |item: &ItemResult| item.base.is_finite() && item.tuned.is_finite();
        Self {
            items: items.into_iter().filter(finite).collect(),
            item_unit: unit.to_owned(),
            better,
            item_lost_from: None,
        }
    }

    /// Results of which higher values are better.
    pub(crate) fn higher_is_better(unit: &str, items: impl IntoIterator<Item = ItemResult>) -> Self {
        Self::new(unit, Better::Higher, items)
    }

    /// Results of which lower values are better.
    pub(crate) fn lower_is_better(unit: &str, items: impl IntoIterator<Item = ItemResult>) -> Self {
        Self::new(unit, Better::Lower, items)
    }

    /// Divergences from the base, which neither should grow nor shrink.
    pub(crate) fn divergences<'a>(
        prompts: impl IntoIterator<Item = &'a Prompt>,
        divergences: &[f64],
    ) -> Self {
        let item =
            |(prompt, divergence): (&Prompt, &f64)| ItemResult::new(&prompt.to_string(), 0.0, *divergence);
        Self::new(Self::NATS, Better::Neither, prompts.into_iter().zip(divergences).map(item))
    }

    /// The same, with the loss from which an item counts as lost.
    pub fn lost_from(self, loss: f64) -> Self {
        Self { item_lost_from: Some(loss), ..self }
    }

    /// How much better the fine-tuned model does on an item; negative if worse.
    /// Where neither is better, the change.
    pub fn gain(&self, item: &ItemResult) -> f64 {
        self.improvement(item.base, item.tuned)
    }

    /// How much better the second value is than the first; negative if worse.
    pub fn improvement(&self, before: f64, after: f64) -> f64 {
        match self.better {
            Better::Higher | Better::Neither => after - before,
            Better::Lower => before - after,
        }
    }

    /// Whether an item counts as lost.
    pub fn is_lost(&self, item: &ItemResult) -> bool {
        self.item_lost_from.is_some_and(|loss| self.gain(item) < -loss)
    }

    /// How many items count as lost.
    pub fn lost(&self) -> usize {
        self.items.iter().filter(|item| self.is_lost(item)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_keep_their_ends() {
        let long = |end: &str| ItemResult::new(&format!("{}\n {end}", "word ".repeat(100)), 0.0, 1.0).item;
        let item = long("Lyon");
        assert!(item.chars().count() <= MOST_CHARS, "{item}");
        assert!(item.starts_with("word word") && item.ends_with(" word Lyon"), "{item}");
        assert_ne!(item, long("Paris"));
        assert_eq!(ItemResult::new("a\n b", 0.0, 1.0).item, "a b");
    }

    #[test]
    fn gains_have_the_sign_of_what_is_better() {
        let gains = [Better::Higher, Better::Lower, Better::Neither].map(|better| {
            let results = ItemResults::new("nats", better, [ItemResult::new("a", 1.0, 3.0)]);
            results.gain(&results.items[0])
        });
        assert_eq!(gains, [2.0, -2.0, 2.0]);
    }

    #[test]
    fn values_that_are_not_finite_are_left_out() {
        let items = [ItemResult::new("a", f64::NAN, 0.0), ItemResult::new("b", 0.0, 0.0)];
        assert_eq!(ItemResults::new("nats", Better::Higher, items).items.len(), 1);
    }
}
