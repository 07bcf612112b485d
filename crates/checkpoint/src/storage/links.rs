//! Symbolic links that lead out of a folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where a file of a folder really is, if that is outside.
///
/// The snapshots of a Hugging Face cache, `<repo>/snapshots/<commit>`, are made
/// of links to `<repo>/blobs`, which counts as inside.
pub(super) fn leads_out(folder: &Path, name: &str) -> io::Result<Option<PathBuf>> {
    let real = fs::canonicalize(folder.join(name))?;
    let folder = fs::canonicalize(folder)?;
    if real.starts_with(&folder) {
        return Ok(None);
    }
    let snapshots =
        folder.ancestors().find(|folder| folder.file_name().is_some_and(|name| name == "snapshots"));
    let blobs = snapshots.and_then(Path::parent).map(|repo| repo.join("blobs"));
    Ok(Some(real).filter(|real| blobs.is_none_or(|blobs| !real.starts_with(blobs))))
}
