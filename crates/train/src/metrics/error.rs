//! Why metrics are not kept.

use std::io;
use std::path::{Path, PathBuf};

use weightloom_errors::{FileError, Hint};

/// Why metrics are not kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum MetricsError {
    /// A file that cannot be read or written.
    #[error("{} cannot be {done}: {reason}", path.display())]
    File { path: PathBuf, done: &'static str, kind: io::ErrorKind, reason: String },
    /// A file in which something else is.
    #[error("line {line} of {} is no record of a step", path.display())]
    NotMetrics { path: PathBuf, line: u64 },
}

impl MetricsError {
    /// What the system said about a file.
    pub(super) fn of(path: &Path, done: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self::File { path: path.to_owned(), done, kind: error.kind(), reason: error.to_string() }
    }
}

impl From<FileError> for MetricsError {
    fn from(error: FileError) -> Self {
        Self::File { path: error.path.into(), done: "written", kind: error.kind, reason: error.message }
    }
}

impl Hint for MetricsError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::File { kind: io::ErrorKind::PermissionDenied, .. } => {
                "use another `train.checkpoint.output_dir`, or let this user write there".to_owned()
            }
            Self::File { kind: io::ErrorKind::StorageFull, .. } => "free space on that disk".to_owned(),
            Self::File { .. } => return None,
            Self::NotMetrics { path, .. } => {
                format!("move {} away, or use another `train.checkpoint.output_dir`", path.display())
            }
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    #[test]
    fn what_the_system_said_is_told_with_a_fix_where_there_is_one() {
        let of = |kind: io::ErrorKind| MetricsError::of(Path::new("a/b"), "written")(kind.into());
        let full = of(io::ErrorKind::StorageFull);
        assert!(full.to_string().starts_with("a/b cannot be written: "), "{full}");
        assert_eq!(full.hint().unwrap(), "free space on that disk");
        assert!(of(io::ErrorKind::PermissionDenied).hint().unwrap().starts_with("use another"));
        assert_eq!(of(io::ErrorKind::NotFound).hint(), None);
    }
}
