//! From rows to what a rank computes at a time.

use weightloom_gang::GangExt;
use weightloom_layout::ReduceOp;

use crate::data::Row;
use crate::engine::{Engine, MicroBatch};
use crate::error::TrainError;

/// Lengths are rounded up to this, so that few shapes occur and tensor-parallel
/// ranks can share positions.
const STEP: usize = 64;

/// The micro-batches of this rank's rows. What no row of any rank reaches is
/// cut off. Every rank.
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
    let time = longest.next_multiple_of(STEP).clamp(1, size.max(1)).min(size);
    let mut micro = MicroBatch { rows: rows.len(), ..MicroBatch::default() };
    for row in rows {
        micro.inputs.extend(row.inputs[..time].iter().map(|&token| i64::from(token)));
        micro.targets.extend_from_slice(&row.targets[..time]);
    }
    micro
}
