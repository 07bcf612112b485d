//! Data: from files to rows that a model is trained on.
//!
//! - Documents are found once and read when they are needed; memory does not
//!   grow with the size of files.
//! - A document becomes tokens, and it is known of each whether it counts.
//! - The order of documents follows from seed and epoch, and rows follow from
//!   the order. Every rank walks through the same stream of rows and takes its
//!   own, so rows do not depend on how many ranks there are.
//! - A place in the stream is a few numbers, [`DataState`]. A run goes on from
//!   it with any number of ranks, if the data are still the same.
//!
//! [`Loader`] is all of this; [`Prefetched`] prepares batches ahead.

mod chat;
mod count;
mod digest;
mod documents;
mod dummy;
mod error;
mod lines;
mod loader;
mod order;
mod paths;
mod prefetch;
mod record;
mod row;
mod sample;
mod scan;
mod state;
mod stream;
#[cfg(test)]
mod tests;

pub use count::{Count, Measure, Progress};
pub use documents::Extent;
pub use error::{DataError, FileChange};
pub use loader::{DataSettings, Loader};
pub use prefetch::Prefetched;
pub use row::{Batch, Row};
pub use sample::Fate;
pub use state::{DataState, Dataset, FileMark, Position};
pub use stream::Epochs;
pub use weightloom_nn::IGNORED;
