//! Files from elsewhere: downloads, caches, locks.
//!
//! [`fetch_repo`] brings the files of a model on the Hugging Face hub into the
//! same cache that Python's `huggingface_hub` uses; [`fetch_url`] brings one
//! file of any web server into a cache of our own. Both go the same way:
//!
//! 1. Look into the cache; what is there is not fetched again.
//! 2. Take the lock of the file. Whoever comes second waits, as long as it
//!    takes, and uses what the first one fetched. The system lets go of locks
//!    of processes that died.
//! 3. Fetch into a staging file, in ranges side by side. A record beside it
//!    says which bytes are there, so a killed download goes on from there.
//! 4. Compare size and hash. Only what agrees is renamed into the cache.
//!
//! Nothing here reads the environment: [`FetchSettings::from_lookup`] takes a
//! function that does.

mod address;
mod answer;
mod choice;
mod date;
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
mod patience;
mod repo;
mod repo_cache;
mod settings;
mod spans;
mod staging;
mod transfer;
mod url;

pub use choice::FileChoice;
pub use error::{Fault, FetchError, TokenUse};
pub use observer::{FetchObserver, LockWait};
pub use repo::{Completeness, FetchedFile, FetchedRepo, HfRepo, fetch_repo};
pub use settings::{Existing, FetchSettings, Proxies, Reach, Token};
pub use url::{Expected, FetchedUrl, fetch_url};
