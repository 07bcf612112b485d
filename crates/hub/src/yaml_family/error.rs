//! Errors of families described in YAML.

use weightloom_errors::{FileError, Hint, did_you_mean, name_list};

/// Why a `model.yaml` cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum YamlFamilyError {
    #[error("no `model.yaml` for model `{name}`")]
    NotFound { name: String, searched: Vec<String>, near: Option<String> },
    #[error("invalid dotted model name `{name}`")]
    Name { name: String },
    #[error(transparent)]
    Read(#[from] FileError),
    #[error("cannot read `{file}`: it is {found}, not a file")]
    NotAFile { file: String, found: &'static str },
    #[error("invalid model family in {file}{}: {message}", line_suffix(*line))]
    Invalid { file: String, line: Option<u64>, message: String },
}

fn line_suffix(line: Option<u64>) -> String {
    line.map(|line| format!(":{line}")).unwrap_or_default()
}

impl Hint for YamlFamilyError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::NotFound { near: Some(near), .. } => did_you_mean(Some(near)),
            Self::NotFound { searched, .. } if searched.is_empty() => {
                Some("set a folder to search with --model-path or WEIGHTLOOM_MODEL_PATH".to_owned())
            }
            Self::NotFound { searched, .. } => {
                Some(format!("create one of the searched files: {}", name_list(searched, 5)))
            }
            Self::Name { .. } => Some("join folder names with dots, such as `my_org.my_model`".to_owned()),
            Self::NotAFile { .. } => Some("replace it with a YAML file".to_owned()),
            Self::Read(error) => error.hint(),
            Self::Invalid { .. } => None,
        }
    }
}
