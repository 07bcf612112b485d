//! Training data: from files to rows of tokens.
//!
//! - Files are scanned once for documents, which are read when needed, so memory
//!   does not grow with file sizes.
//! - A document becomes tokens with a loss mask.
//! - Seed and epoch determine the order of documents, and the order determines
//!   the rows. Every rank walks the same stream of rows and takes its own, so
//!   rows do not depend on the number of ranks.
//! - A [`DataState`] is a position in the stream. A run resumes from it with any
//!   number of ranks, if the data is unchanged.
//!
//! [`Loader`] does all of this; [`Prefetched`] prepares batches on a thread.

mod block;
mod chat;
mod compression;
mod conversation;
mod count;
mod digest;
mod documents;
mod dummy;
mod efficiency;
mod error;
mod evaluation;
mod example;
mod format;
mod formatting;
mod hf_dataset;
mod json_array;
mod lines;
mod loader;
mod mixture;
mod order;
mod origins;
mod parquet;
mod parts;
mod paths;
mod pieces;
mod preference;
mod prefetch;
mod record;
mod row;
mod sample;
mod scan;
mod state;
mod status;
mod stream;
mod summary;
mod table;
#[cfg(test)]
mod tests;
mod unpacked;

pub use count::{Count, Measure, Progress};
pub use documents::{DataSize, PromptStyle};
pub use efficiency::PackingEfficiency;
pub use error::{DataError, FileChange};
pub use example::{Example, Passage, SecondSequence};
pub use format::{DataFormats, RecordFormat};
pub(crate) use hf_dataset::{Purpose, card_patterns};
pub use loader::{DataSettings, Loader};
pub use origins::BatchDocuments;
pub use parquet::ParquetError;
#[doc(hidden)]
pub use parquet::check_parquet;
pub use preference::{Completion, LabelledCompletion, Preference, Supervision};
pub use prefetch::Prefetched;
pub use record::Content as Document;
pub use row::{Batch, PairKind, Row, RowPair};
pub use state::{DataState, Dataset, FileFingerprint, Position};
pub use status::{DocumentStatus, DropCounts, DropReason};
pub use stream::Epochs;
pub use summary::{DataSummary, DocumentsRead, DroppedDocuments, LengthBin, LengthHistogram, SurveyPart};
pub use weightloom_nn::IGNORED;
