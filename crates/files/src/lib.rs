//! Atomic writes of files.
//!
//! A reader of the target sees the old contents or the new contents, never a
//! mixture, even if the writer is killed. Writers of the same target do not
//! disturb each other: each has a temporary file with a unique name in the
//! target's folder, and the last one to commit wins.
//!
//! [`write_atomic`] writes bytes that are in memory; [`AtomicFile`] is a
//! [`Write`](std::io::Write) for longer contents.
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

mod atomic;

pub use atomic::{AtomicFile, Durability, sync_folder, write_atomic};
