//! Whether two models tokenize texts alike.
//!
//! Token probabilities of models with different tokenizers cannot be compared.

use weightloom_hub::text::{Special, Tokenizer};

use crate::packs::Packs;

/// The start of a text that the tokenizers split differently, if one is found.
///
/// Tries plain texts only: a tokenizer converted to another format, as in GGUF
/// files, may treat rare characters differently and still count as the same.
pub(super) fn first_difference(one: &Tokenizer, other: &Tokenizer) -> Option<String> {
    let packs = Packs::builtin();
    let facts = packs.calibration_pack.iter().map(|(prompt, _)| prompt.as_str());
    let prompts = packs.check_quick_prompts.iter().map(String::as_str);
    let corpus = packs.external_corpus_public_domain_en.lines().take(40);
    let encoded = |tokenizer: &Tokenizer, text: &str| tokenizer.encode(text, Special::Add).ok();
    let differ = |text: &&str| encoded(one, text) != encoded(other, text);
    let found = prompts.chain(facts).chain(corpus).find(differ)?;
    Some(found.chars().take(40).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use std::path::Path;

    use super::*;

    fn tokenizer(folder: &str) -> Tokenizer {
        Tokenizer::from_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap()
    }

    #[test]
    fn a_tokenizer_matches_itself_and_not_another() {
        let bytes = tokenizer("tests/fixtures/tiny/model");
        assert_eq!(first_difference(&bytes, &bytes), None);
        let words = tokenizer("../hub/tests/fixtures/sentence");
        assert!(first_difference(&bytes, &words).is_some_and(|text| !text.is_empty()));
    }
}
