//! Pre-tokenizers of byte-level vocabularies.
//!
//! GGUF files name them after the first model that used them. The expressions
//! are those of the original training.

use serde_json::{Value, json};

/// A pre-tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PreTokenizer {
    Gpt2,
    /// GPT-2 with single digits.
    Digits,
    Llama3,
    Qwen2,
    Tekken,
    Gpt4o,
}

/// Names in GGUF files. Files without a name are older than the names; most
/// have a vocabulary like GPT-2.
const NAMES: [(&str, PreTokenizer); 30] = [
    ("default", PreTokenizer::Gpt2),
    ("gpt-2", PreTokenizer::Gpt2),
    ("gpt2", PreTokenizer::Gpt2),
    ("phi-2", PreTokenizer::Gpt2),
    ("mpt", PreTokenizer::Gpt2),
    ("olmo", PreTokenizer::Gpt2),
    ("smollm", PreTokenizer::Digits),
    ("starcoder", PreTokenizer::Digits),
    ("refact", PreTokenizer::Digits),
    ("command-r", PreTokenizer::Digits),
    ("codeshell", PreTokenizer::Digits),
    ("exaone", PreTokenizer::Digits),
    ("llama-bpe", PreTokenizer::Llama3),
    ("llama3", PreTokenizer::Llama3),
    ("llama-v3", PreTokenizer::Llama3),
    ("falcon3", PreTokenizer::Llama3),
    ("falcon-h1", PreTokenizer::Llama3),
    ("pixtral", PreTokenizer::Llama3),
    ("lfm2", PreTokenizer::Llama3),
    ("smaug-bpe", PreTokenizer::Llama3),
    ("dbrx", PreTokenizer::Llama3),
    ("qwen2", PreTokenizer::Qwen2),
    ("deepseek-r1-qwen", PreTokenizer::Qwen2),
    ("megrez", PreTokenizer::Qwen2),
    ("stablelm2", PreTokenizer::Qwen2),
    ("hunyuan", PreTokenizer::Qwen2),
    ("tekken", PreTokenizer::Tekken),
    ("mistral", PreTokenizer::Tekken),
    ("gpt-4o", PreTokenizer::Gpt4o),
    ("llama4", PreTokenizer::Gpt4o),
];

/// Contractions, words, up to three digits, and so on.
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Llama 3 with single digits.
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Words end before capitals.
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Tekken with contractions and up to three digits.
const GPT4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

impl PreTokenizer {
    /// Looks up a name in a GGUF file.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|&(_, found)| found)
    }

    /// All names.
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|&(name, _)| name)
    }

    /// The `pre_tokenizer` of a `tokenizer.json`.
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

    /// The `normalizer` of a `tokenizer.json`.
    pub(super) fn normalizer(self) -> Value {
        match self {
            Self::Qwen2 => json!({"type": "NFC"}),
            _ => Value::Null,
        }
    }

    /// Whether a word in the vocabulary is one token even if no merges lead to it.
    pub(super) fn ignores_merges(self) -> bool {
        matches!(self, Self::Llama3 | Self::Tekken | Self::Gpt4o)
    }
}
