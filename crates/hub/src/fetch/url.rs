//! One file of any web server, in a cache of our own:
//!
//! ```text
//! downloads/<hash of the URL>/<name>   the file
//! downloads/<hash of the URL>.json     what is known of it
//! downloads/<hash of the URL>.lock
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use reqwest::Url;
use serde::{Deserialize, Serialize};

use super::address;
use super::answer::Validator;
use super::digest::{self, Digest};
use super::disk;
use super::error::FetchError;
use super::lock::Lock;
use super::names;
use super::network::{Network, Subject};
use super::observer::FetchObserver;
use super::repo::{Completeness, on_own_thread};
use super::settings::{FetchSettings, Reach};
use super::staging::Identity;
use super::transfer::{Arrived, Job, transfer};

/// What is known of a file beforehand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// Its length.
    pub size: Option<u64>,
    /// Its SHA-256, in hex digits.
    pub sha256: Option<String>,
}

/// A file that was fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FetchedUrl {
    /// Where it is.
    pub path: PathBuf,
    /// Its length.
    pub size: u64,
    /// Its SHA-256.
    pub sha256: String,
    /// Checked, if it was known which hash it should have.
    pub completeness: Completeness,
}

/// Brings a file of a web server into the cache, and says where it is.
///
/// If its hash is known and a file with that hash is there, nobody is asked.
/// Otherwise the server is asked whether its file is still the same.
pub fn fetch_url(
    settings: &FetchSettings,
    url: &str,
    expected: &Expected,
    observer: &dyn FetchObserver,
) -> Result<FetchedUrl, FetchError> {
    let mut url = address::parse(url)?;
    url.set_fragment(None);
    let expected = Wanted::new(expected)?;
    let place = Place::new(&settings.url_cache, &url);
    let before = place.about().filter(|about| expected.fits(about));
    match &before {
        Some(about) if expected.digest.is_some() || settings.reach == Reach::Offline => {
            return Ok(place.fetched(about, &expected));
        }
        None if settings.reach == Reach::Offline => {
            return Err(FetchError::NotCached { what: address::shown(&url), cached: Vec::new() });
        }
        _ => {}
    }
    let shown = address::shown(&url);
    let _lock = Lock::take(&place.lock, &shown, observer)?;
    let about = place.about().filter(|about| expected.fits(about));
    if let Some(about) = about.as_ref().filter(|_| expected.digest.is_some() || about != before) {
        // Somebody has just brought it.
        return Ok(place.fetched(about, &expected));
    }
    let job = Job {
        subject: Subject::Web { url: &shown },
        url,
        size: expected.size,
        digest: expected.digest.clone(),
        staging: place.staging.clone(),
        record: place.record.clone(),
        identity: Identity::Version,
        unless: about.as_ref().map(|about| about.validator.clone()).filter(Validator::is_known),
    };
    let arrived = on_own_thread(|| transfer(&Network::open(settings)?, &job, observer))?;
    let about = match (arrived, about) {
        (Arrived::Complete { staging, digest }, _) => {
            let size = disk::length(staging.path()).unwrap_or(0);
            let sha256 = digest.hex().to_owned();
            let about = About { url: shown.clone(), size, sha256, validator: staging.validator() };
            // What is said of the old file must not be said of the new one.
            disk::remove(&place.about)?;
            staging.finish(&place.file)?;
            disk::write_atomic(&place.about, &serde_json::to_vec_pretty(&about).unwrap_or_default())?;
            observer.finished(&shown);
            about
        }
        (Arrived::Unchanged, Some(about)) => about,
        (Arrived::Unchanged, None) => return Err(FetchError::NotFound { url: shown }),
    };
    Ok(place.fetched(&about, &expected))
}

/// What is known of a file beforehand, checked.
struct Wanted {
    size: Option<u64>,
    digest: Option<Digest>,
}

impl Wanted {
    fn new(expected: &Expected) -> Result<Self, FetchError> {
        let digest = match &expected.sha256 {
            None => None,
            Some(text) => match Digest::from_hex(text) {
                Some(digest @ Digest::Sha256(_)) => Some(digest),
                _ => {
                    let problem = format!("`{}` is not 64 hex digits", names::escaped(text));
                    return Err(FetchError::Setting { name: "sha256", problem });
                }
            },
        };
        Ok(Self { size: expected.size, digest })
    }

    fn fits(&self, about: &About) -> bool {
        self.size.is_none_or(|size| size == about.size)
            && self.digest.as_ref().is_none_or(|digest| digest.hex() == about.sha256)
    }
}

/// What is known of a file in the cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct About {
    url: String,
    size: u64,
    sha256: String,
    #[serde(default)]
    validator: Validator,
}

/// Where the file of a URL is in the cache, and what belongs to it.
struct Place {
    file: PathBuf,
    about: PathBuf,
    lock: PathBuf,
    staging: PathBuf,
    record: PathBuf,
}

impl Place {
    fn new(cache: &Path, url: &Url) -> Self {
        let (folder, key) = (cache.join("downloads"), digest::sha256_of_text(url.as_str()));
        let key = &key[..32];
        let last = url.path_segments().and_then(|mut parts| parts.next_back()).unwrap_or_default();
        // Escapes stay as they are: what they stand for may be no name.
        let name = if names::check_file(last).is_ok() { last } else { "file" };
        let beside = |ending: &str| folder.join(format!("{key}.{ending}"));
        Self {
            file: folder.join(key).join(name),
            about: beside("json"),
            lock: beside("lock"),
            staging: beside("incomplete"),
            record: beside("ranges"),
        }
    }

    /// What is known of the file, if it is there.
    fn about(&self) -> Option<About> {
        let about: About = serde_json::from_slice(&fs::read(&self.about).ok()?).ok()?;
        Some(about).filter(|about| disk::length(&self.file) == Some(about.size))
    }

    fn fetched(&self, about: &About, expected: &Wanted) -> FetchedUrl {
        FetchedUrl {
            path: self.file.clone(),
            size: about.size,
            sha256: about.sha256.clone(),
            completeness: match expected.digest {
                Some(_) => Completeness::Checked,
                None => Completeness::Unchecked,
            },
        }
    }
}
