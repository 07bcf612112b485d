//! A bucket with a prefix: requests, versions of files, and errors.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};
use rustc_hash::FxHashMap;
use weightloom_http::GaveUp;

use super::super::{Service, StorageError, check_name};
use super::options::ObjectOptions;
use super::watch::{Failure, watch};
use crate::storage::RemoteProblem;

/// A prefix in a bucket.
pub(super) struct Bucket {
    pub(super) store: Arc<dyn ObjectStore>,
    /// The same store for multipart uploads; `None` for web servers.
    pub(super) parts: Option<Arc<dyn MultipartStore>>,
    pub(super) service: Service,
    pub(super) prefix: Path,
    /// The URL, without secrets.
    pub(super) shown: String,
    pub(super) options: ObjectOptions,
    /// Versions of the files read so far, so that two are never mixed.
    versions: Mutex<FxHashMap<String, Version>>,
}

/// Identifies a version of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    tag: Option<String>,
    length: u64,
}

impl Version {
    pub(super) fn of(meta: &ObjectMeta) -> Self {
        Self { tag: meta.e_tag.clone(), length: meta.size }
    }
}

/// Whether a file is still the recorded version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sameness {
    Same,
    Changed,
}

// By hand: clients print their settings.
impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bucket")
            .field("url", &self.shown)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Bucket {
    pub(super) fn new(
        store: Arc<dyn ObjectStore>,
        parts: Option<Arc<dyn MultipartStore>>,
        service: Service,
        prefix: Path,
        shown: String,
        options: ObjectOptions,
    ) -> Self {
        Self { store, parts, service, prefix, shown, options, versions: Mutex::default() }
    }

    /// The key of a file.
    pub(super) fn key(&self, name: &str) -> Result<Path, StorageError> {
        check_name(name)?;
        let key = if self.prefix.is_root() { name.to_owned() } else { format!("{}/{name}", self.prefix) };
        Path::parse(key).map_err(|_| StorageError::Outside { name: name.to_owned() })
    }

    /// Sends a request, with retries.
    pub(super) async fn request<T, F>(&self, mut send: impl FnMut() -> F) -> Result<T, GaveUp<Failure>>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        self.options.retry.run(|| watch(send())).await
    }

    /// Records the version of a file.
    pub(super) fn record_version(&self, name: &str, meta: &ObjectMeta) {
        let mut versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        versions.insert(name.to_owned(), Version::of(meta));
    }

    /// Compares a file with its recorded version; records the first one.
    pub(super) fn compare_version(&self, name: &str, meta: &ObjectMeta) -> Sameness {
        let mut versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        let version = Version::of(meta);
        match versions.get(name) {
            Some(recorded) if *recorded != version => Sameness::Changed,
            Some(_) => Sameness::Same,
            None => {
                versions.insert(name.to_owned(), version);
                Sameness::Same
            }
        }
    }

    pub(super) fn forget_version(&self, name: &str) {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// The error of a request for a file that should exist.
    pub(super) fn failed_on(&self, action: &'static str, name: &str, ended: GaveUp<Failure>) -> StorageError {
        if is_missing_file(&ended) {
            return StorageError::Missing { file: name.to_owned(), location: format!("`{}`", self.shown) };
        }
        self.failed(action, name, ended)
    }

    /// The error of a request that is not sent again.
    pub(super) fn failed(&self, action: &'static str, file: &str, ended: GaveUp<Failure>) -> StorageError {
        let (file, service) = (file.to_owned(), self.service);
        match ended {
            GaveUp::Permanent(Failure { fault, message, .. }) => {
                StorageError::Remote { action, file, service, fault, message }
            }
            GaveUp::Exhausted { cause: Failure { fault, message, .. }, attempts }
            | GaveUp::RetryAfter { cause: Failure { fault, message, .. }, attempts, .. } => {
                StorageError::GaveUp { action, file, service, attempts, fault, message }
            }
        }
    }
}

/// Whether the bucket exists but the file does not.
pub(super) fn is_missing_file(ended: &GaveUp<Failure>) -> bool {
    let GaveUp::Permanent(failure) = ended else { return false };
    let no_bucket = matches!(failure.code.as_str(), "NoSuchBucket" | "ContainerNotFound");
    failure.fault == RemoteProblem::Status(404) && !no_bucket
}
