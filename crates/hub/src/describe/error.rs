//! What can be wrong with a family that is described in a file.

use weightloom_errors::Hint;

/// Why a described family cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum DescribeError {
    /// Nothing is described under this name.
    #[error("no model is described under `{name}`")]
    Missing { name: String, searched: Vec<String>, near: Option<String> },
    /// A name that is no dotted path.
    #[error("`{name}` is no dotted name of a described model")]
    Name { name: String },
    /// The file cannot be read.
    #[error("cannot read {file}: {message}")]
    Read { file: String, message: String },
    /// Something else is where the file should be.
    #[error("{file} is expected to be a file, but is {found} instead")]
    NotAFile { file: String, found: &'static str },
    /// The file is not a description.
    #[error("{file}{} is broken: {message}", behind(*line))]
    Broken { file: String, line: Option<u64>, message: String },
}

/// A line behind the name of a file.
fn behind(line: Option<u64>) -> String {
    line.map(|line| format!(":{line}")).unwrap_or_default()
}

impl Hint for DescribeError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Missing { near: Some(near), .. } => Some(format!("write `{near}`")),
            Self::Missing { searched, .. } if searched.is_empty() => {
                Some("give a folder to search with --model-path or WEIGHTLOOM_MODEL_PATH".to_owned())
            }
            Self::Missing { searched, .. } => Some(format!("searched {}", searched.join(", "))),
            Self::Name { .. } => Some("write it as folders with dots between: my_org.my_model".to_owned()),
            Self::NotAFile { .. } => Some("put the description itself there".to_owned()),
            Self::Read { .. } | Self::Broken { .. } => None,
        }
    }
}
