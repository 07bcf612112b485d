//! What both models wrote, kept for those who read a report.

use serde_json::{Value, json};

/// How many pairs of texts the evidence shows.
const SHOWN: usize = 6;

/// One prompt, and what both models wrote behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair<'a> {
    pub prompt: String,
    pub base: &'a str,
    pub tuned: &'a str,
}

/// The first pairs, as evidence. Pairs that differ come first: they are what a
/// reader looks for.
pub(crate) fn generations<'a>(pairs: impl IntoIterator<Item = Pair<'a>>) -> Value {
    let (changed, same): (Vec<_>, Vec<_>) = pairs.into_iter().partition(|pair| pair.base != pair.tuned);
    let shown = changed.into_iter().chain(same).take(SHOWN);
    shown.map(|pair| json!({"prompt": pair.prompt, "base": pair.base, "ft": pair.tuned})).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_differ_come_first_and_not_all_are_kept() {
        let pair = |prompt: usize| Pair {
            prompt: prompt.to_string(),
            base: "the same",
            tuned: if prompt.is_multiple_of(3) { "another" } else { "the same" },
        };
        let kept = generations((0..12).map(pair));
        let prompts: Vec<&str> = kept
            .as_array()
            .map(|kept| kept.iter().filter_map(|pair| pair["prompt"].as_str()).collect())
            .unwrap_or_default();
        assert_eq!(prompts, ["0", "3", "6", "9", "1", "2"]);
        assert_eq!(kept[0], json!({"prompt": "0", "base": "the same", "ft": "another"}));
        assert_eq!(generations([]), json!([]));
    }
}
