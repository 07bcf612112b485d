//! Failing together: a rank that cannot go on says so, instead of leaving the
//! others to wait for it.

use weightloom_gang::{Gang, GangExt};

use crate::error::CheckpointError;

/// This rank's outcome, if all ranks have one; else this rank's error, or what
/// the others say. Every rank.
pub(crate) fn collective_result<T>(
    gang: &dyn Gang,
    outcome: Result<T, CheckpointError>,
) -> Result<T, CheckpointError> {
    // One number first: text is exchanged only if there is any.
    let mut failures = [u64::from(outcome.is_err())];
    gang.all_reduce(&mut failures, weightloom_layout::ReduceOp::Sum)?;
    if failures[0] == 0 {
        return outcome;
    }
    let said = outcome.as_ref().err().map(ToString::to_string);
    let all = gang.all_gather_objects(&said)?;
    let told = all.into_iter().enumerate().filter_map(|(rank, said)| Some((rank, said?)));
    outcome.and_then(|_| Err(CheckpointError::Ranks { failures: told.collect() }))
}
