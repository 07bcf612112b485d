//! Texts that both models generated, for readers of a report.

use serde::{Deserialize, Serialize};

/// The most pairs of texts in the evidence of a probe.
const MOST: usize = 100;

/// What both models generated after one prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Generation {
    #[serde(default)]
    pub prompt: String,
    pub base: String,
    #[serde(rename = "ft")]
    pub tuned: String,
}

/// The part of the evidence with generated texts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs)]
pub struct Generations {
    pub generations: Vec<Generation>,
}

impl Generations {
    /// The pairs, those that differ first.
    pub fn of(pairs: impl IntoIterator<Item = Generation>) -> Self {
        let (changed, same): (Vec<_>, Vec<_>) = pairs.into_iter().partition(|pair| pair.base != pair.tuned);
        Self { generations: changed.into_iter().chain(same).take(MOST).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn texts_that_differ_come_first() {
        let pair = |prompt: usize| Generation {
            prompt: prompt.to_string(),
            base: "the same".to_owned(),
            tuned: if prompt.is_multiple_of(3) { "another" } else { "the same" }.to_owned(),
        };
        let kept = Generations::of((0..12).map(pair));
        let prompts: Vec<&str> = kept.generations.iter().map(|pair| pair.prompt.as_str()).collect();
        assert_eq!(prompts, ["0", "3", "6", "9", "1", "2", "4", "5", "7", "8", "10", "11"]);
        let written = serde_json::to_value(&kept).unwrap();
        assert_eq!(written["generations"][0], json!({"prompt": "0", "base": "the same", "ft": "another"}));
        assert_eq!(serde_json::to_value(Generations::of([])).unwrap(), json!({"generations": []}));
    }
}
