//! Downloads of single files, with their own cache:
//!
//! ```text
//! downloads/<hash of the URL>/<name>   the file
//! downloads/<hash of the URL>.json     size, hash and version
//! downloads/<hash of the URL>.lock
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use reqwest::Url;
use serde::{Deserialize, Serialize};
use weightloom_http::redact_url;

use super::address;
use super::digest::{self, Digest};
use super::disk;
use super::error::FetchError;
use super::lock::FileLock;
use super::names;
use super::network::{Network, Subject};
use super::observer::FetchObserver;
use super::repo::{Completeness, on_own_thread};
use super::response::Validator;
use super::settings::{FetchSettings, NetworkAccess};
use super::staging::Identity;
use super::transfer::{Job, Transferred, transfer};

/// Properties of a file that are known beforehand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// Length in bytes.
    pub size: Option<u64>,
    /// SHA-256, in hex digits.
    pub sha256: Option<String>,
}

/// A downloaded file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FetchedUrl {
    /// Path in the cache.
    pub path: PathBuf,
    /// Length in bytes.
    pub size: u64,
    /// SHA-256, in hex digits.
    pub sha256: String,
    /// Verified, if its hash was known beforehand.
    pub completeness: Completeness,
}

/// Downloads a file into the cache.
///
/// A cached file with the expected hash costs no request. Otherwise the server
/// is asked whether the file has changed.
pub fn fetch_url(
    settings: &FetchSettings,
    url: &str,
    expected: &Expected,
    observer: &dyn FetchObserver,
) -> Result<FetchedUrl, FetchError> {
    let mut url = address::parse(url)?;
    url.set_fragment(None);
    let expected = CheckedExpectation::new(expected)?;
    let entry = CacheEntry::new(&settings.url_cache, &url);
    let before = entry.metadata().filter(|metadata| expected.fits(metadata));
    match &before {
        Some(metadata) if expected.digest.is_some() || settings.network == NetworkAccess::Offline => {
            return Ok(entry.fetched(metadata, &expected));
        }
        None if settings.network == NetworkAccess::Offline => {
            return Err(FetchError::NotCached { what: redact_url(&url), cached: Vec::new() });
        }
        _ => {}
    }
    let name = redact_url(&url);
    let _lock = FileLock::take(&entry.lock, &name, observer)?;
    let metadata = entry.metadata().filter(|metadata| expected.fits(metadata));
    if let Some(metadata) = metadata.as_ref().filter(|_| expected.digest.is_some() || metadata != before) {
        // Another process has just downloaded it.
        return Ok(entry.fetched(metadata, &expected));
    }
    let job = Job {
        subject: Subject::Web { url: &name },
        url,
        size: expected.size,
        digest: expected.digest.clone(),
        staging: entry.staging.clone(),
        record: entry.record.clone(),
        identity: Identity::Version,
        unless: metadata.as_ref().map(|metadata| metadata.validator.clone()).filter(Validator::is_known),
    };
    let transferred = on_own_thread(|| transfer(&Network::open(settings)?, &job, observer))?;
    let metadata = match (transferred, metadata) {
        (Transferred::Complete { staging, digest }, _) => {
            let size = disk::length(staging.path()).unwrap_or(0);
            let sha256 = digest.hex().to_owned();
            let metadata = UrlMetadata { url: name.clone(), size, sha256, validator: staging.validator() };
            // The old metadata must not describe the new file.
            disk::remove(&entry.metadata)?;
            staging.finish(&entry.file)?;
            disk::write_atomic(&entry.metadata, &serde_json::to_vec_pretty(&metadata).unwrap_or_default())?;
            observer.finished(&name);
            metadata
        }
        (Transferred::Unchanged, Some(metadata)) => metadata,
        (Transferred::Unchanged, None) => return Err(FetchError::NotFound { url: name }),
    };
    Ok(entry.fetched(&metadata, &expected))
}

/// [`Expected`] with a parsed hash.
struct CheckedExpectation {
    size: Option<u64>,
    digest: Option<Digest>,
}

impl CheckedExpectation {
    fn new(expected: &Expected) -> Result<Self, FetchError> {
        let digest = match &expected.sha256 {
            None => None,
            Some(text) => match Digest::from_hex(text) {
                Some(digest @ Digest::Sha256(_)) => Some(digest),
                _ => {
                    let problem = format!("`{}` is not 64 hex digits", names::escape(text));
                    return Err(FetchError::Setting { name: "sha256", problem });
                }
            },
        };
        Ok(Self { size: expected.size, digest })
    }

    fn fits(&self, metadata: &UrlMetadata) -> bool {
        self.size.is_none_or(|size| size == metadata.size)
            && self.digest.as_ref().is_none_or(|digest| digest.hex() == metadata.sha256)
    }
}

/// Metadata of a cached file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct UrlMetadata {
    url: String,
    size: u64,
    sha256: String,
    #[serde(default)]
    validator: Validator,
}

/// Paths of a URL in the cache.
struct CacheEntry {
    file: PathBuf,
    metadata: PathBuf,
    lock: PathBuf,
    staging: PathBuf,
    record: PathBuf,
}

impl CacheEntry {
    fn new(cache: &Path, url: &Url) -> Self {
        let (folder, key) = (cache.join("downloads"), digest::sha256_of_text(url.as_str()));
        let key = &key[..32];
        let last = url.path_segments().and_then(|mut parts| parts.next_back()).unwrap_or_default();
        // Escapes stay: decoded, they may not be a file name.
        let name = if names::check_file(last).is_ok() { last } else { "file" };
        let beside = |ending: &str| folder.join(format!("{key}.{ending}"));
        Self {
            file: folder.join(key).join(name),
            metadata: beside("json"),
            lock: beside("lock"),
            staging: beside("incomplete"),
            record: beside("ranges"),
        }
    }

    /// The metadata of the file, if the file exists.
    fn metadata(&self) -> Option<UrlMetadata> {
        let metadata: UrlMetadata = serde_json::from_slice(&fs::read(&self.metadata).ok()?).ok()?;
        Some(metadata).filter(|metadata| disk::length(&self.file) == Some(metadata.size))
    }

    fn fetched(&self, metadata: &UrlMetadata, expected: &CheckedExpectation) -> FetchedUrl {
        FetchedUrl {
            path: self.file.clone(),
            size: metadata.size,
            sha256: metadata.sha256.clone(),
            completeness: match expected.digest {
                Some(_) => Completeness::Checked,
                None => Completeness::Unchecked,
            },
        }
    }
}
