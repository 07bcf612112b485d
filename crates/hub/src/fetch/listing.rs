//! The files of a repository at a commit: names, sizes, hashes.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::digest::Digest;
use super::error::FetchError;
use super::names;

/// The files of a repository at a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listing {
    pub(super) commit: String,
    pub(super) files: BTreeMap<String, Entry>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) size: u64,
    pub(super) digest: Digest,
}

#[derive(Deserialize)]
struct Answer {
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
    lfs: Option<Large>,
}

#[derive(Deserialize)]
struct Large {
    sha256: Option<String>,
    size: Option<u64>,
}

/// What newer versions of `huggingface_hub` keep of a commit.
#[derive(Deserialize)]
struct Tree {
    format_version: u32,
    files: BTreeMap<String, Leaf>,
}

#[derive(Deserialize)]
struct Leaf {
    size: u64,
    blob_id: String,
    lfs_sha256: Option<String>,
    lfs_size: Option<u64>,
}

impl Listing {
    /// Reads what the hub answers to `/api/models/…?blobs=true`.
    pub(super) fn from_answer(repo: &str, text: &[u8]) -> Result<Self, FetchError> {
        let bad = |problem: String| FetchError::Listing { repo: repo.to_owned(), problem };
        let answer: Answer = serde_json::from_slice(text).map_err(|error| bad(error.to_string()))?;
        let commit =
            answer.sha.filter(|sha| names::is_commit(sha)).ok_or_else(|| bad("it names no commit".into()))?;
        let mut files = BTreeMap::new();
        for sibling in answer.siblings {
            let name = sibling.rfilename;
            names::check_file(&name)?;
            let (size, digest) = match sibling.lfs {
                Some(large) => (large.size.or(sibling.size), large.sha256),
                None => (sibling.size, sibling.blob),
            };
            let digest = digest.as_deref().and_then(Digest::from_hex);
            let (Some(size), Some(digest)) = (size, digest) else {
                return Err(bad(format!("it does not say size and hash of `{name}`")));
            };
            files.insert(name, Entry { size, digest });
        }
        Ok(Self { commit, files })
    }

    /// Reads what `huggingface_hub` has kept; `None` if it is of another form.
    pub(super) fn from_tree(commit: &str, text: &[u8]) -> Option<Self> {
        let tree: Tree = serde_json::from_slice(text).ok().filter(|tree: &Tree| tree.format_version == 1)?;
        let mut files = BTreeMap::new();
        for (name, leaf) in tree.files {
            names::check_file(&name).ok()?;
            let digest = Digest::from_hex(leaf.lfs_sha256.as_deref().unwrap_or(&leaf.blob_id))?;
            files.insert(name, Entry { size: leaf.lfs_size.unwrap_or(leaf.size), digest });
        }
        Some(Self { commit: commit.to_owned(), files })
    }
}

/// The names below a folder, without it.
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

    fn answer(name: &str) -> String {
        format!(r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":{name:?},"size":3,"blobId":"{COMMIT}"}}]}}"#)
    }

    #[test]
    fn large_files_have_the_hash_of_their_bytes() {
        let sha = "ab".repeat(32);
        let text = format!(
            r#"{{"sha":"{COMMIT}","siblings":[{{"rfilename":"m","size":7,"blobId":"{COMMIT}","lfs":{{"sha256":"{sha}","size":9,"pointerSize":1}}}}]}}"#
        );
        let listing = Listing::from_answer("r", text.as_bytes()).unwrap();
        assert_eq!(listing.files["m"], Entry { size: 9, digest: Digest::Sha256(sha) });
    }

    #[test]
    fn names_that_lead_elsewhere_end_it() {
        assert!(Listing::from_answer("r", answer("config.json").as_bytes()).is_ok());
        for name in ["../../.bashrc", "/etc/passwd", "a/../../b"] {
            let error = Listing::from_answer("r", answer(name).as_bytes()).unwrap_err();
            assert!(matches!(error, FetchError::FileName { .. }), "{error}");
        }
    }

    #[test]
    fn what_is_no_listing_is_an_error() {
        for text in ["", "<html>", "{}", r#"{"sha":"../x"}"#, &answer("a").replace("\"size\":3,", "")] {
            assert!(
                matches!(Listing::from_answer("r", text.as_bytes()), Err(FetchError::Listing { .. })),
                "{text}"
            );
        }
    }

    #[test]
    fn names_below_a_folder_are_without_it() {
        let names = ["a/x", "ab/y", "a/b/z", "w"];
        assert_eq!(below(names.into_iter(), Some("a")), ["x", "b/z"]);
        assert_eq!(below(names.into_iter(), None), names);
    }
}
