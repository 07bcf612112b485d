//! Downloads from a repository on the hub.

use std::collections::{HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use reqwest::Url;
use weightloom_http::redact_url;
use weightloom_machine::free_space;

use super::address;
use super::choice::FileChoice;
use super::disk;
use super::error::FetchError;
use super::listing::{ListedFile, Listing, below};
use super::lock::FileLock;
use super::names;
use super::network::{Cancellation, Network, Subject};
use super::observer::FetchObserver;
use super::offline;
use super::repo_cache::RepoCache;
use super::settings::{CacheCheck, FetchSettings, NetworkAccess};
use super::staging::Identity;
use super::transfer::{Job, Transferred, transfer};

/// A repository on the hub at a revision, or a folder in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HfRepo {
    /// `owner/name`; a few old ones have no owner.
    pub repo: String,
    /// A branch, a tag or a commit.
    pub revision: String,
    /// Folder in the repository.
    pub sub: Option<String>,
    /// What the repository holds.
    pub kind: RepoKind,
}

/// What a repository holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RepoKind {
    /// A model.
    #[default]
    Model,
    /// A dataset.
    Dataset,
}

impl RepoKind {
    /// The name in addresses of the API, and in folders of the cache.
    pub(super) fn plural(self) -> &'static str {
        match self {
            Self::Model => "models",
            Self::Dataset => "datasets",
        }
    }

    /// What precedes the name of a repository in addresses of files.
    fn prefix(self) -> &'static str {
        match self {
            Self::Model => "",
            Self::Dataset => "datasets/",
        }
    }
}

impl HfRepo {
    /// The `main` branch of a repository with a model.
    pub fn new(repo: impl Into<String>) -> Self {
        Self { repo: repo.into(), revision: "main".to_owned(), sub: None, kind: RepoKind::Model }
    }

    /// The `main` branch of a repository with a dataset.
    pub fn dataset(repo: impl Into<String>) -> Self {
        Self { kind: RepoKind::Dataset, ..Self::new(repo) }
    }

    /// Repository and revision, for messages.
    pub(super) fn display_name(&self) -> String {
        format!("{}@{}", self.repo, self.revision)
    }

    fn check(&self) -> Result<(), FetchError> {
        names::check_repo(&self.repo)?;
        names::check_revision(&self.revision)?;
        self.sub.as_deref().map_or(Ok(()), names::check_file)
    }
}

/// Downloaded files of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FetchedRepo {
    /// The snapshot, or the requested folder in it.
    pub folder: PathBuf,
    /// The commit of the files.
    pub commit: String,
    /// The selected files.
    pub files: Vec<FetchedFile>,
    /// The least of all files.
    pub completeness: Completeness,
}

/// One downloaded file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FetchedFile {
    /// Name in the folder.
    pub name: String,
    /// Path in the cache.
    pub path: PathBuf,
    /// Length in bytes.
    pub size: u64,
    /// Whether the hash was verified.
    pub completeness: Completeness,
}

/// How far a file in the cache has been verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Completeness {
    /// The size is right, as far as it is known; the hash was not compared.
    Unchecked,
    /// The hash was compared after the download.
    Checked,
}

/// Downloads the selected files of a repository into the cache.
///
/// A branch or tag costs a request for its commit. A commit never changes: if
/// all selected files are in the cache and verified, there is no request.
pub fn fetch_repo(
    settings: &FetchSettings,
    repo: &HfRepo,
    choice: &FileChoice,
    observer: &dyn FetchObserver,
) -> Result<FetchedRepo, FetchError> {
    repo.check()?;
    let cache = RepoCache::new(&settings.hub_cache, &repo.repo, repo.kind);
    if settings.network == NetworkAccess::Offline {
        return offline::find(&cache, repo, choice);
    }
    if names::is_commit(&repo.revision) {
        match offline::find(&cache, repo, choice) {
            Ok(found) if found.completeness == Completeness::Checked => return Ok(found),
            _ => {}
        }
    }
    on_own_thread(|| {
        let network = Network::open(settings)?;
        let listing = fetch_listing(&network, repo, observer)?;
        RepoDownload { network: &network, cache: &cache, repo, listing: &listing, observer }.run(choice)
    })
}

/// Runs a closure on another thread and waits for it. It may block there even
/// if the caller is a task of an async runtime.
pub(super) fn on_own_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

