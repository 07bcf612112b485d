//! Names of folders to write. A folder called `x.gguf` would look like a file.

use std::path::Path;

use weightloom::errors::Hint;

use super::failure::Failure;

/// A target with the extension of a file, where a folder is written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum FolderNameError {
    #[error("cannot {action} `{target}`: GGUF files cannot be written yet")]
    Gguf { action: &'static str, target: String, folder: String },
    #[error("cannot {action} `{target}`: a folder is written, not a .{extension} file")]
    File { action: &'static str, target: String, folder: String, extension: String },
}

impl Hint for FolderNameError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Gguf { folder, .. } => format!(
                "write the folder `{folder}`, and convert it with llama.cpp: `convert_hf_to_gguf.py {folder}`"
            ),
            Self::File { folder, .. } => format!("name a folder, such as `{folder}`"),
        })
    }
}

/// Extensions of checkpoint files.
const EXTENSIONS: [&str; 8] = ["gguf", "safetensors", "pt", "pth", "ckpt", "bin", "npz", "npy"];

/// Checks that the name of a folder to write does not look like a file.
pub(super) fn check_folder_name(action: &'static str, target: &Path) -> Result<(), Failure> {
    let extension = target.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let extension = extension.to_ascii_lowercase();
    if !EXTENSIONS.contains(&extension.as_str()) {
        return Ok(());
    }
    let folder = target.with_extension("").display().to_string();
    let target = target.display().to_string();
    Err(Failure::user(&match extension.as_str() {
        "gguf" => FolderNameError::Gguf { action, target, folder },
        _ => FolderNameError::File { action, target, folder, extension },
    }))
}
