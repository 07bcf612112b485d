//! The far end of an object storage: whom to ask, and how to say what went
//! wrong.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};
use rustc_hash::FxHashMap;

use super::super::{Service, StorageError, check_name};
use super::options::ObjectOptions;
use super::patience::{Ended, Patience};
use super::watch::{Failure, Outlook, watch};
use crate::storage::RemoteProblem;

/// A prefix in a bucket.
pub(super) struct Bucket {
    pub(super) store: Arc<dyn ObjectStore>,
    /// The same store as one that takes files in pieces; web servers do not.
    pub(super) parts: Option<Arc<dyn MultipartStore>>,
    pub(super) service: Service,
    pub(super) prefix: Path,
    /// The place, as it may be shown.
    pub(super) shown: String,
    pub(super) options: ObjectOptions,
    /// Which version of a file was seen, so that two are not mixed.
    versions: Mutex<FxHashMap<String, Version>>,
}

/// What tells one version of a file from another.
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

/// Whether a file is still the one that was seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sameness {
    Same,
    Changed,
}

// By hand: clients show their settings.
impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bucket")
            .field("place", &self.shown)
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

    /// Makes a request until it goes well or patience ends.
    pub(super) async fn repeat<T, F>(&self, mut request: impl FnMut() -> F) -> Result<T, Ended>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let mut patience = Patience::new(&self.options);
        loop {
            match watch(request()).await {
                Ok(value) => return Ok(value),
                Err(failure) => patience.after(failure).await?,
            }
        }
    }

    /// Notes the version of a file, whatever it was before.
    pub(super) fn saw(&self, name: &str, meta: &ObjectMeta) {
        let mut versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        versions.insert(name.to_owned(), Version::of(meta));
    }

    /// Whether a file is the one that was seen before, if one was.
    pub(super) fn still(&self, name: &str, meta: &ObjectMeta) -> Sameness {
        let mut versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        let version = Version::of(meta);
        match versions.get(name) {
            Some(seen) if *seen != version => Sameness::Changed,
            Some(_) => Sameness::Same,
            None => {
                versions.insert(name.to_owned(), version);
                Sameness::Same
            }
        }
    }

    pub(super) fn forget(&self, name: &str) {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// The error for a request about one file that was expected to be there.
    pub(super) fn failed_on(&self, action: &'static str, name: &str, ended: Ended) -> StorageError {
        if ended.failure.is_missing_file() {
            return StorageError::Missing { file: name.to_owned(), location: format!("`{}`", self.shown) };
        }
        self.failed(action, name, ended)
    }

    /// The error for a request that will not be made again.
    pub(super) fn failed(&self, action: &'static str, file: &str, ended: Ended) -> StorageError {
        let Ended { failure: Failure { fault, message, outlook, .. }, attempts } = ended;
        let (file, service) = (file.to_owned(), self.service);
        match outlook {
            Outlook::Hopeful => StorageError::GaveUp { action, file, service, attempts, fault, message },
            Outlook::Hopeless => StorageError::Remote { action, file, service, fault, message },
        }
    }
}

impl Failure {
    /// Whether there is no such file, in a bucket that there is.
    pub(super) fn is_missing_file(&self) -> bool {
        let no_bucket = matches!(self.code.as_str(), "NoSuchBucket" | "ContainerNotFound");
        self.fault == RemoteProblem::Status(404) && !no_bucket
    }
}
