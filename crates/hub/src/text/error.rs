//! Errors of tokenizers and of GGUF metadata.

use weightloom_errors::{Hint, did_you_mean, nearest};

use super::pre_tokenizer::PreTokenizer;

/// An invalid or unsupported tokenizer, or invalid metadata.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum TextError {
    #[error("cannot read `{file}`: {message}")]
    Read { file: String, message: String },
    #[error("invalid `{file}`: {message}")]
    Invalid { file: String, message: String },
    #[error("no tokenizer: neither `tokenizer.json` nor `vocab.json` with `merges.txt` exists")]
    NoTokenizer,
    #[error("unsupported tokenizer: only `tokenizer.model` exists, in the format of SentencePiece")]
    OnlyModel,
    #[error("invalid `{key}`: expected {expected}, found {found}")]
    Value { key: String, expected: &'static str, found: String },
    #[error("`{key}` is missing")]
    Missing { key: String },
    #[error("unsupported tokenizer kind `{kind}`")]
    Kind { kind: String },
    #[error("unknown pre-tokenizer `{name}`")]
    PreTokenizer { name: String },
    #[error("`{key}` has {found} entries for {tokens} tokens")]
    Length { key: String, found: usize, tokens: usize },
    #[error("invalid merge {index}: `{merge}` does not join two tokens into a third")]
    Merge { index: usize, merge: String },
    #[error("`{key}` is {id}, but the vocabulary has {size} tokens")]
    Id { key: String, id: u64, size: usize },
    #[error("the id {id} of token `{token}` exceeds the limit of {limit}")]
    HighId { token: String, id: u32, limit: usize },
    #[error("token {id} has {bytes} bytes, more than the limit of {limit}")]
    LongToken { id: usize, bytes: usize, limit: usize },
    #[error("cannot encode the text: {message}")]
    Encode { message: String },
    #[error("cannot encode the text: it has {bytes} bytes, more than the limit of {limit}")]
    LongText { bytes: usize, limit: usize },
    #[error("cannot encode the text: the pattern `{pattern}` fails: {message}")]
    Pattern { pattern: String, message: String },
    #[error("cannot encode the text: the tokenizer panicked")]
    Panicked,
    #[error("unsupported tokenizer: its {part} makes texts too much longer")]
    Growth { part: &'static str },
    #[error("unsupported tokenizer: its {part} has {steps} steps, more than the limit of {limit}")]
    ManySteps { part: &'static str, steps: usize, limit: usize },
    #[error("unknown architecture `{architecture}` in GGUF metadata")]
    Architecture { architecture: String },
    #[error("unsupported `{key}`: it differs between layers")]
    PerLayer { key: String },
    #[error("`rope_freqs.weight` scales rotary frequencies, but its values are missing")]
    NoRopeFactors,
    #[error("`rope_freqs.weight` follows no known RoPE scaling")]
    RopeFactors,
}

impl Hint for TextError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NoTokenizer => "add the model's `tokenizer.json` to the folder",
            Self::OnlyModel => {
                "load it with transformers' AutoTokenizer and save it again, which writes `tokenizer.json`"
            }
            Self::Kind { .. } => {
                "use the model's `tokenizer.json`; of GGUF tokenizers, `gpt2` and `llama` are supported"
            }
            Self::PreTokenizer { name } => {
                let near = did_you_mean(nearest(name, PreTokenizer::names()));
                return near.or_else(|| Some("use the model's `tokenizer.json` instead".to_owned()));
            }
            Self::LongText { .. } => "split the text",
            Self::Pattern { .. } => "shorten long runs of spaces or of one character in the text",
            Self::Panicked | Self::Growth { .. } | Self::ManySteps { .. } => {
                "use the `tokenizer.json` that the model was published with"
            }
            Self::Architecture { .. } => "add the model's `config.json`",
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

impl TextError {
    /// A value of the wrong type, shortened for the message.
    pub(super) fn value(key: impl Into<String>, expected: &'static str, found: &impl ToString) -> Self {
        const MAX_CHARS: usize = 60;
        let mut found = found.to_string();
        if found.chars().count() > MAX_CHARS {
            found = found.chars().take(MAX_CHARS).chain(['…']).collect();
        }
        Self::Value { key: key.into(), expected, found }
    }

    pub(super) fn invalid(file: &str, error: &impl ToString) -> Self {
        Self::Invalid { file: file.to_owned(), message: error.to_string() }
    }
}
