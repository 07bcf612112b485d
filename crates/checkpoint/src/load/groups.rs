//! Loads in several steps, for memory that cannot hold everything at once.

use std::ops::Range;

use weightloom_gang::{Gang, GangError, GangExt};
use weightloom_layout::ReduceOp;

/// Splits a list of items with these sizes into consecutive groups, each of at most
/// `budget` bytes unless a single item has more. All ranks get as many groups, so that
/// each group can be one load; the last ones may be empty. Every rank of the gang.
///
/// Ranks that hold parts of the same tensors must pass the same sizes, such as those of
/// the largest parts: a load compares checksums over all parts of a tensor.
///
/// ```
/// use weightloom_checkpoint::load_groups;
/// use weightloom_gang::{GangOptions, solo};
///
/// let alone = solo(GangOptions::default());
/// assert_eq!(load_groups([3, 4, 9, 1], 8, &*alone), Ok(vec![0..2, 2..3, 3..4]));
/// ```
pub fn load_groups(
    sizes: impl IntoIterator<Item = u64>,
    budget: u64,
    gang: &dyn Gang,
) -> Result<Vec<Range<usize>>, GangError> {
    let (mut groups, mut start, mut end, mut bytes) = (Vec::new(), 0, 0, 0u64);
    for size in sizes {
        if end > start && bytes.saturating_add(size) > budget {
            groups.push(start..end);
            (start, bytes) = (end, 0);
        }
        bytes = bytes.saturating_add(size);
        end += 1;
    }
    groups.push(start..end);
    let mut most = [groups.len() as u64];
    gang.all_reduce(&mut most, ReduceOp::Max)?;
    groups.resize(most[0] as usize, end..end);
    Ok(groups)
}
