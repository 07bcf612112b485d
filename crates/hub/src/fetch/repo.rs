//! The files of a model on the hub, in the cache.

use std::collections::{HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use reqwest::Url;

use super::address;
use super::choice::FileChoice;
use super::error::FetchError;
use super::listing::{Entry, Listing, below};
use super::lock::Lock;
use super::names;
use super::network::{Network, Stop, Subject, Trouble};
use super::observer::FetchObserver;
use super::offline;
use super::repo_cache::RepoCache;
use super::settings::{Existing, FetchSettings, Reach};
use super::staging::Identity;
use super::transfer::{Arrived, Job, transfer};

/// A model on the hub, at a revision, and perhaps in a folder of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HfRepo {
    /// `owner/name`, or `name` for a few old ones.
    pub repo: String,
    /// A branch, a tag or a commit.
    pub revision: String,
    /// The folder in it that has the files.
    pub sub: Option<String>,
}

impl HfRepo {
    /// A model at its usual branch, `main`.
    pub fn new(repo: impl Into<String>) -> Self {
        Self { repo: repo.into(), revision: "main".to_owned(), sub: None }
    }

    /// Repository and revision, as they are shown.
    pub(super) fn shown(&self) -> String {
        format!("{}@{}", self.repo, self.revision)
    }

    fn check(&self) -> Result<(), FetchError> {
        names::check_repo(&self.repo)?;
        names::check_revision(&self.revision)?;
        self.sub.as_deref().map_or(Ok(()), names::check_file)
    }
}

/// The files of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FetchedRepo {
    /// The folder that has them: the snapshot, or the folder in it that was
    /// asked for.
    pub folder: PathBuf,
    /// The commit they are of.
    pub commit: String,
    /// The files that were asked for.
    pub files: Vec<FetchedFile>,
    /// What is known of all of them.
    pub completeness: Completeness,
}

/// One of the files.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FetchedFile {
    /// Its name below the folder.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Its length.
    pub size: u64,
    /// What is known of it.
    pub completeness: Completeness,
}

/// What is known of files that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Completeness {
    /// Everything is there and has the right size, as far as that can be told;
    /// the hashes were not compared, at least not by us.
    Unchecked,
    /// Everything is there, and we have compared the hashes once.
    Checked,
}

/// Brings the wanted files of a model into the cache, and says where they are.
///
/// Of a branch or tag the hub is asked where it is at. A commit never changes,
/// so if all wanted files are there and checked, nobody is asked.
pub fn fetch_repo(
    settings: &FetchSettings,
    repo: &HfRepo,
    choice: &FileChoice,
    observer: &dyn FetchObserver,
) -> Result<FetchedRepo, FetchError> {
    repo.check()?;
    let cache = RepoCache::new(&settings.hub_cache, &repo.repo);
    if settings.reach == Reach::Offline {
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
        let listing = ask_for_listing(&network, repo, observer)?;
        Bringing { network: &network, cache: &cache, repo, listing: &listing, observer }.all(choice)
    })
}

/// Runs something on another thread, and waits for it. There, waiting for
/// answers is allowed even if the caller is a task of an async runtime.
pub(super) fn on_own_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| match scope.spawn(work).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

fn ask_for_listing(
    network: &Network<'_>,
    repo: &HfRepo,
    observer: &dyn FetchObserver,
) -> Result<Listing, FetchError> {
    let revision = names::encoded_part(&repo.revision);
    let url = url_of(network, &format!("api/models/{}/revision/{revision}?blobs=true", repo.repo))?;
    let subject = Subject::Listing { repo: &repo.repo, revision: &repo.revision };
    let answer =
        network.text(subject, &url, &Stop::new(observer, &repo.repo)).map_err(|trouble| match trouble {
            Trouble::Final(error) => error,
            Trouble::Passing(..) | Trouble::Stopped => FetchError::Cancelled { what: repo.repo.clone() },
        })?;
    Listing::from_answer(&repo.repo, &answer)
}

fn url_of(network: &Network<'_>, path: &str) -> Result<Url, FetchError> {
    address::parse(&format!("{}/{path}", network.settings.endpoint))
}

/// The files of one commit being brought.
struct Bringing<'a> {
    network: &'a Network<'a>,
    cache: &'a RepoCache,
    repo: &'a HfRepo,
    listing: &'a Listing,
    observer: &'a dyn FetchObserver,
}

/// A file with its full name.
type Wanted<'a> = (&'a str, &'a Entry);

