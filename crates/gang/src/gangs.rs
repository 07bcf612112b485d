//! The gangs of a training run.

use std::sync::Arc;

use weightloom_errors::Hint;
use weightloom_layout::{Mesh, MeshError};

use crate::error::GangError;
use crate::gang::Gang;

/// The degrees of parallelism.
///
/// The data-parallel degree follows from the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GangSizes {
    /// Pipeline stages.
    pub pp: usize,
    /// Tensor-parallel ranks.
    pub tp: usize,
    /// Data-parallel ranks that shard parameters; `None` for all of them. Fewer
    /// is HSDP: the groups are replicas.
    pub sdp: Option<usize>,
}

impl Default for GangSizes {
    fn default() -> Self {
        Self { pp: 1, tp: 1, sdp: None }
    }
}

/// Degrees of parallelism that do not divide the number of ranks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum SizeError {
    #[error("{name} must not be 0")]
    Zero { name: &'static str },
    #[error("{world} ranks cannot be split into pipelines of pp={pp} stages with tp={tp} ranks each")]
    Model { world: usize, pp: usize, tp: usize },
    #[error("dp={dp} data-parallel ranks cannot be split into groups of sdp={sdp}")]
    Shards { dp: usize, sdp: usize },
}

impl Hint for SizeError {
    fn hint(&self) -> Option<String> {
        match *self {
            Self::Zero { name } => Some(format!("set {name} to 1 if it is not used")),
            Self::Model { world, pp, tp } => {
                let fits = |name: &str, other_name: &str, other: usize| {
                    let choices = divisors(world / other);
                    let possible = world.is_multiple_of(other);
                    possible.then(|| format!("with {other_name}={other}, {name} can be {choices}"))
                };
                let parts: Vec<String> =
                    [fits("tp", "pp", pp), fits("pp", "tp", tp)].into_iter().flatten().collect();
                Some(match parts.is_empty() {
                    false => parts.join("; "),
                    true => format!("pp × tp must divide {world}: each can be {}", divisors(world)),
                })
            }
            Self::Shards { dp, .. } => Some(format!("with dp={dp}, sdp can be {}", divisors(dp))),
        }
    }
}

fn divisors(n: usize) -> String {
    let all: Vec<String> = (1..=n).filter(|d| n.is_multiple_of(*d)).map(|d| d.to_string()).collect();
    all.join(", ")
}

/// An error of forming the gangs of a run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum GangsError {
    #[error(transparent)]
    Sizes(#[from] SizeError),
    #[error(transparent)]
    Mesh(#[from] MeshError),
    #[error(transparent)]
    Gang(#[from] GangError),
}

impl Hint for GangsError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Sizes(error) => error.hint(),
            Self::Mesh(error) => error.hint(),
            Self::Gang(error) => error.hint(),
        }
    }
}

impl GangSizes {
    /// The mesh of a world of this size.
    ///
    /// Axes, slowest first: `pp`, `rdp`, `sdp`, `tp`. So tensor-parallel ranks
    /// are neighbours, followed by those that shard parameters; pipeline stages
    /// are farthest apart.
    pub fn mesh(&self, world: usize) -> Result<Mesh, GangsError> {
        let sizes = [("pp", self.pp), ("tp", self.tp), ("sdp", self.sdp.unwrap_or(1)), ("world", world)];
        if let Some(&(name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(SizeError::Zero { name }.into());
        }
        let model = self.pp.checked_mul(self.tp).filter(|model| world.is_multiple_of(*model));
        let dp = world / model.ok_or(SizeError::Model { world, pp: self.pp, tp: self.tp })?;
        let sdp = self.sdp.unwrap_or(dp);
        if !dp.is_multiple_of(sdp) {
            return Err(SizeError::Shards { dp, sdp }.into());
        }
        Ok(Mesh::new(&[("pp", self.pp), ("rdp", dp / sdp), ("sdp", sdp), ("tp", self.tp)])?)
    }
}

/// The gangs that one rank of a training run belongs to.
#[derive(Clone)]
pub struct Gangs {
    /// All ranks.
    pub root: Arc<dyn Gang>,
    /// Ranks with the same part of the model and different data.
    pub dp: Arc<dyn Gang>,
    /// Data-parallel ranks that hold the same shard of each parameter.
    pub rdp: Arc<dyn Gang>,
    /// Data-parallel ranks that shard each parameter.
    pub sdp: Arc<dyn Gang>,
    /// Ranks that split each layer.
    pub tp: Arc<dyn Gang>,
    /// Ranks that hold the stages of one pipeline.
    pub pp: Arc<dyn Gang>,
    mesh: Mesh,
}

impl Gangs {
    /// Forms the gangs. Every rank of `root` calls this with the same sizes.
    pub fn new(root: Arc<dyn Gang>, sizes: &GangSizes) -> Result<Self, GangsError> {
        let mesh = sizes.mesh(root.size())?;
        let gang = |axes: &[&str]| -> Result<Arc<dyn Gang>, GangsError> {
            let ranks: Vec<usize> = mesh.sub_mesh(root.rank(), axes)?.ranks().collect();
            Ok(root.sub_gang(&ranks)?)
        };
        Ok(Self {
            dp: gang(&["rdp", "sdp"])?,
            rdp: gang(&["rdp"])?,
            sdp: gang(&["sdp"])?,
            tp: gang(&["tp"])?,
            pp: gang(&["pp"])?,
            root,
            mesh,
        })
    }

