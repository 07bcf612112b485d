//! Errors of metric sinks.

use std::path::PathBuf;

use weightloom_errors::{FileError, Hint};

use crate::extensions::UnknownName;

/// A metric sink that cannot be opened or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum MetricsError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("cannot append to `{}`: line {line} is not a metrics record", path.display())]
    NotMetrics { path: PathBuf, line: u64 },
    #[error("`train.logging.report_to`: {0}")]
    Unknown(#[from] UnknownName),
    /// A sink that this program, or this machine, does not have.
    #[error("cannot report to `{sink}`: {reason}")]
    Unavailable { sink: String, reason: String, hint: String },
    /// A sink that is not built in.
    #[error("the metric sink `{sink}` failed: {reason}")]
    Sink { sink: String, reason: String },
}

impl MetricsError {
    /// The failure of a sink that is not built in.
    pub fn failed(sink: &str, reason: impl Into<String>) -> Self {
        Self::Sink { sink: sink.to_owned(), reason: reason.into() }
    }
}

impl Hint for MetricsError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::File(error) => error.hint(),
            Self::Unknown(error) => error.hint(),
            Self::Unavailable { hint, .. } => Some(hint.clone()),
            Self::Sink { .. } => None,
            Self::NotMetrics { path, .. } => {
                Some(format!("move `{}`, or change `train.checkpoint.output_dir`", path.display()))
            }
        }
    }
}
