//! Why a file or folder cannot be written.

use weightloom_errors::{FileError, Hint};

/// Why a file or folder cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum WriteError {
    #[error("cannot write `{path}`: {} is writing it", holder.as_deref().unwrap_or("another process"))]
    InUse { path: String, holder: Option<String> },
    #[error("`{path}` exists already")]
    Exists { path: String },
    #[error("cannot commit `{path}`: {what}")]
    Changed { path: String, what: String },
    #[error(
        "cannot write `{path}`: it needs {}, and `{folder}` has {} free",
        size(*needed),
        size(*available)
    )]
    NoSpace { path: String, folder: String, needed: u64, available: u64 },
    #[error(transparent)]
    File(#[from] FileError),
}

impl Hint for WriteError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::InUse { .. } => "wait until it has finished, or choose another name",
            Self::Exists { .. } => "choose another name, or remove it first",
            Self::Changed { .. } => "write it again, and keep other programs out of the folder",
            Self::NoSpace { .. } => "free some space, or choose another disk",
            Self::File(error) => return error.hint(),
        };
        Some(hint.to_owned())
    }
}

/// A number of bytes in decimal units, as disks are sold.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    let (mut value, mut unit) = (bytes as f64 / 1000.0, 0);
    if bytes < 1000 {
        return format!("{bytes} bytes");
    }
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}
