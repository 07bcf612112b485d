//! The documents of a batch, for messages.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use super::loader::Loader;
use super::state::Position;

/// Documents that are named.
const NAMED: u64 = 5;

/// The documents of a global batch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BatchDocuments {
    /// File and line of the first ones, in the order of the batch.
    pub names: Vec<String>,
    /// The number of all.
    pub total: u64,
}

impl fmt::Display for BatchDocuments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names.join(", "))?;
        match self.total.saturating_sub(self.names.len() as u64) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl Loader {
    /// The documents with tokens in the rows between two positions; none for dummy
    /// data.
    pub(super) fn documents_between(&self, from: Position, to: Position) -> BatchDocuments {
        let Some(stream) = self.file_stream() else { return BatchDocuments::default() };
        let origin = |document: usize| stream.documents.origin(document).to_string();
        if stream.blocks.is_some() {
            // Rows are not in the order of the documents.
            let mut seen = BTreeSet::new();
            let all: Vec<usize> =
                stream.taken.iter().copied().filter(|document| seen.insert(*document)).collect();
            let names = all.iter().take(NAMED as usize).map(|&document| origin(document));
            return BatchDocuments { names: names.collect(), total: all.len() as u64 };
        }
        let documents = stream.order.len().max(1);
        let number = |at: Position| at.epoch.saturating_mul(documents).saturating_add(at.place);
        let (first, end) = (number(from), number(to).saturating_add(u64::from(to.offset > 0)));
        let total = end.saturating_sub(first);
        let name = |number: u64| origin(stream.order.at(number / documents, number % documents) as usize);
        BatchDocuments { names: (first..first + total.min(NAMED)).map(name).collect(), total }
    }
}