impl<'a> Bringing<'a> {
    fn all(&self, choice: &FileChoice) -> Result<FetchedRepo, FetchError> {
        let sub = self.repo.sub.as_deref();
        let names = below(self.listing.files.keys().map(String::as_str), sub);
        let chosen = choice.choose(&self.repo.repo, &self.repo.revision, &names)?;
        let full = |name: &str| sub.map_or_else(|| name.to_owned(), |sub| format!("{sub}/{name}"));
        let wanted = chosen.iter().filter_map(|name| self.listing.files.get_key_value(&full(name)));
        let wanted: Vec<Wanted<'_>> = wanted.map(|(name, entry)| (name.as_str(), entry)).collect();

        let checked = self.cache.checked();
        let is_missing = |(name, entry): &Wanted<'_>| {
            !self.is_settled(name, entry, &checked)
                || (!checked.contains(entry.digest.hex()) && self.is_being_brought(entry))
        };
        let missing: Vec<Wanted<'_>> = wanted.iter().copied().filter(is_missing).collect();
        let had_all = missing.is_empty();
        self.bring(missing)?;

        let checked = self.cache.checked();
        let known: Vec<&str> = wanted
            .iter()
            .filter(|(_, entry)| checked.contains(entry.digest.hex()))
            .map(|(name, _)| *name)
            .collect();
        let noted = wanted
            .iter()
            .try_for_each(|(name, entry)| self.cache.link(&self.listing.commit, name, entry))
            .and_then(|()| self.cache.mark(self.listing, &known, self.observer))
            .and_then(|()| self.cache.point(&self.repo.revision, &self.listing.commit));
        let snapshot = self.cache.snapshot(&self.listing.commit);
        let linked = wanted.iter().all(|(name, _)| snapshot.join(name).exists());
        // In a cache that others own and in which everything is, there is
        // nothing to be noted that matters.
        if !(had_all && linked) {
            noted?;
        }
        let files: Vec<FetchedFile> = chosen
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

    /// Whether a file is there and nothing needs to be done about it.
    fn is_settled(&self, name: &str, entry: &Entry, checked: &HashSet<String>) -> bool {
        let trusted =
            self.network.settings.existing == Existing::Sizes || checked.contains(entry.digest.hex());
        trusted && self.cache.find(&self.listing.commit, name, entry).is_some()
    }

    /// Whether somebody is at a file just now: it may be in its place already,
    /// but nobody has noted yet that it was checked.
    fn is_being_brought(&self, entry: &Entry) -> bool {
        // In a cache where we may not lock, nobody is waited for.
        matches!(Lock::try_take(&self.cache.lock(&entry.digest)), Ok(None))
    }

    /// Small files side by side, then large ones one by one, each in ranges
    /// side by side. Files that somebody else is fetching come last, so that
    /// two processes share the work instead of waiting for each other.
    fn bring(&self, missing: Vec<Wanted<'a>>) -> Result<(), FetchError> {
        let (small, large): (Vec<_>, Vec<_>) =
            missing.into_iter().partition(|(_, entry)| entry.size <= self.network.settings.range_bytes);
        let later = Mutex::new(Vec::new());
        let unless_locked = |(name, entry): Wanted<'a>| match Lock::try_take(&self.cache.lock(&entry.digest))?
        {
            Some(_lock) => self.one(name, entry),
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
                unless_locked(next).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
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
        large.into_iter().try_for_each(unless_locked)?;
        let later = std::mem::take(&mut *locked(&later));
        for (name, entry) in later {
            let _lock = Lock::take(&self.cache.lock(&entry.digest), name, self.observer)?;
            self.one(name, entry)?;
        }
        Ok(())
    }

    /// One file, whose lock is held.
    fn one(&self, name: &str, entry: &Entry) -> Result<(), FetchError> {
        let commit = &self.listing.commit;
        // Somebody may have brought it before we had the lock.
        if self.is_settled(name, entry, &self.cache.checked()) {
            return self.cache.link(commit, name, entry);
        }
        while let Some(path) = self.cache.find(commit, name, entry) {
            if entry.digest.of_file_like(&path)? == entry.digest {
                self.cache.link(commit, name, entry)?;
                return self.cache.mark(self.listing, &[name], self.observer);
            }
            super::disk::remove(&path)?;
        }
        let path = format!("{}/resolve/{commit}/{}", self.repo.repo, names::encoded(name));
        let job = Job {
            subject: Subject::File { repo: &self.repo.repo, revision: &self.repo.revision, file: name },
            url: url_of(self.network, &path)?,
            size: Some(entry.size),
            digest: Some(entry.digest.clone()),
            staging: self.cache.staging(&entry.digest),
            record: self.cache.record(&entry.digest),
            identity: Identity::Name,
            unless: None,
        };
        match transfer(self.network, &job, self.observer)? {
            Arrived::Complete { staging, .. } => staging.finish(&self.cache.blob(&entry.digest))?,
            // Nobody asked whether it is.
            Arrived::Unchanged => return Err(FetchError::NotFound { url: address::shown(&job.url) }),
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
