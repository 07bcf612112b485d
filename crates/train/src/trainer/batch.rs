//! From rows to micro-batches.

use weightloom_gang::GangExt;
use weightloom_layout::ReduceOp;

use super::reference::ReferenceLogprobs;
use crate::data::{PairKind, Row, RowPair, Supervision};
use crate::engine::{Engine, MicroBatch, PreferenceRows};
use crate::error::TrainError;

/// Sequence lengths are rounded up to a multiple of this, so that few shapes
/// occur and sequence-parallel ranks can split them.
const LENGTH_STEP: usize = 64;

/// The micro-batches of this rank's rows, without the positions that are padding
/// on all ranks. Called by every rank.
pub(super) fn micro_batches(
    all: &[Row],
    rows: usize,
    engine: &Engine,
    reference: Option<&ReferenceLogprobs>,
) -> Result<Vec<MicroBatch>, TrainError> {
    let micros = || all.chunks(rows.max(1));
    let length = |row: &Row| row.length.max(row.pair.as_ref().map_or(0, |pair| pair.other.length));
    let longest = |rows: &[Row]| rows.iter().map(length).max().unwrap_or(0) as u64;
    let packed = |rows: &[Row]| u64::from(rows.iter().any(Row::is_packed));
    // Ranks run the same operations, so one with packed rows decides for all.
    let mut sizes: Vec<u64> = micros().flat_map(|rows| [longest(rows), packed(rows)]).collect();
    engine.gangs.dp.all_reduce(&mut sizes, ReduceOp::Max)?;
    let made = micros().zip(sizes.chunks_exact(2)).map(|(rows, sizes)| {
        let attention = if sizes[1] > 0 { Attention::Documents } else { Attention::Rows };
        let longest = sizes[0] as usize;
        match engine.supervision() {
            Supervision::Tokens => micro_batch(rows, longest, attention),
            Supervision::Preferences => pairs(rows, longest, reference),
            Supervision::Labels => labelled(rows, longest, reference),
        }
    });
    Ok(made.collect())
}

/// The second sequence of a row; padding has an empty one.
fn second(row: &Row) -> Row {
    let empty = || Row::empty(row.inputs.len(), row.inputs.first().copied().unwrap_or(0));
    row.pair.as_ref().map_or_else(empty, |pair| pair.other.clone())
}

/// What the reference gives the two sequences of each row; zeros for padding.
fn reference_of(rows: &[Row], reference: &ReferenceLogprobs) -> Vec<[f32; 2]> {
    let of = |pair: &RowPair| reference.of(pair.document);
    rows.iter().map(|row| row.pair.as_ref().map_or([0.0; 2], |pair| of(pair))).collect()
}

/// A micro-batch in which chosen and rejected completions alternate.
fn pairs(rows: &[Row], longest: usize, reference: Option<&ReferenceLogprobs>) -> MicroBatch {
    let both: Vec<Row> = rows.iter().flat_map(|row| [row.clone(), second(row)]).collect();
    let reference = reference.map(|reference| reference_of(rows, reference).concat());
    let preferences = PreferenceRows { reference, ..PreferenceRows::default() };
    MicroBatch { preferences: Some(Box::new(preferences)), ..micro_batch(&both, longest, Attention::Rows) }
}

/// A micro-batch of labelled completions, with mismatched ones beside it.
fn labelled(rows: &[Row], longest: usize, reference: Option<&ReferenceLogprobs>) -> MicroBatch {
    let known = reference.map(|reference| reference_of(rows, reference));
    let of_row = |number: usize| known.as_ref().map(|all| all.iter().map(|of| of[number]).collect());
    let others: Vec<Row> = rows.iter().map(second).collect();
    let of_others = PreferenceRows { reference: of_row(1), ..PreferenceRows::default() };
    let mismatched = MicroBatch {
        preferences: Some(Box::new(of_others)),
        ..micro_batch(&others, longest, Attention::Rows)
    };
    let label = |row: &Row| {
        matches!(row.pair.as_deref(), Some(RowPair { kind: PairKind::Mismatched { desirable: true }, .. }))
    };
    let preferences = PreferenceRows {
        labels: rows.iter().map(label).collect(),
        reference: of_row(0),
        mismatched: Some(mismatched),
    };
    MicroBatch { preferences: Some(Box::new(preferences)), ..micro_batch(rows, longest, Attention::Rows) }
}

