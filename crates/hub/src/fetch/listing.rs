//! File list of a repository at a commit: names, sizes, hashes.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::digest::Digest;
use super::error::FetchError;
use super::names;

/// Limit for files, so that sums of their sizes do not overflow: 1 PiB.
const MAX_FILE_BYTES: u64 = 1 << 50;

/// File list of a repository at a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listing {
    pub(super) commit: String,
    pub(super) files: BTreeMap<String, ListedFile>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ListedFile {
    pub(super) size: u64,
    pub(super) digest: Digest,
}

#[derive(Deserialize)]
struct ModelInfo {
    sha: Option<String>,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob: Option<String>,
    lfs: Option<LfsFile>,
}

#[derive(Deserialize)]
struct LfsFile {
    sha256: Option<String>,
    size: Option<u64>,
}

/// The file list that newer versions of `huggingface_hub` cache.
#[derive(Deserialize)]
struct Tree {
    format_version: u32,
    files: BTreeMap<String, TreeFile>,
}

#[derive(Deserialize)]
struct TreeFile {
    size: u64,
    blob_id: String,
    lfs_sha256: Option<String>,
    lfs_size: Option<u64>,
}

impl Listing {
    /// Parses the hub's response to `/api/models/…?blobs=true`.
    pub(super) fn from_response(repo: &str, text: &[u8]) -> Result<Self, FetchError> {
        let bad = |problem: String| FetchError::Listing { repo: repo.to_owned(), problem };
        let info: ModelInfo = serde_json::from_slice(text).map_err(|error| bad(error.to_string()))?;
        let commit = info.sha.filter(|sha| names::is_commit(sha)).ok_or_else(|| bad("no commit".into()))?;
        let mut files = BTreeMap::new();
        for sibling in info.siblings {
            let name = sibling.rfilename;
            names::check_file(&name)?;
            let (size, digest) = match sibling.lfs {
                Some(lfs) => (lfs.size.or(sibling.size), lfs.sha256),
                None => (sibling.size, sibling.blob),
            };
            let digest = digest.as_deref().and_then(Digest::from_hex);
            let (Some(size), Some(digest)) = (size, digest) else {
                return Err(bad(format!("no size or hash of `{name}`")));
            };
            if size > MAX_FILE_BYTES {
                return Err(bad(format!(
                    "`{name}` has {size} bytes, more than the limit of {MAX_FILE_BYTES}"
                )));
            }
            files.insert(name, ListedFile { size, digest });
        }
        Ok(Self { commit, files })
    }

    /// Parses the list cached by `huggingface_hub`; `None` if its format is
    /// unknown.
    pub(super) fn from_tree(commit: &str, text: &[u8]) -> Option<Self> {
        let tree: Tree = serde_json::from_slice(text).ok().filter(|tree: &Tree| tree.format_version == 1)?;
        let mut files = BTreeMap::new();
        for (name, file) in tree.files {
            names::check_file(&name).ok()?;
            let digest = Digest::from_hex(file.lfs_sha256.as_deref().unwrap_or(&file.blob_id))?;
            let size = file.lfs_size.unwrap_or(file.size);
            files.insert(
                name,
                ListedFile { size: Some(size).filter(|size| *size <= MAX_FILE_BYTES)?, digest },
            );
        }
        Some(Self { commit: commit.to_owned(), files })
    }
}

/// Parses a response of the hub and returns its number of files, for fuzzing.
#[doc(hidden)]
pub fn check_listing(text: &[u8]) -> Result<usize, FetchError> {
    Listing::from_response("owner/model", text).map(|listing| listing.files.len())
}

/// The names in a folder, without its prefix.
pub(super) fn below<'n>(names: impl Iterator<Item = &'n str>, sub: Option<&str>) -> Vec<&'n str> {
    match sub {
        None => names.collect(),
        Some(sub) => names.filter_map(|name| name.strip_prefix(sub)?.strip_prefix('/')).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn response(name: &str) -> String {
        format!(r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":{name:?},"size":3,"blobId":"{COMMIT}"}}]}}"#)
    }

    #[test]
    fn lfs_files_have_the_hash_of_their_bytes() {
        let sha = "ab".repeat(32);
        let text = format!(
            r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"m","size":7,"blobId":"{COMMIT}","lfs":{{"sha256":"{sha}","size":9,"pointerSize":1}}}}]}}"#
        );
        let listing = Listing::from_response("r", text.as_bytes()).unwrap();
        assert_eq!(listing.files["m"], ListedFile { size: 9, digest: Digest::Sha256(sha) });
    }

    #[test]
    fn names_that_leave_the_folder_are_rejected() {
        assert!(Listing::from_response("r", response("config.json").as_bytes()).is_ok());
        for name in ["../../.bashrc", "/etc/passwd", "a/../../b"] {
            let error = Listing::from_response("r", response(name).as_bytes()).unwrap_err();
            assert!(matches!(error, FetchError::FileName { .. }), "{error}");
        }
    }

    #[test]
    fn malformed_lists_are_rejected() {
        for text in ["", "<html>", "{}", r#"{"sha":"../x"}"#, &response("a").replace("\"size\":3,", "")] {
            assert!(
                matches!(Listing::from_response("r", text.as_bytes()), Err(FetchError::Listing { .. })),
                "{text}"
            );
        }
    }

    #[test]
    fn names_in_a_folder_lose_its_prefix() {
        let names = ["a/x", "ab/y", "a/b/z", "w"];
        assert_eq!(below(names.into_iter(), Some("a")), ["x", "b/z"]);
        assert_eq!(below(names.into_iter(), None), names);
    }
}
