//! Downloads and their caches.
//!
//! [`fetch_repo`] downloads files of a model or a dataset on the Hugging Face hub into the
//! cache that Python's `huggingface_hub` uses; [`fetch_url`] downloads one file
//! from any web server into a separate cache. Both take the same steps:
//!
//! 1. Use what is in the cache.
//! 2. Take the lock of the file. A second process waits without a time limit
//!    and uses what the first one downloaded. The operating system releases the
//!    locks of a process that dies.
//! 3. Download into a staging file, in parallel ranges. A record beside it
//!    lists the ranges on disk, so that a killed download resumes there.
//! 4. Compare size and hash, then rename the file into the cache.
//!
//! Nothing here reads the environment: [`FetchSettings::from_lookup`] takes a
//! function that does.

mod address;
mod byte_ranges;
mod choice;
mod digest;
mod disk;
mod error;
mod listing;
mod lock;
mod marker;
mod names;
mod network;
mod observer;
mod offline;
mod repo;
mod repo_cache;
mod response;
mod settings;
mod staging;
mod transfer;
mod url;

pub use choice::FileChoice;
pub(crate) use digest::sha256_of_file;
pub use error::{FetchError, TokenUse, TransferError};
#[doc(hidden)]
pub use listing::check_listing;
pub use observer::{FetchObserver, LockWait};
pub use repo::{Completeness, FetchedFile, FetchedRepo, HfRepo, RepoKind, fetch_repo};
pub use settings::{CacheCheck, FetchSettings, NetworkAccess};
pub use url::{Expected, FetchedUrl, fetch_url};
pub use weightloom_http::{MinSpeed, Proxies, RetryPolicy, Secret};