fn fetch_listing(
    network: &Network<'_>,
    repo: &HfRepo,
    observer: &dyn FetchObserver,
) -> Result<Listing, FetchError> {
    let revision = names::encode_component(&repo.revision);
    let url =
        url_of(network, &format!("api/{}/{}/revision/{revision}?blobs=true", repo.kind.plural(), repo.repo))?;
    let subject = Subject::Listing { repo: &repo.repo, revision: &repo.revision };
    let response = network.text(subject, &url, &Cancellation::new(observer, &repo.repo));
    let response = response.map_err(|abort| abort.into_error(&repo.repo))?;
    Listing::from_response(&repo.repo, &response)
}

fn url_of(network: &Network<'_>, path: &str) -> Result<Url, FetchError> {
    address::parse(&format!("{}/{path}", network.settings.endpoint))
}

/// Download of the files of one commit.
struct RepoDownload<'a> {
    network: &'a Network<'a>,
    cache: &'a RepoCache,
    repo: &'a HfRepo,
    listing: &'a Listing,
    observer: &'a dyn FetchObserver,
}

/// A file with its full name.
type NamedFile<'a> = (&'a str, &'a ListedFile);

impl<'a> RepoDownload<'a> {
    fn run(&self, choice: &FileChoice) -> Result<FetchedRepo, FetchError> {
        let sub = self.repo.sub.as_deref();
        let names = below(self.listing.files.keys().map(String::as_str), sub);
        let selected = choice.select(&self.repo.repo, &self.repo.revision, &names)?;
        let full = |name: &str| sub.map_or_else(|| name.to_owned(), |sub| format!("{sub}/{name}"));
        let wanted = selected.iter().filter_map(|name| self.listing.files.get_key_value(&full(name)));
        let wanted: Vec<NamedFile<'_>> = wanted.map(|(name, entry)| (name.as_str(), entry)).collect();

        let checked = self.cache.checked();
        let is_missing = |(name, entry): &NamedFile<'_>| {
            !self.is_cached(name, entry, &checked)
                || (!checked.contains(entry.digest.hex()) && self.is_locked(entry))
        };
        let missing: Vec<NamedFile<'_>> = wanted.iter().copied().filter(is_missing).collect();
        let had_all = missing.is_empty();
        self.download_all(missing)?;

