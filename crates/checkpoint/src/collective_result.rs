//! Agreement on failures: a rank that fails reports it to the others instead of
//! leaving them waiting.

use weightloom_gang::{Gang, GangExt};

use crate::error::CheckpointError;

/// Returns this rank's result if all ranks succeeded, and otherwise this rank's
/// error or the errors of the others. Every rank.
pub(crate) fn collective_result<T>(
    gang: &dyn Gang,
    outcome: Result<T, CheckpointError>,
) -> Result<T, CheckpointError> {
    // One number first: messages are exchanged only after a failure.
    let mut failures = [u64::from(outcome.is_err())];
    gang.all_reduce(&mut failures, weightloom_layout::ReduceOp::Sum)?;
    if failures[0] == 0 {
        return outcome;
    }
    let message = outcome.as_ref().err().map(ToString::to_string);
    let all = gang.all_gather_objects(&message)?;
    let failures = all.into_iter().enumerate().filter_map(|(rank, message)| Some((rank, message?)));
    outcome.and_then(|_| Err(CheckpointError::Ranks { failures: failures.collect() }))
}
