//! Planning of saves.

use std::borrow::Cow;
use std::fmt;

use weightloom_errors::Hint;
use weightloom_layout::{LayoutError, Region, TilingError};

use super::cache::PlanCaching;
use super::data::PlanDataError;
use super::items::{Metadata, SavePlan, WriteItem};
use crate::fingerprint::Fingerprint;
use crate::state::{Bytes, DeviceReadError, State};

/// The rank that plans, and the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanContext {
    /// The rank.
    pub rank: usize,
    /// How many there are.
    pub world: usize,
}

/// Decides what each rank writes. The [module](super) documents the order of
/// calls and has an example.
///
/// A save trusts no planner. It fails with a
/// [`PlannerError`](super::PlannerError) on every rank, and an older checkpoint
/// stays as it is, if a planner panics, returns too few or too many plans,
/// leaves out an entry, contradicts its own metadata, or does not have every
/// element written exactly once.
pub trait SavePlanner: Send {
    /// Its name, for errors and registries.
    fn name(&self) -> &str;

    /// Inspects the state. Every rank.
    fn configure(&mut self, state: &State<'_>, context: PlanContext) -> Result<(), PlanError>;

    /// A digest of everything that the plan depends on, if every rank can derive
    /// it alone; `None` if the ranks must gather their plans. Every rank.
    fn derivable(&self) -> Option<Fingerprint> {
        None
    }

    /// This rank's plan, derived alone. Called if all ranks returned the same
    /// digest.
    fn derived_plan(&mut self) -> Result<(SavePlan, Metadata), PlanError> {
        Err(PlanError::Refused { reason: "it has a digest, but derives no plans".to_owned() })
    }

    /// Everything that this rank holds, replicas included. Every rank.
    fn local_plan(&mut self) -> Result<SavePlan, PlanError>;

    /// The plan of every rank, from the local plans. Every rank, with the same
    /// result.
    fn global_plan(&mut self, plans: Vec<SavePlan>) -> Result<(Vec<SavePlan>, Metadata), PlanError>;

    /// Whether gathered plans may be kept for later saves. Every rank.
    fn caching(&self) -> PlanCaching {
        PlanCaching::default()
    }

    /// Makes last changes to this rank's plan. Every rank, for kept plans too.
    fn finalize(&mut self, plan: SavePlan) -> Result<SavePlan, PlanError> {
        Ok(plan)
    }

    /// The name that an entry of the state is saved under; `None` if it is left
    /// out on purpose. An entry that is left out otherwise is an error.
    fn saved_name<'n>(&self, name: &'n str) -> Option<Cow<'n, str>> {
        Some(Cow::Borrowed(name))
    }

    /// The bytes of an item, row-major. Every rank, once for each of its items.
    fn data<'s>(&self, state: &'s State<'_>, item: &WriteItem) -> Result<Bytes<'s>, PlanError>;
}

/// Why a save cannot be planned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum PlanError {
    #[error("ranks disagree on `{name}`: {}", Versions(versions))]
    Disagreement { name: String, versions: Vec<Version> },
    #[error("cannot assemble `{name}` from the ranks' shards: {problem}")]
    Tiling { name: String, problem: TilingError },
    #[error("cannot save `{name}` in {layout}: its values are partial sums")]
    Pending { name: String, layout: String },
    #[error("cannot lay out `{name}`: {problem}")]
    Layout { name: String, problem: LayoutError },
    #[error("rank {rank} holds {found} bytes of `{name}`, but its shard {region} has {expected}")]
    Length { name: String, rank: usize, region: Region, expected: usize, found: usize },
    #[error("the layout of `{name}` includes rank {rank}, but there are {world} ranks")]
    NoSuchRank { name: String, rank: usize, world: usize },
    #[error("rank {rank} plans another redistribution of `{name}` than the ranks before it")]
    Redistributions { name: String, rank: usize },
    #[error("planned writes to `{file}` overlap at byte {offset}")]
    Overlap { file: String, offset: u64 },
    #[error("cannot save `{name}`: it is planned, but missing from the state")]
    NoSuchItem { name: String },
    #[error("cannot save {wanted} of `{name}`: rank {rank} holds {held}")]
    NotHeld { name: String, rank: usize, wanted: Region, held: Region },
    #[error(transparent)]
    Data(#[from] PlanDataError),
    /// For any other reason of a planner; errors name the planner.
    #[error("the planner refused: {reason}")]
    Refused { reason: String },
    #[error(transparent)]
    Device(#[from] DeviceReadError),
    #[error("the planner was not configured")]
    NotConfigured,
}

impl Hint for PlanError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Disagreement { .. } => {
                Some("give values that differ between ranks different names, such as `rng.rank3`".to_owned())
            }
            Self::Pending { .. } => Some("redistribute it to a layout without partial sums first".to_owned()),
            Self::NoSuchRank { .. } => Some("save from the ranks that the mesh was made for".to_owned()),
            Self::Layout { problem, .. } => problem.hint(),
            _ => None,
        }
    }
}

/// One version of an entry on which ranks disagree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Its description.
    pub what: String,
    /// The ranks that have it.
    pub ranks: Vec<usize>,
}

struct Versions<'a>(&'a [Version]);

impl fmt::Display for Versions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, version) in self.0.iter().enumerate() {
            let shown: Vec<String> = version.ranks.iter().take(8).map(ToString::to_string).collect();
            let more = match version.ranks.len().saturating_sub(8) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let comma = if number == 0 { "" } else { "; " };
            write!(f, "{comma}{} on rank {}{more}", version.what, shown.join(", "))?;
        }
        Ok(())
    }
}
