//! Small changes to a text that hardly change its meaning.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::packs::Packs;

/// A small change to a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Perturbation {
    /// Swap the first two characters.
    Typo,
    /// Flip the case of the first letter.
    CaseFlip,
    /// Drop punctuation.
    DropPunct,
    /// Replace the first word that has a synonym.
    SynonymSwap,
    /// Swap two clauses.
    ClauseReverse,
    /// Prepend a lead-in.
    PrefixInject,
    /// Switch the beginning between upper and lower case.
    RegisterShift,
}

/// Separators of clauses; the first match wins.
const SEPARATORS: [&str; 4] = [", ", " and ", " but ", " or "];
/// How many characters change case.
const SHIFTED_CHARS: usize = 30;

impl Perturbation {
    /// Every perturbation.
    pub const ALL: [Self; 7] = [
        Self::Typo,
        Self::CaseFlip,
        Self::DropPunct,
        Self::SynonymSwap,
        Self::ClauseReverse,
        Self::PrefixInject,
        Self::RegisterShift,
    ];

    /// Applies the perturbation. Returns the text unchanged if it does not apply.
    pub fn apply(self, text: &str, packs: &Packs) -> String {
        match self {
            Self::Typo => typo(text),
            Self::CaseFlip => case_flip(text),
            Self::DropPunct => text.chars().filter(|c| !".,;:!?-—".contains(*c)).collect(),
            Self::SynonymSwap => synonym_swap(text, &packs.synonyms),
            Self::ClauseReverse => clause_reverse(text),
            Self::PrefixInject => prefix_inject(text, &packs.prefix_inject_lead_in),
            Self::RegisterShift => register_shift(text),
        }
    }
}

fn typo(text: &str) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    if characters.len() > 1 {
        characters.swap(0, 1);
    }
    characters.into_iter().collect()
}

fn case_flip(text: &str) -> String {
    let Some((offset, letter)) = text.char_indices().find(|(_, c)| c.is_alphabetic()) else {
        return text.to_owned();
    };
    let flipped: String =
        if letter.is_uppercase() { letter.to_lowercase().collect() } else { letter.to_uppercase().collect() };
    format!("{}{flipped}{}", &text[..offset], &text[offset + letter.len_utf8()..])
}

fn synonym_swap(text: &str, synonyms: &BTreeMap<String, String>) -> String {
    let mut from = 0;
    while let Some(offset) = text[from..].find(|c: char| c.is_ascii_alphabetic()) {
        let start = from + offset;
        let end = text[start..]
            .find(|c: char| !c.is_ascii_alphabetic())
            .map_or(text.len(), |length| start + length);
        let word = &text[start..end];
        if let Some(synonym) = synonyms.get(&word.to_ascii_lowercase()) {
            let capital = word.starts_with(|c: char| c.is_ascii_uppercase());
            let synonym = if capital { capitalized(synonym) } else { synonym.clone() };
            return format!("{}{synonym}{}", &text[..start], &text[end..]);
        }
        from = end;
    }
    text.to_owned()
}

fn capitalized(word: &str) -> String {
    let mut rest = word.chars();
    rest.next().map_or_else(String::new, |first| first.to_uppercase().chain(rest).collect())
}

fn clause_reverse(text: &str) -> String {
    for separator in SEPARATORS {
        if let Some(offset) = text.find(separator).filter(|offset| *offset > 0) {
            let right = text[offset + separator.len()..].trim_end_matches(['.', '!', '?']);
            return format!("{right}{separator}{}", &text[..offset]);
        }
    }
    text.to_owned()
}

fn prefix_inject(text: &str, lead_in: &str) -> String {
    let mut rest = text.chars();
    let first: String = rest.next().map_or_else(String::new, |first| first.to_lowercase().collect());
    format!("{lead_in}{first}{}", rest.as_str())
}

fn register_shift(text: &str) -> String {
    let end = text.char_indices().nth(SHIFTED_CHARS).map_or(text.len(), |(offset, _)| offset);
    let (head, tail) = text.split_at(end);
    let head = if head.chars().any(char::is_uppercase) { head.to_lowercase() } else { head.to_uppercase() };
    head + tail
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_perturbation_is_small() {
        assert_eq!(typo("Hello"), "eHllo");
        assert_eq!(typo("H"), "H");
        assert_eq!(case_flip("1 Hello"), "1 hello");
        assert_eq!(case_flip("hello"), "Hello");
        assert_eq!(case_flip("12"), "12");
        let synonyms = BTreeMap::from([("large".to_owned(), "big".to_owned())]);
        assert_eq!(synonym_swap("A Large, large dog", &synonyms), "A Big, large dog");
        assert_eq!(synonym_swap("nothing", &synonyms), "nothing");
        assert_eq!(clause_reverse("One and two, then three."), "then three, One and two");
        assert_eq!(clause_reverse("this or that!"), "that or this");
        assert_eq!(clause_reverse(", no"), ", no");
        assert_eq!(prefix_inject("The sea", "Well, "), "Well, the sea");
        assert_eq!(
            register_shift("All of this is Written Small, BUT NOT THIS"),
            "all of this is written small, BUT NOT THIS"
        );
        assert_eq!(register_shift("abc"), "ABC");
    }

    proptest! {
        #[test]
        fn any_text_can_be_perturbed(text in "\\PC{0,80}") {
            let packs = crate::probe::tests::packs();
            for change in Perturbation::ALL {
                let _ = change.apply(&text, &packs);
            }
        }
    }
}
