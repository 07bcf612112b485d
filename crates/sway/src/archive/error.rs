//! Errors of archives.

use thiserror::Error;
use weightloom_errors::{FileError, Hint};

use crate::cache::CacheError;
use crate::judge::JudgeError;
use crate::suite::SuiteErrors;

/// Why an archive cannot be packed or read.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ArchiveError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("cannot read the archive: it has more than {most} bytes")]
    TooLong { most: u64 },
    #[error("cannot read the archive: it is not a tar file of `weightloom sway pack`")]
    NotAnArchive,
    #[error("cannot read the archive: it ends at byte {length} before `{wanted}`")]
    Truncated { length: usize, wanted: String },
    #[error("cannot read the archive: unexpected file `{name}`")]
    UnexpectedFile { name: String },
    #[error("cannot read the archive: `{name}` is there twice")]
    Duplicate { name: String },
    #[error("cannot read the archive: `{file}` is missing")]
    Missing { file: &'static str },
    #[error("cannot read the archive: `{file}` differs from its SHA-256")]
    Damaged { file: &'static str },
    #[error("cannot read `{file}` of the archive: {message}")]
    Invalid { file: &'static str, message: String },
    #[error("cannot unpack a file called {name:?}")]
    Name { name: String },
    #[error("cannot read the archive: unsupported format {found}; this program reads 1")]
    Format { found: u32 },
    #[error(
        "cannot read the answers of the archive: version {version} of weightloom encodes them differently"
    )]
    Answers { version: String },
    #[error("cannot pack the suite: the models could not be asked: {message}")]
    NotJudged { message: String },
    #[error(transparent)]
    Suite(#[from] SuiteErrors),
    #[error(transparent)]
    Judge(#[from] JudgeError),
    #[error(transparent)]
    Cache(#[from] CacheError),
}

impl Hint for ArchiveError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::File(error) => error.hint(),
            Self::Suite(error) => error.hint(),
            Self::Judge(error) => error.hint(),
            Self::Cache(error) => error.hint(),
            Self::TooLong { .. }
            | Self::UnexpectedFile { .. }
            | Self::Duplicate { .. }
            | Self::Name { .. } => {
                Some("do not use the file: it was not made by `weightloom sway pack`".to_owned())
            }
            Self::NotAnArchive => Some("use a file made by `weightloom sway pack`".to_owned()),
            Self::Truncated { .. } | Self::Missing { .. } | Self::Damaged { .. } | Self::Invalid { .. } => {
                Some("copy the archive again, or pack the suite again".to_owned())
            }
            Self::Format { .. } => Some("upgrade weightloom".to_owned()),
            Self::Answers { version } => Some(format!("unpack it with weightloom {version}")),
            Self::NotJudged { .. } => Some("run the suite first: `weightloom sway run`".to_owned()),
        }
    }
}
