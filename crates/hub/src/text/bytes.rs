//! How pieces of a vocabulary stand for bytes.
//!
//! Two alphabets are common. Byte-level vocabularies write each byte as one
//! printable character. SentencePiece vocabularies write text as it is, with
//! `▁` for a space, and have a piece such as `<0x0A>` for each byte. Both can
//! be decoded piece by piece; for other decoders the whole text is needed.

use std::sync::LazyLock;

use serde_json::{Value, json};

/// What stands for a space in SentencePiece vocabularies.
pub(super) const LOW_LINE: char = '▁';

/// How pieces become text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decoding {
    /// One character for each byte.
    ByteLevel,
    /// Text and pieces for single bytes.
    SentencePiece(Lead),
    /// By rules of the tokenizer's own, which may look at all pieces.
    Other,
}

/// What becomes of a space that the text begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lead {
    /// It stays.
    Keep,
    /// It was added by the tokenizer, and goes.
    Strip,
}

impl Decoding {
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
        let start = sentence_piece_steps();
        match steps.strip_prefix(&start[..]) {
            Some([]) => Self::SentencePiece(Lead::Keep),
            Some([strip]) if *strip == strip_step() => Self::SentencePiece(Lead::Strip),
            _ => Self::Other,
        }
    }

    /// The decoder for a `tokenizer.json`.
    pub(super) fn to_json(self) -> Value {
        match self {
            Self::ByteLevel => json!({
                "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true
            }),
            Self::SentencePiece(lead) => {
                let mut steps = sentence_piece_steps().to_vec();
                if lead == Lead::Strip {
                    steps.push(strip_step());
                }
                json!({"type": "Sequence", "decoders": steps})
            }
            Self::Other => Value::Null,
        }
    }

    /// Appends what a piece of the vocabulary stands for.
    pub(super) fn push(self, piece: &str, out: &mut Vec<u8>) {
        match self {
            Self::ByteLevel => {
                let before = out.len();
                for char in piece.chars() {
                    match byte_of(char) {
                        Some(byte) => out.push(byte),
                        None => {
                            // Not in the alphabet, so it stands for itself.
                            out.truncate(before);
                            out.extend(piece.as_bytes());
                            return;
                        }
                    }
                }
            }
            Self::SentencePiece(_) => match byte_piece(piece) {
                Some(byte) => out.push(byte),
                None => push_spaced(piece, out),
            },
            Self::Other => out.extend(piece.as_bytes()),
        }
    }

    /// Appends what a token that was added to the vocabulary stands for.
    pub(super) fn push_added(self, text: &str, out: &mut Vec<u8>) {
        match self {
            Self::SentencePiece(_) => push_spaced(text, out),
            Self::ByteLevel | Self::Other => out.extend(text.as_bytes()),
        }
    }
}

fn sentence_piece_steps() -> [Value; 3] {
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
    for (at, part) in text.split(LOW_LINE).enumerate() {
        if at > 0 {
            out.push(b' ');
        }
        out.extend(part.as_bytes());
    }
}

/// The byte of a piece such as `<0x0A>`.
fn byte_piece(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    let all = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    all.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// Bytes by the characters that stand for them. Printable characters of
/// Latin-1 stand for themselves; the other bytes are given, in order, the
/// characters from U+0100.
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

    fn bytes(decoding: Decoding, piece: &str) -> Vec<u8> {
        let mut out = Vec::new();
        decoding.push(piece, &mut out);
        out
    }

    #[test]
    fn every_byte_has_one_character() {
        let mut found: Vec<u8> = ('\0'..='\u{200}').filter_map(byte_of).collect();
        found.sort_unstable();
        assert_eq!(found, (0..=255).collect::<Vec<u8>>());
        assert_eq!(bytes(Decoding::ByteLevel, "ĠCaf\u{c3}\u{a9}Ċ"), " Café\n".as_bytes());
        assert_eq!(bytes(Decoding::ByteLevel, "Ġ→"), "Ġ→".as_bytes());
    }

    #[test]
    fn byte_pieces_are_told_from_text() {
        let decoding = Decoding::SentencePiece(Lead::Strip);
        assert_eq!(bytes(decoding, "<0x0A>"), b"\n");
        assert_eq!(bytes(decoding, "▁a▁"), b" a ");
        for text in ["<0x0>", "<0xGG>", "<0x+1>", "<0x0A", "<0x00A>"] {
            assert_eq!(bytes(decoding, text), text.as_bytes());
        }
    }

    #[test]
    fn decoders_are_recognised_by_what_they_do() {
        for decoding in
            [Decoding::ByteLevel, Decoding::SentencePiece(Lead::Keep), Decoding::SentencePiece(Lead::Strip)]
        {
            assert_eq!(Decoding::of(&decoding.to_json()), decoding);
        }
        for other in [json!(null), json!({"type": "WordPiece"}), json!({"type": "Sequence", "decoders": []})]
        {
            assert_eq!(Decoding::of(&other), Decoding::Other);
        }
    }
}
