//! Mistakes of planners, which may be a user's code.

use weightloom_errors::{Hint, name_list};
use weightloom_layout::{Region, RegionError, TilingError};

use super::load::LoadPlanError;
use super::save::PlanError;

/// A mistake of a planner.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("planner `{planner}` {problem}")]
pub struct PlannerError {
    /// The name of the planner.
    pub planner: String,
    /// What it did.
    pub problem: PlannerProblem,
}

/// What a planner did wrong, or why it refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum PlannerProblem {
    #[error("panicked in `{call}`: {message}")]
    Panicked { call: &'static str, message: String },
    #[error("refused: {reason}")]
    Refused { reason: String },
    #[error("failed: {0}")]
    Save(Box<PlanError>),
    #[error("failed: {0}")]
    Load(Box<LoadPlanError>),
    #[error("returned {found} plans for {expected} ranks")]
    PlanCount { expected: usize, found: usize },
    #[error("planned differently on rank {rank} than on rank 0")]
    Differs { rank: usize },
    #[error("left out {}", name_list(names, 8))]
    Dropped { names: Vec<String> },
    #[error("planned `{name}` twice")]
    Repeated { name: String },
    #[error("planned `{name}`, which its metadata lack")]
    NotInMetadata { name: String },
    #[error("planned `{name}` as {planned}, but its metadata say {described}")]
    Mismatch { name: String, planned: String, described: String },
    #[error("gave offset {offset:?} to the part of `{name}` at {region}")]
    Offset { name: String, offset: Vec<usize>, region: Region },
    #[error("planned an impossible part of `{name}`: {problem}")]
    Outside { name: String, problem: RegionError },
    #[error("supplied {found} bytes for `{name}`, and not {expected}")]
    Length { name: String, expected: u64, found: u64 },
    #[error("did not have every element of `{name}` written exactly once")]
    NotWrittenOnce { name: String },
    #[error("planned to read `{name}`, which the checkpoint lacks")]
    NotStored { name: String },
    #[error("planned to read a tile of `{name}` that the checkpoint lacks")]
    NoTile { name: String },
    #[error("did not fill `{name}` exactly once: {problem}")]
    NotFilledOnce { name: String, problem: TilingError },
}

impl Hint for PlannerError {
    fn hint(&self) -> Option<String> {
        let hint = match &self.problem {
            PlannerProblem::Save(error) => return error.hint(),
            PlannerProblem::PlanCount { .. } => "return one plan for each rank from `global_plan`",
            PlannerProblem::Differs { .. } | PlannerProblem::NotWrittenOnce { .. } => {
                "use planners with the same settings on all ranks"
            }
            PlannerProblem::Dropped { .. } => {
                "plan every entry, or say what is left out or renamed: `SavePlanner::saved_name`, \
                 `LoadPlanner::destinations`"
            }
            PlannerProblem::Length { .. } => "return the bytes of the item's region, not of the whole shard",
            _ => return None,
        };
        Some(hint.to_owned())
    }
}
