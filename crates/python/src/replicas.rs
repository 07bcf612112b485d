//! Whether ranks hold the same of what nobody said how to divide.

use std::collections::BTreeMap;

use weightloom::checkpoint::plan::{PlanError, Version};
use weightloom::checkpoint::{CheckpointError, ElementSum};
use weightloom::gang::{Gang, GangExt};

/// A sum over the bytes of a tensor, and their number.
type Digest = (u64, u64, usize);

/// Compares tensors that several ranks hold whole, such as the state of a generator of
/// random numbers: only one of them would be saved. Every rank of the gang calls this.
pub(crate) fn check_replicas(held: &[(&str, &[u8])], gang: &dyn Gang) -> Result<(), CheckpointError> {
    if gang.size() == 1 {
        return Ok(());
    }
    let digest = |bytes: &[u8]| -> Digest {
        let sum = ElementSum::of_run(1, 0, bytes);
        (sum.low, sum.high, bytes.len())
    };
    let digests: Vec<(String, Digest)> =
        held.iter().map(|(name, bytes)| ((*name).to_owned(), digest(bytes))).collect();
    let mut ranks_of: BTreeMap<String, BTreeMap<Digest, Vec<usize>>> = BTreeMap::new();
    for (rank, digests) in gang.all_gather_objects(&digests)?.into_iter().enumerate() {
        for (name, digest) in digests {
            ranks_of.entry(name).or_default().entry(digest).or_default().push(rank);
        }
    }
    let disputed = ranks_of.into_iter().find(|(_, versions)| versions.len() > 1);
    disputed.map_or(Ok(()), |(name, versions)| {
        let mut versions: Vec<Version> = versions
            .into_iter()
            .map(|(digest, ranks)| Version { what: format!("values #{:08x}", digest.0 as u32), ranks })
            .collect();
        versions.sort_by(|a, b| a.ranks.cmp(&b.ranks));
        Err(CheckpointError::from(PlanError::Disagreement { name, versions }))
    })
}