/// Where tokens attend to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attention {
    /// The whole row before them.
    Rows,
    /// Their own document in the row.
    Documents,
}

fn micro_batch(rows: &[Row], longest: usize, attention: Attention) -> MicroBatch {
    let size = rows.first().map_or(0, |row| row.inputs.len());
    let seq_len = longest.next_multiple_of(LENGTH_STEP).clamp(1, size.max(1)).min(size);
    let mut micro = MicroBatch { rows: rows.len(), ..MicroBatch::default() };
    for row in rows {
        micro.inputs.extend(row.inputs[..seq_len].iter().map(|&token| i64::from(token)));
        micro.targets.extend_from_slice(&row.targets[..seq_len]);
    }
    micro.documents = (attention == Attention::Documents)
        .then(|| rows.iter().flat_map(|row| row.document_starts(seq_len)).collect());
    micro
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(length: usize, starts: &[usize]) -> Row {
        Row { starts: starts.to_vec(), length, ..Row::empty(8, 0) }
    }

    #[test]
    fn packed_rows_name_the_documents_of_their_positions() {
        assert_eq!(row(6, &[0, 2, 5]).document_starts(8), [0, 0, 2, 2, 2, 5, 6, 6]);
        // The row starts inside a document.
        assert_eq!(row(8, &[3]).document_starts(8), [0, 0, 0, 3, 3, 3, 3, 3]);
        assert_eq!(row(8, &[]).document_starts(3), [0, 0, 0]);
        assert_eq!(row(0, &[]).document_starts(3), [0, 0, 0]);
        let packed = micro_batch(&[row(6, &[0, 2]), row(3, &[0])], 6, Attention::Documents);
        assert_eq!(packed.documents.as_deref(), Some(&[0, 0, 2, 2, 2, 2, 6, 6, 0, 0, 0, 3, 3, 3, 3, 3][..]));
        assert_eq!(micro_batch(&[row(6, &[0])], 6, Attention::Rows).documents, None);
    }

    fn pair(kind: PairKind, document: u64) -> Row {
        let other = Row { inputs: vec![9; 8], ..row(5, &[0]) };
        let pair = Some(Box::new(RowPair { kind, document, other }));
        Row { inputs: vec![document as u32 + 1; 8], targets: vec![3; 8], pair, ..row(2, &[0]) }
    }

    #[test]
    fn sequences_of_a_row_stay_together() {
        let reference = ReferenceLogprobs::new(vec![[-1.0, -2.0], [-3.0, -4.0]]);
        let rows = [pair(PairKind::Rejected, 1), pair(PairKind::Rejected, 0), row(0, &[])];
        let micro = pairs(&rows, 5, Some(&reference));
        let first = |number: usize| micro.inputs[number * micro.seq_len()];
        assert_eq!((micro.rows, [0, 1, 2, 3, 4, 5].map(first)), (6, [2, 9, 1, 9, 0, 0]));
        let preferences = micro.preferences.unwrap();
        assert_eq!(preferences.reference.unwrap(), [-3.0, -4.0, -1.0, -2.0, 0.0, 0.0]);
        assert!(preferences.mismatched.is_none() && preferences.labels.is_empty());
        assert_eq!(pairs(&rows, 5, None).preferences.unwrap().reference, None);
    }

    #[test]
    fn mismatched_completions_are_beside_labelled_ones() {
        let reference = ReferenceLogprobs::new(vec![[-1.0, -2.0], [-3.0, -4.0]]);
        let rows = [
            pair(PairKind::Mismatched { desirable: true }, 0),
            pair(PairKind::Mismatched { desirable: false }, 1),
            row(0, &[]),
        ];
        let micro = labelled(&rows, 5, Some(&reference));
        let preferences = micro.preferences.unwrap();
        assert_eq!((micro.rows, preferences.labels), (3, vec![true, false, false]));
        assert_eq!(preferences.reference.unwrap(), [-1.0, -3.0, 0.0]);
        let others = preferences.mismatched.unwrap();
        assert_eq!((others.rows, others.inputs[0]), (3, 9));
        assert_eq!(others.preferences.unwrap().reference.unwrap(), [-2.0, -4.0, 0.0]);
    }

    #[test]
    fn one_document_in_a_row_is_not_packed() {
        assert!(!row(8, &[0]).is_packed() && !row(8, &[]).is_packed() && !row(0, &[]).is_packed());
        assert!(row(8, &[0, 7]).is_packed() && row(8, &[1]).is_packed());
    }
}
