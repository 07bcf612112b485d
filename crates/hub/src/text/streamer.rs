//! Streaming decoding.

use super::token_decoder::{LeadingSpace, TokenDecoder};
use super::tokenizer::{SpecialText, Tokenizer};

/// Decodes tokens one by one.
///
/// Returns text as soon as it is certain: whole characters only. The
/// concatenation equals [`Tokenizer::decode`] of all tokens.
#[derive(Clone, Debug)]
pub struct Streamer {
    tokenizer: Tokenizer,
    special: SpecialText,
    start: Start,
    /// Bytes that may be the start of a character.
    pending: Vec<u8>,
    /// For decoders that need the whole text: all tokens, and the text so far.
    ids: Vec<u32>,
    emitted: String,
}

/// Position in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// A space here was added by the tokenizer.
    Before,
    After,
}

impl Streamer {
    pub(super) fn new(tokenizer: Tokenizer, special: SpecialText) -> Self {
        let start = match tokenizer.decoding() {
            TokenDecoder::SentencePiece(LeadingSpace::Strip) => Start::Before,
            _ => Start::After,
        };
        Self { tokenizer, special, start, pending: Vec::new(), ids: Vec::new(), emitted: String::new() }
    }

    /// Adds a token and returns the text that it completes.
    pub fn push(&mut self, id: u32) -> Option<String> {
        if self.tokenizer.decoding() == TokenDecoder::Other {
            self.ids.push(id);
            let text = self.tokenizer.decode_whole(&self.ids, self.special);
            return if text.ends_with(char::REPLACEMENT_CHARACTER) { None } else { self.emit_new(&text) };
        }
        self.tokenizer.push(id, self.special, &mut self.pending);
        if self.start == Start::Before && !self.pending.is_empty() {
            self.start = Start::After;
            if self.pending[0] == b' ' {
                self.pending.remove(0);
            }
        }
        let text = take_text(&mut self.pending);
        (!text.is_empty()).then_some(text)
    }

    /// Returns the rest of the text: an incomplete character.
    pub fn finish(mut self) -> Option<String> {
        if self.tokenizer.decoding() == TokenDecoder::Other {
            let text = self.tokenizer.decode_whole(&self.ids, self.special);
            return self.emit_new(&text);
        }
        (!self.pending.is_empty()).then(|| char::REPLACEMENT_CHARACTER.to_string())
    }

    /// Returns the new end of a longer text.
    fn emit_new(&mut self, text: &str) -> Option<String> {
        let new = text.strip_prefix(&self.emitted).filter(|new| !new.is_empty())?.to_owned();
        self.emitted.push_str(&new);
        Some(new)
    }
}

/// Takes all whole characters, with `�` for invalid bytes, and leaves an
/// incomplete one. In total this equals `String::from_utf8_lossy` of all bytes.
fn take_text(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut rest = &bytes[..];
    let kept = loop {
        match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                break 0;
            }
            Err(error) => {
                let (valid, after) = rest.split_at(error.valid_up_to());
                text.push_str(&String::from_utf8_lossy(valid));
                let Some(bad) = error.error_len() else { break after.len() };
                text.push(char::REPLACEMENT_CHARACTER);
                rest = &after[bad..];
            }
        }
    };
    bytes.drain(..bytes.len() - kept);
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_split_of_the_bytes_gives_the_same_text(
            pieces in prop::collection::vec(
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..4),
                    any::<char>().prop_map(|char| char.to_string().into_bytes()),
                    prop::sample::select(vec![vec![0xE2], vec![0x82], vec![0xF0, 0x9F], vec![0x98, 0x80]]),
                ],
                0..20,
            )
        ) {
            let whole = pieces.concat();
            let (mut pending, mut text) = (Vec::new(), String::new());
            for piece in pieces {
                pending.extend(piece);
                text += &take_text(&mut pending);
            }
            if !pending.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
            prop_assert_eq!(text, String::from_utf8_lossy(&whole));
        }
    }
}
