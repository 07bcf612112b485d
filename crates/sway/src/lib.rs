//! Judges what fine-tuning changed, by asking a model before and after.
//!
//! [`judge`] runs a [`Suite`] of probes and returns a [`Report`]; see its example.
//!
//! - A [`View`] is one variant of a model: the base, the fine-tuned model, the
//!   base with a scaled adapter, or with noise in place of the adapter.
//! - A [`Prompt`] is plain text, or the messages of a [`chat`].
//! - A [`Question`] asks one view for one measurement; a [`Backend`] answers
//!   questions in batches.
//! - An [`AnswerStore`] holds the answers. A [`probe`] looks them up; what is
//!   missing is asked, and the probe runs again.
//! - A [`Record`] is the result of one probe.

#![forbid(unsafe_code)]

mod answer;
mod answer_store;
pub mod archive;
pub mod attribution;
pub mod autogen;
pub mod backend;
pub mod cache;
mod category;
pub mod chat;
pub mod convert_adapter;
mod error;
mod extensions;
mod judge;
mod locate;
pub mod mine;
pub mod numbers;
pub mod packs;
pub mod paired;
pub mod probe;
mod prompt;
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
pub mod training_health;
mod verdict;
mod view;
pub mod watch;

pub use answer::{Answer, CompletionScore, Distribution, Divergence, Rolling, TokenNames};
pub use answer_store::{AnswerStore, Missing};
pub use backend::{AnswerSink, Backend, Capabilities, Description};
pub use category::Category;
pub use error::{BackendError, QueryError};
pub use extensions::Extensions;
pub use judge::{JudgeError, JudgeOptions, PrepareError, PreparedSuite, judge};
pub use locate::{LocateModelError, LocatedModels};
pub use prompt::{ChatMessage, Prompt, Role};
pub use question::{Query, Question};
pub use record::{ProbeVerdict, Record};
pub use report::Report;
pub use score::Score;
pub use statistics::{Statistics, UnknownStatistics};
pub use suite::Suite;
pub use verdict::{AnsweredQuestion, Aspect, Conclusion, Decision, Grade, Verdict};
pub use view::{Real, View};
