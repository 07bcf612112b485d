//! From rows to micro-batches.

use weightloom_gang::GangExt;
use weightloom_layout::ReduceOp;

use crate::data::Row;
use crate::engine::{Engine, MicroBatch};
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
) -> Result<Vec<MicroBatch>, TrainError> {
    let longest = |rows: &[Row]| rows.iter().map(|row| row.length).max().unwrap_or(0) as u64;
    let mut lengths: Vec<u64> = all.chunks(rows.max(1)).map(longest).collect();
    engine.gangs.dp.all_reduce(&mut lengths, ReduceOp::Max)?;
    Ok(all
        .chunks(rows.max(1))
        .zip(lengths)
        .map(|(rows, length)| micro_batch(rows, length as usize))
        .collect())
}

fn micro_batch(rows: &[Row], longest: usize) -> MicroBatch {
    let size = rows.first().map_or(0, |row| row.inputs.len());
    let seq_len = longest.next_multiple_of(LENGTH_STEP).clamp(1, size.max(1)).min(size);
    let mut micro = MicroBatch { rows: rows.len(), ..MicroBatch::default() };
    for row in rows {
        micro.inputs.extend(row.inputs[..seq_len].iter().map(|&token| i64::from(token)));
        micro.targets.extend_from_slice(&row.targets[..seq_len]);
    }
    micro
}
