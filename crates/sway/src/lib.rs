//! Judging what a fine-tuning changed.
//!
//! - A [`View`] is one variant of a model: before, after, half of the change,
//!   noise in its place.
//! - A [`Question`] asks one view one thing about one text; an [`Answer`] is
//!   what comes back.
//! - A [`Backend`] answers questions, all at once.
//! - An [`AnswerStore`] holds what was answered. A [`probe`] reads in it; what it does
//!   not find there is asked, and the probe reads again.
//! - A [`Record`] is what a probe found.

mod answer;
mod answer_store;
pub mod attribution;
pub mod autogen;
pub mod backend;
pub mod cache;
mod category;
pub mod convert_adapter;
mod error;
mod judge;
pub mod numbers;
pub mod packs;
pub mod paired;
pub mod probe;
mod question;
pub mod quick_check;
mod record;
pub mod report;
pub mod runner;
pub mod sameness;
pub mod score;
pub mod sections;
mod statistics;
pub mod suite;
mod view;

pub use answer::{Answer, CompletionScore, Distribution, Divergence, Rolling, TokenNames};
pub use answer_store::{AnswerStore, Missing};
pub use backend::{AnswerSink, Backend, Capabilities, Description};
pub use category::Category;
pub use error::{BackendError, QueryError};
pub use judge::{JudgeError, JudgeOptions, PrepareError, PreparedSuite, judge};
pub use question::{Query, Question};
pub use record::{Record, Verdict};
pub use report::Report;
pub use score::Score;
pub use statistics::{Statistics, UnknownStatistics};
pub use suite::Suite;
pub use view::{Real, View};
