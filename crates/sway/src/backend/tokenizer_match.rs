//! Whether two models cut texts into the same tokens.
//!
//! What one model's tokens mean, another that was trained on other ones cannot
//! know: numbers of both beside each other would say nothing.

use weightloom_hub::text::{Special, Tokenizer};

use crate::packs::Packs;

/// The beginning of a text that they cut differently, if there is one. Plain
/// texts are tried: a tokenizer that was told in another form, as files of GGUF
/// do, may treat odd characters in another way and is the same for most purposes.
pub(super) fn first_difference(one: &Tokenizer, other: &Tokenizer) -> Option<String> {
    let packs = Packs::own();
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
    fn one_tokenizer_cuts_as_itself_and_another_does_not() {
        let bytes = tokenizer("tests/fixtures/tiny/model");
        assert_eq!(first_difference(&bytes, &bytes), None);
        let words = tokenizer("../hub/tests/sentence");
        assert!(first_difference(&bytes, &words).is_some_and(|text| !text.is_empty()));
    }
}
