//! How text is cut into words before a byte-level vocabulary is applied.
//!
//! GGUF files name the way, by the model that had it first. The expressions
//! are those that the vocabularies were learned with.

use serde_json::{Value, json};

/// A way to cut text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pre {
    Gpt2,
    /// As GPT-2, after each digit was set apart.
    Digits,
    Llama3,
    Qwen2,
    Tekken,
    Gpt4o,
}

/// What GGUF files call them. Files without a name were written before there
/// were names; most of their vocabularies are of GPT-2's kind.
const NAMES: [(&str, Pre); 30] = [
    ("default", Pre::Gpt2),
    ("gpt-2", Pre::Gpt2),
    ("gpt2", Pre::Gpt2),
    ("phi-2", Pre::Gpt2),
    ("mpt", Pre::Gpt2),
    ("olmo", Pre::Gpt2),
    ("smollm", Pre::Digits),
    ("starcoder", Pre::Digits),
    ("refact", Pre::Digits),
    ("command-r", Pre::Digits),
    ("codeshell", Pre::Digits),
    ("exaone", Pre::Digits),
    ("llama-bpe", Pre::Llama3),
    ("llama3", Pre::Llama3),
    ("llama-v3", Pre::Llama3),
    ("falcon3", Pre::Llama3),
    ("falcon-h1", Pre::Llama3),
    ("pixtral", Pre::Llama3),
    ("lfm2", Pre::Llama3),
    ("smaug-bpe", Pre::Llama3),
    ("dbrx", Pre::Llama3),
    ("qwen2", Pre::Qwen2),
    ("deepseek-r1-qwen", Pre::Qwen2),
    ("megrez", Pre::Qwen2),
    ("stablelm2", Pre::Qwen2),
    ("hunyuan", Pre::Qwen2),
    ("tekken", Pre::Tekken),
    ("mistral", Pre::Tekken),
    ("gpt-4o", Pre::Gpt4o),
    ("llama4", Pre::Gpt4o),
];

/// Apostrophes with what follows them, words, up to three digits, and so on.
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// As Llama 3, but digits one by one.
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Words end where capitals begin.
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// As Tekken, with apostrophes and up to three digits.
const GPT4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

impl Pre {
    /// The way that a GGUF file names.
    pub(super) fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|&(_, pre)| pre)
    }

    /// All names.
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|&(name, _)| name)
    }

    /// The pre-tokenizer for a `tokenizer.json`.
    pub(super) fn to_json(self) -> Value {
        let split = |pattern: &str| {
            json!({"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
                {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
            ]})
        };
        let gpt2 = json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true
        });
        match self {
            Self::Gpt2 => gpt2,
            Self::Digits => json!({
                "type": "Sequence",
                "pretokenizers": [{"type": "Digits", "individual_digits": true}, gpt2],
            }),
            Self::Llama3 => split(LLAMA3),
            Self::Qwen2 => split(QWEN2),
            Self::Tekken => split(TEKKEN),
            Self::Gpt4o => split(GPT4O),
        }
    }

    /// What happens to text before that.
    pub(super) fn normalizer(self) -> Value {
        match self {
            Self::Qwen2 => json!({"type": "NFC"}),
            _ => Value::Null,
        }
    }

    /// Whether a word that is a piece is taken as it is, even where merges
    /// would not lead to it.
    pub(super) fn takes_whole_words(self) -> bool {
        matches!(self, Self::Llama3 | Self::Tekken | Self::Gpt4o)
    }
}