        let checked = self.cache.checked();
        let known: Vec<&str> = wanted
            .iter()
            .filter(|(_, entry)| checked.contains(entry.digest.hex()))
            .map(|(name, _)| *name)
            .collect();
        let recorded = wanted
            .iter()
            .try_for_each(|(name, entry)| self.cache.link(&self.listing.commit, name, entry))
            .and_then(|()| self.cache.mark(self.listing, &known, self.observer))
            .and_then(|()| self.cache.set_ref(&self.repo.revision, &self.listing.commit));
        let snapshot = self.cache.snapshot(&self.listing.commit);
        let linked = wanted.iter().all(|(name, _)| snapshot.join(name).exists());
        // A read-only cache that has everything needs no new records.
        if !(had_all && linked) {
            recorded?;
        }
        let files: Vec<FetchedFile> = selected
            .iter()
            .zip(&wanted)
            .map(|(short, (name, entry))| FetchedFile {
                name: (*short).to_owned(),
                path: snapshot.join(name),
                size: entry.size,
                completeness: match checked.contains(entry.digest.hex()) {
                    true => Completeness::Checked,
                    false => Completeness::Unchecked,
                },
            })
            .collect();
        let completeness =
            files.iter().map(|file| file.completeness).min().unwrap_or(Completeness::Unchecked);
        let folder = sub.map_or_else(|| snapshot.clone(), |sub| snapshot.join(sub));
        Ok(FetchedRepo { folder, commit: self.listing.commit.clone(), files, completeness })
    }

    /// Whether a file is in the cache and trusted.
    fn is_cached(&self, name: &str, entry: &ListedFile, checked: &HashSet<String>) -> bool {
        let trusted =
            self.network.settings.cache_check == CacheCheck::Sizes || checked.contains(entry.digest.hex());
        trusted && self.cache.find(&self.listing.commit, name, entry).is_some()
    }

    /// Whether another process is downloading a file: its blob may exist
    /// before the record that it is verified.
    fn is_locked(&self, entry: &ListedFile) -> bool {
        // Without permission to lock there is nothing to wait for.
        matches!(FileLock::try_take(&self.cache.lock(&entry.digest)), Ok(None))
    }

    /// Makes sure that the disk has space for all files before any is
    /// downloaded.
    fn require_space(&self, missing: &[NamedFile<'a>]) -> Result<(), FetchError> {
        let size = |(name, entry): &NamedFile<'a>| {
            if self.cache.find(&self.listing.commit, name, entry).is_some() {
                return 0;
            }
            let partial = disk::length(&self.cache.staging(&entry.digest)).unwrap_or(0);
            entry.size.saturating_sub(partial)
        };
        let needed = missing.iter().map(size).fold(0_u64, u64::saturating_add);
        match free_space(&self.network.settings.hub_cache) {
            Some(free) if needed > free => {
                Err(FetchError::NoSpace { what: self.repo.repo.clone(), needed, free })
            }
            _ => Ok(()),
        }
    }

    /// Downloads small files in parallel, then large ones one by one in parallel
    /// ranges. Files that another process is downloading come last, so that two
    /// processes share the work.
    fn download_all(&self, missing: Vec<NamedFile<'a>>) -> Result<(), FetchError> {
        self.require_space(&missing)?;
        let (small, large): (Vec<_>, Vec<_>) =
            missing.into_iter().partition(|(_, entry)| entry.size <= self.network.settings.range_bytes);
        let later = Mutex::new(Vec::new());
        let download_unlocked =
            |(name, entry): NamedFile<'a>| match FileLock::try_take(&self.cache.lock(&entry.digest))? {
                Some(_lock) => self.download(name, entry),
                None => {
                    locked(&later).push((name, entry));
                    Ok(())
                }
            };
        let threads = self.network.settings.connections.max(1).min(small.len());
        let queue = Mutex::new(VecDeque::from(small));
        let failed = AtomicBool::new(false);
        let work = || {
            while !failed.load(Ordering::Relaxed) {
                let Some(next) = locked(&queue).pop_front() else { break };
                download_unlocked(next).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let ended = threads.into_iter().map(|thread| match thread.join() {
                Ok(worked) => worked,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            ended.collect::<Vec<_>>().into_iter().collect::<Result<(), FetchError>>()
        })?;
        large.into_iter().try_for_each(download_unlocked)?;
        let later = std::mem::take(&mut *locked(&later));
        for (name, entry) in later {
            let _lock = FileLock::take(&self.cache.lock(&entry.digest), name, self.observer)?;
            self.download(name, entry)?;
        }
        Ok(())
    }

    /// Downloads one file while its lock is held.
    fn download(&self, name: &str, entry: &ListedFile) -> Result<(), FetchError> {
        let commit = &self.listing.commit;
        // Another process may have finished before we held the lock.
        if self.is_cached(name, entry, &self.cache.checked()) {
            return self.cache.link(commit, name, entry);
        }
        while let Some(path) = self.cache.find(commit, name, entry) {
            if entry.digest.same_kind_of_file(&path)? == entry.digest {
                self.cache.link(commit, name, entry)?;
                return self.cache.mark(self.listing, &[name], self.observer);
            }
            disk::remove(&path)?;
        }
        let prefix = self.repo.kind.prefix();
        let path = format!("{prefix}{}/resolve/{commit}/{}", self.repo.repo, names::encode_path(name));
        let job = Job {
            subject: Subject::File { repo: &self.repo.repo, revision: &self.repo.revision, file: name },
            url: url_of(self.network, &path)?,
            size: Some(entry.size),
            digest: Some(entry.digest.clone()),
            staging: self.cache.staging(&entry.digest),
            record: self.cache.record(&entry.digest),
            identity: Identity::Hash,
            unless: None,
        };
        match transfer(self.network, &job, self.observer)? {
            Transferred::Complete { staging, .. } => staging.finish(&self.cache.blob(&entry.digest))?,
            // The request had no condition.
            Transferred::Unchanged => return Err(FetchError::NotFound { url: redact_url(&job.url) }),
        }
        self.cache.link(commit, name, entry)?;
        self.cache.mark(self.listing, &[name], self.observer)?;
        self.observer.finished(name);
        Ok(())
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
