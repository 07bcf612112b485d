//! Atomic writes of files and folders.
//!
//! A reader of the target sees the old contents or the new contents, never a
//! mixture, even if the writer is killed. Each writer has a temporary file or
//! folder with a unique name beside the target, and checks before the final
//! rename that it is still the one it wrote.
//!
//! [`write_atomic`] writes bytes that are in memory; [`AtomicFile`] is a
//! [`Write`](std::io::Write) for longer contents. Of several writers of a file
//! the last one to commit wins. Writers that must not overtake each other take
//! a [`TargetLock`]; a [`StagingFolder`] has one, so that a folder has one
//! writer at a time. [`check_free_space`] refuses what cannot fit, before
//! anything is written, and [`read_text`] what has no end.
//!
//! ```
//! use weightloom_files::{Durability, write_atomic};
//!
//! # let folder = tempfile::tempdir().unwrap();
//! let path = folder.path().join("report.json");
//! write_atomic(&path, b"{}", Durability::File)?;
//! assert_eq!(std::fs::read(&path).unwrap(), b"{}");
//! # Ok::<(), weightloom_errors::FileError>(())
//! ```

#![forbid(unsafe_code)]

mod atomic;
mod error;
mod lock;
mod read;
mod space;
mod staging;

pub use atomic::{AtomicFile, Durability, sync_folder, write_atomic};
pub use error::WriteError;
pub use lock::{FileLock, TargetLock};
pub use read::read_text;
pub use space::check_free_space;
pub use staging::{StagingFolder, remove_abandoned_files, remove_abandoned_staging};
