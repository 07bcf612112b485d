//! Errors of losses.

use weightloom_errors::Hint;
use weightloom_nn::NnError;

use crate::extensions::UnknownName;

/// Why a loss cannot be built or computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum LossError {
    #[error("`train.loss.kind`: {0}")]
    Unknown(#[from] UnknownName),
    #[error("invalid `train.loss.options` of `{loss}`: {problem}")]
    Options { loss: String, problem: String },
    #[error("cannot use the loss `{loss}`: {problem}")]
    Unusable { loss: String, problem: String },
    #[error("cannot use the loss `{loss}` with {stages} pipeline stages: it needs {needs} on every rank")]
    Stages { loss: String, needs: &'static str, stages: usize },
    #[error(
        "cannot use `{teacher}` as a teacher: its vocabulary has {found} tokens, that of the model {expected}"
    )]
    TeacherVocabulary { teacher: String, found: usize, expected: usize },
    #[error("cannot resume: the log-probabilities of the initial model are not in `{file}`")]
    NoReference { file: String },
    #[error("cannot use `{file}`: it has log-probabilities of other data or settings")]
    OtherReference { file: String },
    #[error(transparent)]
    Nn(#[from] NnError),
}

impl Hint for LossError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Unknown(error) => error.hint(),
            Self::Nn(error) => error.hint(),
            Self::Stages { .. } => Some(
                "set `train.accelerator.pp` and `vpp` to 1; shard with `dp_shard` or `tp` instead".to_owned(),
            ),
            Self::TeacherVocabulary { .. } => {
                Some("use a teacher with the same tokenizer as the model".to_owned())
            }
            Self::NoReference { .. } | Self::OtherReference { .. } => {
                let advice = "restore the file from the run folder, undo changes of `data` and \
                              `train.eval.max_rows`, or start a new run";
                Some(advice.to_owned())
            }
            Self::Options { .. } | Self::Unusable { .. } => None,
        }
    }
}
