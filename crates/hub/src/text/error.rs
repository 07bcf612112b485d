//! What is wrong with the text side of a model.

use weightloom_errors::{Hint, nearest};

use super::pre::Pre;

/// What is wrong with a tokenizer, or with what a file says about a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum TextError {
    /// A file cannot be read.
    #[error("`{file}` cannot be read: {message}")]
    Read { file: String, message: String },
    /// A file is not what its name says.
    #[error("`{file}` is not valid: {message}")]
    Invalid { file: String, message: String },
    /// A folder has no tokenizer.
    #[error("there is neither `tokenizer.json` nor `vocab.json` with `merges.txt`")]
    NoTokenizer,
    /// A folder has a tokenizer only in the format of SentencePiece.
    #[error("there is only `tokenizer.model`, which is in the format of SentencePiece")]
    OnlyModel,
    /// A value of the wrong kind.
    #[error("`{key}` should be {expected}, but is {found}")]
    Value { key: String, expected: &'static str, found: String },
    /// A key that must be there is not.
    #[error("`{key}` is missing")]
    Missing { key: String },
    /// A kind of tokenizer that we do not build.
    #[error("tokenizers of kind `{kind}` are not supported")]
    Kind { kind: String },
    /// A way to cut text that we do not know.
    #[error("`{pre}` is no known way to cut text into words")]
    Pre { pre: String },
    /// Lists that should be equally long.
    #[error("`{key}` has {found} entries, but there are {tokens} tokens")]
    Length { key: String, found: usize, tokens: usize },
    /// A merge that makes no token.
    #[error("merge {at}, `{merge}`, does not join two tokens into a third")]
    Merge { at: usize, merge: String },
    /// A number that no token has.
    #[error("`{key}` is {id}, but tokens end before {size}")]
    Id { key: String, id: u64, size: usize },
    /// A token with an absurd number.
    #[error("`{piece}` has number {id}, which is beyond {limit}")]
    HighId { piece: String, id: u32, limit: usize },
    /// A token of absurd length.
    #[error("token {id} has {bytes} bytes, more than {limit}")]
    LongPiece { id: usize, bytes: usize, limit: usize },
    /// Text that a vocabulary has no tokens for.
    #[error("the text cannot be encoded: {message}")]
    Encode { message: String },
    /// An architecture whose config is not known.
    #[error("the config of architecture `{architecture}` is not known")]
    Architecture { architecture: String },
    /// Counts that differ between layers.
    #[error("`{key}` differs between layers, which no config can say")]
    PerLayer { key: String },
    /// The factors of rotary frequencies are needed.
    #[error("`rope_freqs.weight` scales rotary frequencies, but its values were not given")]
    NoRopeFactors,
    /// The factors of rotary frequencies follow no known rule.
    #[error("`rope_freqs.weight` follows no known rule of scaling")]
    RopeFactors,
}

impl Hint for TextError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::NoTokenizer => Some("add the model's `tokenizer.json` to the folder".to_owned()),
            Self::OnlyModel => Some(
                "load it with transformers' AutoTokenizer and save it again, which writes `tokenizer.json`"
                    .to_owned(),
            ),
            Self::Kind { .. } => {
                Some("`gpt2` and `llama` are supported; use the model's `tokenizer.json` instead".to_owned())
            }
            Self::Pre { pre } => Some(match nearest(pre, Pre::names()) {
                Some(near) => format!("did you mean `{near}`"),
                None => "use the model's `tokenizer.json` instead".to_owned(),
            }),
            Self::Architecture { .. } => Some("add the model's `config.json`".to_owned()),
            _ => None,
        }
    }
}

impl TextError {
    /// A value that is not what it should be, shortened for the sentence.
    pub(super) fn value(key: impl Into<String>, expected: &'static str, found: &impl ToString) -> Self {
        const MOST: usize = 60;
        let mut found = found.to_string();
        if found.chars().count() > MOST {
            found = found.chars().take(MOST).chain(['…']).collect();
        }
        Self::Value { key: key.into(), expected, found }
    }

    pub(super) fn invalid(file: &str, error: &impl ToString) -> Self {
        Self::Invalid { file: file.to_owned(), message: error.to_string() }
    }
}
