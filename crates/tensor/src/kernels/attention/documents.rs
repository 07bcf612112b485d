//! Documents that share a row.
//!
//! Each document is computed as if it were alone in a row: its blocks of queries
//! and keys begin with it. So its results have the same bits wherever it is
//! packed, and pairs of documents cost nothing.

use super::{Geometry, KeyLimit, Range};
use crate::error::{Result, TensorError};

/// The queries and keys of a document, in positions of its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DocumentSpan {
    pub(super) queries: Range,
    pub(super) keys: Range,
}

/// The documents of each row.
pub(super) struct Documents {
    rows: Vec<Vec<DocumentSpan>>,
}

impl Documents {
    pub(super) fn new(limit: KeyLimit<'_>, geometry: &Geometry) -> Result<Self> {
        let Geometry { batch, queries, keys, .. } = *geometry;
        let KeyLimit::Documents(starts) = limit else {
            let whole = vec![DocumentSpan { queries: 0..queries, keys: 0..keys }];
            return Ok(Self { rows: vec![whole; batch] });
        };
        let starts = starts.elements::<i64>("attention")?;
        let rows =
            (0..batch).map(|row| spans(&starts[row * keys..(row + 1) * keys])).collect::<Result<_>>()?;
        Ok(Self { rows })
    }

    /// The documents of a row, in order.
    pub(super) fn of(&self, row: usize) -> &[DocumentSpan] {
        &self.rows[row]
    }
}

/// Checks document starts, `[batch, keys]`.
pub(crate) fn check_documents(starts: &[i64], geometry: &Geometry) -> Result<()> {
    starts.chunks(geometry.keys.max(1)).try_for_each(|row| spans(row).map(|_| ()))
}

/// The documents of a row, from the first position of each position's document.
fn spans(starts: &[i64]) -> Result<Vec<DocumentSpan>> {
    let mut spans: Vec<DocumentSpan> = Vec::new();
    let mut first = 0;
    for (position, &start) in starts.iter().enumerate() {
        if position > 0 && start == first as i64 {
            continue;
        }
        if start != position as i64 {
            let rows = starts.len();
            return Err(TensorError::Index { op: "attention", index: start, position, rows });
        }
        if position > 0 {
            spans.push(DocumentSpan { queries: first..position, keys: first..position });
        }
        first = position;
    }
    if !starts.is_empty() {
        spans.push(DocumentSpan { queries: first..starts.len(), keys: first..starts.len() });
    }
    Ok(spans)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_reaches_to_the_start_of_the_next() {
        let ranges = |starts: &[i64]| {
            spans(starts).map(|spans| spans.into_iter().map(|span| span.keys).collect::<Vec<_>>())
        };
        assert_eq!(ranges(&[0, 0, 2, 3, 3]), Ok(vec![0..2, 2..3, 3..5]));
        assert_eq!(ranges(&[0]), Ok(vec![0..1]));
        assert_eq!(ranges(&[]), Ok(vec![]));
        for (starts, index, position) in [
            (vec![1, 1], 1, 0),
            (vec![0, 0, 1], 1, 2),
            (vec![0, 5], 5, 1),
            (vec![0, 1, 0], 0, 2),
            (vec![-1], -1, 0),
        ] {
            let rows = starts.len();
            assert_eq!(ranges(&starts), Err(TensorError::Index { op: "attention", index, position, rows }));
        }
    }
}
