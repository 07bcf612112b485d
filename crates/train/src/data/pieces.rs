//! Tokenizing long texts in pieces.
//!
//! A tokenizer takes up to 130 times the size of a text while it encodes it: words,
//! offsets and a string for each token. A long text is therefore encoded in pieces,
//! where that gives the same tokens: a text is cut only where the tokenizer splits it
//! anyway, and where the tokens on both sides do not depend on what is beyond the cut.
//! Both are checked by encoding what surrounds the cut, with it and without it. A text
//! without such a place is encoded as a whole.

use weightloom_hub::text::{Special, TextError, Tokenizer};

use super::parts::Part;

/// Texts up to this size are encoded as a whole.
const PIECE: usize = 256 << 10;

/// Bytes on each side of a cut that are encoded to check it.
const AROUND: usize = 4096;

/// Places that are tried for each cut.
const TRIED: usize = 16;

/// The largest text that is encoded as a whole.
pub(super) const MAX_WHOLE: usize = 16 << 20;

/// Why a text cannot be encoded.
#[derive(Debug)]
pub(super) enum PiecesError {
    Text(TextError),
    /// The text must be encoded as a whole, and is too large for that.
    TooLarge,
}

impl From<TextError> for PiecesError {
    fn from(error: TextError) -> Self {
        Self::Text(error)
    }
}

/// Encodes a text with the special tokens that the model expects.
pub(super) fn encode(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>, PiecesError> {
    Pieces { tokenizer, size: PIECE, around: AROUND }.encode(text)
}

/// Encodes a part of a text: special tokens come at the start and the end of the
/// whole text only.
pub(super) fn encode_part(tokenizer: &Tokenizer, text: &str, part: Part) -> Result<Vec<u32>, PiecesError> {
    if part == Part::Whole {
        return encode(tokenizer, text);
    }
    let pieces = Pieces { tokenizer, size: PIECE, around: AROUND };
    let [before, after] = pieces.added()?.unwrap_or_default();
    let mut tokens = if part.starts_document() { before } else { Vec::new() };
    tokens.extend(pieces.plain(text)?);
    if part.ends_document() {
        tokens.extend(after);
    }
    Ok(tokens)
}

struct Pieces<'a> {
    tokenizer: &'a Tokenizer,
    size: usize,
    around: usize,
}