    /// The ranks as a mesh with the axes `pp`, `rdp`, `sdp`, `tp`.
    pub fn mesh(&self) -> Mesh {
        self.mesh
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gang::GangExt;
    use crate::options::GangOptions;
    use crate::threads;

    fn members(sizes: GangSizes, world: usize) -> Vec<[Vec<usize>; 5]> {
        threads::run(world, GangOptions::default(), |root| {
            let gangs = Gangs::new(root, &sizes).unwrap();
            gangs.tp.barrier().unwrap();
            gangs.dp.barrier().unwrap();
            [&gangs.dp, &gangs.rdp, &gangs.sdp, &gangs.tp, &gangs.pp].map(|gang| gang.members().to_vec())
        })
        .unwrap()
    }

    #[test]
    fn eight_ranks_with_tp_2_are_grouped_as_documented() {
        let found = members(GangSizes { tp: 2, ..GangSizes::default() }, 8);
        for (rank, [dp, rdp, sdp, tp, pp]) in found.into_iter().enumerate() {
            assert_eq!(tp, [rank / 2 * 2, rank / 2 * 2 + 1]);
            assert_eq!(dp, [0, 2, 4, 6].map(|r| r + rank % 2));
            assert_eq!(sdp, dp);
            assert_eq!((rdp, pp), (vec![rank], vec![rank]));
        }
    }

    #[test]
    fn hsdp_shards_among_neighbours_and_pp_is_outermost() {
        let found = members(GangSizes { pp: 2, tp: 1, sdp: Some(2) }, 8);
        let [dp, rdp, sdp, tp, pp] = &found[5];
        assert_eq!(*dp, [4, 5, 6, 7]);
        assert_eq!(*sdp, [4, 5]);
        assert_eq!(*rdp, [5, 7]);
        assert_eq!(*tp, [5]);
        assert_eq!(*pp, [1, 5]);
    }

    #[test]
    fn impossible_sizes_name_what_would_fit() {
        let check = |pp, tp, sdp, world, message: &str, hint: &str| {
            let error = GangSizes { pp, tp, sdp }.mesh(world).unwrap_err();
            assert_eq!(error.to_string(), message);
            assert_eq!(error.hint().unwrap(), hint);
        };
        check(
            1,
            3,
            None,
            8,
            "8 ranks cannot be split into pipelines of pp=1 stages with tp=3 ranks each",
            "with pp=1, tp can be 1, 2, 4, 8",
        );
        check(
            2,
            8,
            None,
            8,
            "8 ranks cannot be split into pipelines of pp=2 stages with tp=8 ranks each",
            "with pp=2, tp can be 1, 2, 4; with tp=8, pp can be 1",
        );
        check(
            5,
            3,
            None,
            8,
            "8 ranks cannot be split into pipelines of pp=5 stages with tp=3 ranks each",
            "pp × tp must divide 8: each can be 1, 2, 4, 8",
        );
        check(
            1,
            2,
            Some(3),
            8,
            "dp=4 data-parallel ranks cannot be split into groups of sdp=3",
            "with dp=4, sdp can be 1, 2, 4",
        );
        check(1, 0, None, 8, "tp must not be 0", "set tp to 1 if it is not used");
        check(
            usize::MAX,
            2,
            None,
            8,
            &format!(
                "8 ranks cannot be split into pipelines of pp={} stages with tp=2 ranks each",
                usize::MAX
            ),
            "with tp=2, pp can be 1, 2, 4",
        );
    }

    #[test]
    fn every_combination_of_sizes_is_accepted_or_rejected() {
        for world in 1..=12 {
            for pp in 1..=world + 1 {
                for tp in 1..=world + 1 {
                    for sdp in 1..=world + 1 {
                        let mesh = GangSizes { pp, tp, sdp: Some(sdp) }.mesh(world);
                        let fits = world.is_multiple_of(pp * tp) && (world / (pp * tp)).is_multiple_of(sdp);
                        assert_eq!(mesh.is_ok(), fits, "world {world} pp {pp} tp {tp} sdp {sdp}");
                        assert!(mesh.is_ok_and(|mesh| mesh.len() == world) || !fits);
                    }
                }
            }
        }
    }
}
