//! Cache of one repository, in the layout of `huggingface_hub`:
//!
//! ```text
//! models--owner--name/            or datasets--owner--name
//!   blobs/<hash>                  bytes
//!   snapshots/<commit>/<file>     links to blobs
//!   refs/<revision>               commit of a branch or tag
//!   weightloom/<commit>.json      ours: verified files
//! .locks/models--owner--name/<hash>.lock
//! ```

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use weightloom_errors::FileError;

use super::digest::Digest;
use super::disk;
use super::error::FetchError;
use super::listing::{ListedFile, Listing};
use super::lock::FileLock;
use super::marker::Marker;
use super::names;
use super::observer::FetchObserver;
use super::repo::RepoKind;

/// Cache of one repository.
#[derive(Clone, Debug)]
pub(super) struct RepoCache {
    folder: PathBuf,
    locks: PathBuf,
}

impl RepoCache {
    pub(super) fn new(hub_cache: &Path, repo: &str, kind: RepoKind) -> Self {
        let name = format!("{}--{}", kind.plural(), repo.replace('/', "--"));
        Self { folder: hub_cache.join(&name), locks: hub_cache.join(".locks").join(name) }
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    pub(super) fn blob(&self, digest: &Digest) -> PathBuf {
        self.folder.join("blobs").join(digest.hex())
    }

    /// Path of an incomplete blob. `huggingface_hub` expects `<hash>.incomplete`
    /// to have no holes; ours may, so the name differs.
    pub(super) fn staging(&self, digest: &Digest) -> PathBuf {
        self.folder.join("blobs").join(format!("{}.weightloom.incomplete", digest.hex()))
    }

    /// Path of the record of its downloaded ranges.
    pub(super) fn record(&self, digest: &Digest) -> PathBuf {
        self.folder.join("blobs").join(format!("{}.weightloom.ranges", digest.hex()))
    }

    pub(super) fn lock(&self, digest: &Digest) -> PathBuf {
        self.locks.join(format!("{}.lock", digest.hex()))
    }

    /// Path of a file with the right size.
    pub(super) fn find(&self, commit: &str, name: &str, entry: &ListedFile) -> Option<PathBuf> {
        let paths = [self.blob(&entry.digest), self.snapshot(commit).join(name)];
        paths.into_iter().find(|path| disk::length(path) == Some(entry.size))
    }

    /// Links a blob under its name in a snapshot.
    pub(super) fn link(&self, commit: &str, name: &str, entry: &ListedFile) -> Result<(), FetchError> {
        let (blob, path) = (self.blob(&entry.digest), self.snapshot(commit).join(name));
        if !blob.exists() {
            // Where Python cannot make links, the snapshot has the file itself.
            return Ok(());
        }
        let mut target = PathBuf::from("../..");
        target.extend(name.split('/').skip(1).map(|_| ".."));
        target.extend(["blobs", entry.digest.hex()]);
        if fs::read_link(&path).is_ok_and(|current| current == target) {
            return Ok(());
        }
        disk::create_folder_of(&path)?;
        // A temporary link that replaces the old one in one step.
        let folder = path.parent().unwrap_or(Path::new("."));
        let link = tempfile::Builder::new()
            .prefix(".link")
            .make_in(folder, |temporary| make_link(&target, &blob, temporary))
            .and_then(|link| link.persist(&path).map_err(|error| error.error));
        Ok(link.map_err(FileError::while_trying_to("link", &path))?)
    }

    /// The last known commit of a revision.
    pub(super) fn commit_of(&self, revision: &str) -> Option<String> {
        if names::is_commit(revision) {
            return Some(revision.to_owned());
        }
        let text = fs::read_to_string(self.folder.join("refs").join(revision)).ok()?;
        Some(text.trim().to_owned()).filter(|commit| names::is_commit(commit))
    }

    /// Records the commit of a revision.
    pub(super) fn set_ref(&self, revision: &str, commit: &str) -> Result<(), FetchError> {
        if revision == commit || self.commit_of(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        disk::write_atomic(&self.folder.join("refs").join(revision), commit.as_bytes())
    }

    /// Cached branches, tags and commits.
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

    /// The file list that `huggingface_hub` has cached.
    pub(super) fn tree(&self, commit: &str) -> Option<Listing> {
        let text = fs::read(self.folder.join("trees").join(format!("{commit}.json"))).ok()?;
        Listing::from_tree(commit, &text)
    }

    pub(super) fn marker(&self, commit: &str) -> Option<Marker> {
        Marker::load(&self.marker_path(commit), commit)
    }

    /// Records the files of a commit, and those with a verified hash.
    pub(super) fn mark(
        &self,
        listing: &Listing,
        checked: &[&str],
        observer: &dyn FetchObserver,
    ) -> Result<(), FetchError> {
        let lock = self.locks.join(format!("{}.weightloom.lock", listing.commit));
        let _lock = FileLock::take(&lock, &listing.commit, observer)?;
        let before = self.marker(&listing.commit);
        let mut marker = before.clone().unwrap_or_else(|| Marker::new(listing));
        checked.iter().for_each(|name| marker.mark_checked(name));
        match before.as_ref() == Some(&marker) {
            true => Ok(()),
            false => marker.store(&self.marker_path(&listing.commit)),
        }
    }

    /// Hashes of verified blobs, over all commits.
    pub(super) fn checked(&self) -> HashSet<String> {
        let entries = fs::read_dir(self.folder.join("weightloom")).into_iter().flatten().flatten();
        let commits =
            entries.filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".json")?.to_owned()));
        let markers = commits.filter_map(|commit| self.marker(&commit));
        markers.flat_map(|marker| marker.checked_hashes().map(str::to_owned).collect::<Vec<_>>()).collect()
    }

    fn marker_path(&self, commit: &str) -> PathBuf {
        self.folder.join("weightloom").join(format!("{commit}.json"))
    }
}

#[cfg(unix)]
fn make_link(target: &Path, _blob: &Path, at: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, at)
}

/// Symbolic links need special permissions on this platform.
#[cfg(not(unix))]
fn make_link(_target: &Path, blob: &Path, at: &Path) -> std::io::Result<()> {
    fs::hard_link(blob, at).or_else(|_| fs::copy(blob, at).map(drop))
}