impl Pieces<'_> {
    fn encode(&self, text: &str) -> Result<Vec<u32>, PiecesError> {
        if text.len() <= self.size {
            return Ok(self.tokenizer.encode(text, Special::Add)?);
        }
        let whole = || match text.len() <= MAX_WHOLE {
            true => Ok(self.tokenizer.encode(text, Special::Add)?),
            false => Err(PiecesError::TooLarge),
        };
        let Some([before, after]) = self.added()? else { return whole() };
        let mut tokens = before;
        let mut start = 0;
        while text.len() - start > self.size {
            let Some(end) = self.cut(text, start)? else { return whole() };
            tokens.extend(self.plain(&text[start..end])?);
            start = end;
        }
        tokens.extend(self.plain(&text[start..])?);
        tokens.extend(after);
        Ok(tokens)
    }

    fn plain(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.tokenizer.encode(text, Special::Plain)
    }

    /// The special tokens that are added before and after a text; `None` if they depend
    /// on the text.
    fn added(&self) -> Result<Option<[Vec<u32>; 2]>, TextError> {
        let mut found: Option<[Vec<u32>; 2]> = None;
        for text in ["a", "b c"] {
            let (all, plain) = (self.tokenizer.encode(text, Special::Add)?, self.plain(text)?);
            let at = all.windows(plain.len().max(1)).position(|window| window == plain);
            let Some(at) = at else { return Ok(None) };
            let added = [all[..at].to_vec(), all[at + plain.len()..].to_vec()];
            if found.replace(added.clone()).is_some_and(|before| before != added) {
                return Ok(None);
            }
        }
        Ok(found)
    }

    /// Where to end the piece that begins at `start`: as late as possible, before a
    /// line break, or else before a space.
    fn cut(&self, text: &str, start: usize) -> Result<Option<usize>, TextError> {
        let latest = start + self.size;
        let earliest = latest - self.size / 2;
        let bytes = text.as_bytes();
        for separator in [b'\n', b' '] {
            let candidates = (earliest..latest)
                .rev()
                .filter(|&at| bytes[at] == separator && bytes[at - 1].is_ascii_graphic());
            for at in candidates.take(TRIED) {
                if self.is_cut(text, start, at)? {
                    return Ok(Some(at));
                }
            }
        }
        Ok(None)
    }

    /// Whether the tokens around a place do not depend on what is beyond it.
    fn is_cut(&self, text: &str, start: usize, at: usize) -> Result<bool, TextError> {
        let first = text.floor_char_boundary(at.saturating_sub(self.around).max(start));
        let last = text.ceil_char_boundary((at + self.around).min(text.len()));
        let together = self.tokenizer.encode_with_offsets(&text[first..last], Special::Plain)?;
        let (left, right) = (self.plain(&text[first..at])?, self.plain(&text[at..last])?);
        let split = together.ids.len() == left.len() + right.len()
            && together.ids.starts_with(&left)
            && together.ids.ends_with(&right);
        // The same tokens must come from the same bytes.
        let cut = at - first;
        Ok(split
            && together.offsets[..left.len()].iter().all(|range| range.end <= cut)
            && together.offsets[left.len()..].iter().all(|range| range.start >= cut))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// A byte-level BPE tokenizer with a few merges, and a BOS token.
    fn tokenizer(pre_tokenizer: Value, normalizer: Value) -> Tokenizer {
        let mut vocabulary = serde_json::Map::new();
        for (id, byte) in (33_u8..=126).enumerate() {
            vocabulary.insert((byte as char).to_string(), json!(id));
        }
        let more = ["Ġ", "Ċ", "ab", "ĠĠ", "ĠĠĠĠ", "Ġa", "Ġab", "aĠ", "aĊ", "ĊĊ", "Ċa", "▁", "<s>"];
        for token in more {
            vocabulary.insert(token.to_owned(), json!(vocabulary.len()));
        }
        let bos = vocabulary["<s>"].clone();
        let merges = ["a b", "Ġ Ġ", "ĠĠ ĠĠ", "Ġ a", "Ġ ab", "a Ġ", "a Ċ", "Ċ Ċ", "Ċ a"];
        let json = json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": normalizer,
            "added_tokens": [{"id": bos, "content": "<s>", "single_word": false, "lstrip": false,
                              "rstrip": false, "normalized": false, "special": true}],
            "pre_tokenizer": pre_tokenizer,
            "post_processor": {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [bos], "tokens": ["<s>"]}}},
            "decoder": null,
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                      "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                      "vocab": vocabulary, "merges": merges},
        });
        Tokenizer::from_json(json.to_string().as_bytes()).unwrap()
    }

    fn byte_level(use_regex: Value) -> Value {
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
    }

    /// With a regular expression, without one, with a prefix for each text.
    fn tokenizers() -> [Tokenizer; 3] {
        [
            tokenizer(byte_level(json!(true)), Value::Null),
            tokenizer(byte_level(json!(false)), Value::Null),
            tokenizer(byte_level(json!(true)), json!({"type": "Prepend", "prepend": "ab"})),
        ]
    }

    #[test]
    fn long_lines_and_many_lines_are_cut() {
        let text = "ab aab\n".repeat(2000) + &"b ab".repeat(2000) + &" ".repeat(500) + "\n\n\na";
        let [by_words, ..] = tokenizers();
        let whole = by_words.encode(&text, Special::Add).unwrap();
        let pieces = Pieces { tokenizer: &by_words, size: 1024, around: 64 };
        assert!(pieces.cut(&text, 0).unwrap().is_some());
        assert_eq!(pieces.encode(&text).unwrap(), whole);
        assert_eq!(encode(&by_words, &text).unwrap(), whole);
    }

    /// Each piece would get the prefix.
    #[test]
    fn a_tokenizer_that_changes_the_beginning_of_texts_is_given_the_whole() {
        let [.., prefixed] = tokenizers();
        let text = "ab aab\n".repeat(2000);
        let pieces = Pieces { tokenizer: &prefixed, size: 1024, around: 64 };
        assert_eq!(pieces.cut(&text, 0).unwrap(), None);
        assert_eq!(pieces.encode(&text).unwrap(), prefixed.encode(&text, Special::Add).unwrap());
    }

    #[test]
    fn a_large_text_without_a_place_to_cut_is_refused() {
        let [by_words, ..] = tokenizers();
        let text = "a".repeat(MAX_WHOLE + 1);
        assert!(matches!(encode(&by_words, &text), Err(PiecesError::TooLarge)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn pieces_have_the_tokens_of_the_whole(text in "[ab.<s> \n]{0,400}") {
            for tokenizer in tokenizers() {
                let whole = tokenizer.encode(&text, Special::Add).unwrap();
                let pieces = Pieces { tokenizer: &tokenizer, size: 48, around: 24 };
                prop_assert_eq!(pieces.encode(&text).unwrap(), whole);
            }
        }
    }
}
