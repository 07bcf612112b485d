//! Decoding of single tokens into bytes.
//!
//! Two alphabets are common. Byte-level vocabularies write each byte as one
//! printable character. SentencePiece vocabularies write plain text with `▁` for
//! a space, and have a token such as `<0x0A>` for each byte. Both can be decoded
//! token by token; other decoders need the whole text.

use std::sync::LazyLock;

use serde_json::{Value, json};

/// Represents a space in SentencePiece vocabularies.
pub(super) const META_SPACE: char = '▁';

/// Decoder of a tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenDecoder {
    /// One character for each byte.
    ByteLevel,
    /// Text, and tokens for single bytes.
    SentencePiece(LeadingSpace),
    /// Any other decoder, which may look at all tokens.
    Other,
}

/// Treatment of a leading space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeadingSpace {
    /// Part of the text.
    Keep,
    /// Added by the tokenizer.
    Strip,
}

impl TokenDecoder {
    /// Recognises the decoder of a `tokenizer.json`.
    pub(super) fn of(decoder: &Value) -> Self {
        if decoder["type"] == "ByteLevel" {
            return Self::ByteLevel;
        }
        let Some(steps) = decoder["decoders"].as_array().filter(|_| decoder["type"] == "Sequence") else {
            return Self::Other;
        };
        if let [only] = &steps[..]
            && only["type"] == "ByteLevel"
        {
            return Self::ByteLevel;
        }
        let start = sentence_token_steps();
        match steps.strip_prefix(&start[..]) {
            Some([]) => Self::SentencePiece(LeadingSpace::Keep),
            Some([strip]) if *strip == strip_step() => Self::SentencePiece(LeadingSpace::Strip),
            _ => Self::Other,
        }
    }

    /// The `decoder` of a `tokenizer.json`.
    pub(super) fn to_json(self) -> Value {
        match self {
            Self::ByteLevel => json!({
                "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true
            }),
            Self::SentencePiece(lead) => {
                let mut steps = sentence_token_steps().to_vec();
                if lead == LeadingSpace::Strip {
                    steps.push(strip_step());
                }
                json!({"type": "Sequence", "decoders": steps})
            }
            Self::Other => Value::Null,
        }
    }

    /// Appends the bytes of a token of the vocabulary.
    pub(super) fn push(self, token: &str, out: &mut Vec<u8>) {
        match self {
            Self::ByteLevel => {
                let before = out.len();
                for char in token.chars() {
                    match byte_of(char) {
                        Some(byte) => out.push(byte),
                        None => {
                            // Not in the alphabet: literal text.
                            out.truncate(before);
                            out.extend(token.as_bytes());
                            return;
                        }
                    }
                }
            }
            Self::SentencePiece(_) => match byte_token(token) {
                Some(byte) => out.push(byte),
                None => push_spaced(token, out),
            },
            Self::Other => out.extend(token.as_bytes()),
        }
    }

    /// Appends the bytes of an added token.
    pub(super) fn push_added(self, text: &str, out: &mut Vec<u8>) {
        match self {
            Self::SentencePiece(_) => push_spaced(text, out),
            Self::ByteLevel | Self::Other => out.extend(text.as_bytes()),
        }
    }
}

fn sentence_token_steps() -> [Value; 3] {
    [
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ]
}

fn strip_step() -> Value {
    json!({"type": "Strip", "content": " ", "start": 1, "stop": 0})
}

fn push_spaced(text: &str, out: &mut Vec<u8>) {
    for (index, part) in text.split(META_SPACE).enumerate() {
        if index > 0 {
            out.push(b' ');
        }
        out.extend(part.as_bytes());
    }
}

/// The byte of a token such as `<0x0A>`.
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let all = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    all.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// Bytes by their characters. Printable characters of Latin-1 represent
/// themselves; the other bytes, in order, are the characters from U+0100.
static BYTES: LazyLock<[Option<u8>; 0x144]> = LazyLock::new(|| {
    let mut bytes = [None; 0x144];
    let mut next = 0x100;
    for byte in 0..=u8::MAX {
        if matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF) {
            bytes[usize::from(byte)] = Some(byte);
        } else {
            bytes[next] = Some(byte);
            next += 1;
        }
    }
    bytes
});

fn byte_of(char: char) -> Option<u8> {
    BYTES.get(char as usize).copied().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(decoding: TokenDecoder, token: &str) -> Vec<u8> {
        let mut out = Vec::new();
        decoding.push(token, &mut out);
        out
    }

    #[test]
    fn every_byte_has_one_character() {
        let mut found: Vec<u8> = ('\0'..='\u{200}').filter_map(byte_of).collect();
        found.sort_unstable();
        assert_eq!(found, (0..=255).collect::<Vec<u8>>());
        assert_eq!(bytes(TokenDecoder::ByteLevel, "ĠCaf\u{c3}\u{a9}Ċ"), " Café\n".as_bytes());
        assert_eq!(bytes(TokenDecoder::ByteLevel, "Ġ→"), "Ġ→".as_bytes());
    }

    #[test]
    fn byte_tokens_differ_from_text() {
        let decoding = TokenDecoder::SentencePiece(LeadingSpace::Strip);
        assert_eq!(bytes(decoding, "<0x0A>"), b"\n");
        assert_eq!(bytes(decoding, "▁a▁"), b" a ");
        for text in ["<0x0>", "<0xGG>", "<0x+1>", "<0x0A", "<0x00A>"] {
            assert_eq!(bytes(decoding, text), text.as_bytes());
        }
    }

    #[test]
    fn decoders_are_recognised_by_their_steps() {
        for decoding in [
            TokenDecoder::ByteLevel,
            TokenDecoder::SentencePiece(LeadingSpace::Keep),
            TokenDecoder::SentencePiece(LeadingSpace::Strip),
        ] {
            assert_eq!(TokenDecoder::of(&decoding.to_json()), decoding);
        }
        for other in [json!(null), json!({"type": "WordPiece"}), json!({"type": "Sequence", "decoders": []})]
        {
            assert_eq!(TokenDecoder::of(&other), TokenDecoder::Other);
        }
    }
}
