//! Errors of metric sinks.

use std::path::PathBuf;

use weightloom_errors::{FileError, Hint};

/// A metric sink that cannot be opened or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum MetricsError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("cannot append to `{}`: line {line} is not a metrics record", path.display())]
    NotMetrics { path: PathBuf, line: u64 },
}

impl Hint for MetricsError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::File(error) => error.hint(),
            Self::NotMetrics { path, .. } => {
                Some(format!("move `{}`, or change `train.checkpoint.output_dir`", path.display()))
            }
        }
    }
}
