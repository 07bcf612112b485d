//! Errors of Parquet files.

/// A Parquet file that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ParquetError {
    #[error("it is not a Parquet file")]
    NotParquet,
    #[error("it is encrypted")]
    Encrypted,
    #[error("it uses {0}, which is not supported")]
    Unsupported(String),
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    #[error("{0}")]
    Io(String),
}

impl From<std::io::Error> for ParquetError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error.to_string())
    }
}
