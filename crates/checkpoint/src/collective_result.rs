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
    Ok(collective_vote(gang, outcome, Vote::No)?.0)
}

/// A rank's answer to a question that one yes decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    Yes,
    No,
}

/// As [`collective_result`], and whether any rank voted yes. Every rank.
pub(crate) fn collective_vote<T>(
    gang: &dyn Gang,
    outcome: Result<T, CheckpointError>,
    vote: Vote,
) -> Result<(T, Vote), CheckpointError> {
    // One number first, failures low and votes high: messages are exchanged
    // only after a failure.
    let mut counts = [u64::from(outcome.is_err()) + (u64::from(vote == Vote::Yes) << 32)];
    gang.all_reduce(&mut counts, weightloom_layout::ReduceOp::Sum)?;
    if counts[0] & u64::from(u32::MAX) == 0 {
        let vote = if counts[0] == 0 { Vote::No } else { Vote::Yes };
        return outcome.map(|value| (value, vote));
    }
    let message = outcome.as_ref().err().map(ToString::to_string);
    let all = gang.all_gather_objects(&message)?;
    let failures = all.into_iter().enumerate().filter_map(|(rank, message)| Some((rank, message?)));
    outcome.and_then(|_| Err(CheckpointError::Ranks { failures: failures.collect() }))
}
