//! Whether ranks agree on how many elements they exchange.

use crate::call::Transfer;
use crate::error::GangError;

/// A hash of all counts that a rank sends, minus that of all it receives. The sum over
/// ranks is zero if every pair agrees, and otherwise almost surely not.
pub fn count_balance(rank: usize, transfer: &Transfer<'_>) -> u64 {
    let Transfer::Exchange { send_counts, recv_counts, .. } = transfer else { return 0 };
    let mix = |from: usize, to: usize, count: usize| {
        let mut hash = 0x9e37_79b9_7f4a_7c15u64;
        for word in [from as u64, to as u64, count as u64] {
            hash = (hash ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
            hash ^= hash >> 32;
        }
        hash
    };
    let sent = send_counts.iter().enumerate().map(|(to, &count)| mix(rank, to, count));
    let received = recv_counts.iter().enumerate().map(|(from, &count)| mix(from, rank, count));
    let sent = sent.fold(0u64, u64::wrapping_add);
    received.fold(sent, u64::wrapping_sub)
}

/// The pair of ranks that disagree on a count. `rows` are the ranks' send counts, each
/// followed by its receive counts.
pub fn find_count_mismatch(call: &'static str, members: &[usize], rows: &[u64]) -> Option<GangError> {
    let size = members.len();
    let row = |rank: usize| &rows[rank * 2 * size..][..2 * size];
    let mut pairs = (0..size).flat_map(|from| (0..size).map(move |to| (from, to)));
    pairs.find_map(|(from, to)| {
        let (sent, expected) = (row(from)[to] as usize, row(to)[size + from] as usize);
        let (from, to) = (members[from], members[to]);
        (sent != expected).then_some(GangError::CountMismatch { call, from, to, sent, expected })
    })
}
