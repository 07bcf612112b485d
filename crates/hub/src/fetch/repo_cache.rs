//! One repository in the cache, as `huggingface_hub` lays it out:
//!
//! ```text
//! models--owner--name/
//!   blobs/<hash>                  bytes
//!   snapshots/<commit>/<file>     links to blobs
//!   refs/<revision>               the commit that a branch or tag was at
//!   weightloom/<commit>.json       ours: what we have checked
//! .locks/models--owner--name/<hash>.lock
//! ```

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::digest::Digest;
use super::disk;
use super::error::FetchError;
use super::listing::{Entry, Listing};
use super::lock::Lock;
use super::marker::Marker;
use super::names;
use super::observer::FetchObserver;

/// One repository in the cache.
#[derive(Clone, Debug)]
pub(super) struct RepoCache {
    folder: PathBuf,
    locks: PathBuf,
}

impl RepoCache {
    pub(super) fn new(hub_cache: &Path, repo: &str) -> Self {
        let name = format!("models--{}", repo.replace('/', "--"));
        Self { folder: hub_cache.join(&name), locks: hub_cache.join(".locks").join(name) }
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    pub(super) fn blob(&self, digest: &Digest) -> PathBuf {
        self.folder.join("blobs").join(digest.hex())
    }

    /// Where a blob is until it is complete. `huggingface_hub` takes what ends
    /// in `.incomplete` behind the hash for a start without holes, which ours
    /// is not; so the name differs.
    pub(super) fn staging(&self, digest: &Digest) -> PathBuf {
        self.folder.join("blobs").join(format!("{}.weightloom.incomplete", digest.hex()))
    }

    /// Where it is written which bytes of it are there.
    pub(super) fn record(&self, digest: &Digest) -> PathBuf {
        self.folder.join("blobs").join(format!("{}.weightloom.ranges", digest.hex()))
    }

    pub(super) fn lock(&self, digest: &Digest) -> PathBuf {
        self.locks.join(format!("{}.lock", digest.hex()))
    }

    /// Where the bytes of a file are, if they are as many as they should be.
    pub(super) fn find(&self, commit: &str, name: &str, entry: &Entry) -> Option<PathBuf> {
        let places = [self.blob(&entry.digest), self.snapshot(commit).join(name)];
        places.into_iter().find(|path| disk::length(path) == Some(entry.size))
    }

    /// Makes a blob appear under its name at a commit.
    pub(super) fn link(&self, commit: &str, name: &str, entry: &Entry) -> Result<(), FetchError> {
        let (blob, path) = (self.blob(&entry.digest), self.snapshot(commit).join(name));
        if !blob.exists() {
            // Python keeps whole files here where it cannot make links.
            return Ok(());
        }
        let mut target = PathBuf::from("../..");
        target.extend(name.split('/').skip(1).map(|_| ".."));
        target.extend(["blobs", entry.digest.hex()]);
        if fs::read_link(&path).is_ok_and(|there| there == target) {
            return Ok(());
        }
        disk::make_folder_of(&path)?;
        let passing = disk::passing_name(&path);
        let made = make_link(&target, &blob, &passing).and_then(|()| fs::rename(&passing, &path));
        made.map_err(|error| {
            // Nobody will look for it.
            let _ = fs::remove_file(&passing);
            FetchError::io("link", &path, &error)
        })
    }

    /// The commit that a revision was at when it was last asked for.
    pub(super) fn commit_of(&self, revision: &str) -> Option<String> {
        if names::is_commit(revision) {
            return Some(revision.to_owned());
        }
        let text = fs::read_to_string(self.folder.join("refs").join(revision)).ok()?;
        Some(text.trim().to_owned()).filter(|commit| names::is_commit(commit))
    }

    /// Notes which commit a revision is at.
    pub(super) fn point(&self, revision: &str, commit: &str) -> Result<(), FetchError> {
        if revision == commit || self.commit_of(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        disk::write_atomic(&self.folder.join("refs").join(revision), commit.as_bytes())
    }

    /// Branches, tags and commits that are here.
    pub(super) fn revisions(&self) -> Vec<String> {
        let inside = |folder: &str| {
            let entries = fs::read_dir(self.folder.join(folder)).into_iter().flatten().flatten();
            let mut names: Vec<String> =
                entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
            names.sort();
            names
        };
        let mut revisions = inside("refs");
        revisions.extend(inside("snapshots"));
        revisions
    }

    /// The files of a commit, as `huggingface_hub` has noted them.
    pub(super) fn tree(&self, commit: &str) -> Option<Listing> {
        let text = fs::read(self.folder.join("trees").join(format!("{commit}.json"))).ok()?;
        Listing::from_tree(commit, &text)
    }

    pub(super) fn marker(&self, commit: &str) -> Option<Marker> {
        Marker::load(&self.marker_path(commit), commit)
    }

    /// Notes the files of a commit, and that some have the right hash.
    pub(super) fn mark(
        &self,
        listing: &Listing,
        checked: &[&str],
        observer: &dyn FetchObserver,
    ) -> Result<(), FetchError> {
        let lock = self.locks.join(format!("{}.weightloom.lock", listing.commit));
        let _lock = Lock::take(&lock, &listing.commit, observer)?;
        let before = self.marker(&listing.commit);
        let mut marker = before.clone().unwrap_or_else(|| Marker::new(listing));
        checked.iter().for_each(|name| marker.check(name));
        match before.as_ref() == Some(&marker) {
            true => Ok(()),
            false => marker.store(&self.marker_path(&listing.commit)),
        }
    }

    /// The hashes of all blobs that we have checked, for whichever commit.
    pub(super) fn checked(&self) -> HashSet<String> {
        let entries = fs::read_dir(self.folder.join("weightloom")).into_iter().flatten().flatten();
        let commits =
            entries.filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".json")?.to_owned()));
        let markers = commits.filter_map(|commit| self.marker(&commit));
        markers.flat_map(|marker| marker.checked().map(str::to_owned).collect::<Vec<_>>()).collect()
    }

    fn marker_path(&self, commit: &str) -> PathBuf {
        self.folder.join("weightloom").join(format!("{commit}.json"))
    }
}

#[cfg(unix)]
fn make_link(target: &Path, _blob: &Path, at: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, at)
}

/// Links between files need rights here that few have.
#[cfg(not(unix))]
fn make_link(_target: &Path, blob: &Path, at: &Path) -> std::io::Result<()> {
    fs::hard_link(blob, at).or_else(|_| fs::copy(blob, at).map(drop))
}
