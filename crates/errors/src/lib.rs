//! Shared parts of error types.
//!
//! An error's `Display` states what is wrong, with its operands. [`Hint`]
//! states what to change. A terminal prints the two on separate lines, and a
//! program matches on the error without parsing advice.
//!
//! ```
//! use weightloom_errors::{Hint, did_you_mean, nearest};
//!
//! #[derive(Debug, thiserror::Error)]
//! #[error("unknown optimizer `{name}`")]
//! struct UnknownOptimizer {
//!     name: String,
//!     near: Option<String>,
//! }
//!
//! impl Hint for UnknownOptimizer {
//!     fn hint(&self) -> Option<String> {
//!         did_you_mean(self.near.as_deref())
//!     }
//! }
//!
//! let near = nearest("adamv", ["adamw", "sgd"]).map(str::to_owned);
//! let error = UnknownOptimizer { name: "adamv".to_owned(), near };
//! assert_eq!(error.to_string(), "unknown optimizer `adamv`");
//! assert_eq!(error.hint().as_deref(), Some("did you mean `adamw`?"));
//! ```

#![forbid(unsafe_code)]

mod file;
mod location;
mod names;
mod panics;

pub use file::FileError;
pub use location::SourceLocation;
pub use names::{did_you_mean, name_list, nearest};
pub use panics::{Panicked, caught, panic_message};

/// An error that suggests a fix.
pub trait Hint {
    /// The fix, as an imperative clause without a final period.
    fn hint(&self) -> Option<String>;
}
