//! Redistribution before a save, so that ranks write long runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use weightloom_gang::{Gang, Redistributor};
use weightloom_layout::{DType, Plan, Prices, plan};

use crate::collective_result;
use crate::error::CheckpointError;
use crate::plan::{PlanError, Redistribution, SavePlan};
use crate::state::{LeafValue, State};

/// Tensors in the layout that they are written from, by name.
pub(super) type Redistributed = BTreeMap<String, Vec<u8>>;

/// Carries out the plan's redistributions and keeps the tensors that this rank
/// writes. Every rank.
pub(super) fn redistribute(
    plan: &SavePlan,
    state: &State<'_>,
    gang: &Arc<dyn Gang>,
) -> Result<Redistributed, CheckpointError> {
    let mut redistributed = Redistributed::new();
    if plan.redistributions.is_empty() {
        return Ok(redistributed);
    }
    // Failures of a single rank must happen before the first collective.
    let moves: Result<Vec<PlannedMove<'_>>, CheckpointError> =
        plan.redistributions.iter().map(|step| PlannedMove::new(step, state, gang.rank())).collect();
    let moves = collective_result(&**gang, moves)?;
    let mut redistributor = Redistributor::new(Arc::clone(gang));
    for planned in moves {
        let Some(bytes) = planned.run(&mut redistributor)? else { continue };
        if plan.items.iter().any(|item| item.index.name == planned.name) {
            redistributed.insert(planned.name.to_owned(), bytes);
        }
    }
    Ok(redistributed)
}

/// One redistribution, ready to run.
struct PlannedMove<'a> {
    name: &'a str,
    plan: Plan,
    /// This rank's shard; `None` if the rank is outside the mesh.
    bytes: Option<&'a [u8]>,
}

impl<'a> PlannedMove<'a> {
    fn new(step: &'a Redistribution, state: &'a State<'_>, rank: usize) -> Result<Self, CheckpointError> {
        let name = step.name.as_str();
        let failed = |message: String| CheckpointError::Redistribute { name: name.to_owned(), message };
        // Only bits move, so any dtype of the same width serves.
        let bits = match step.dtype.size() {
            1 => DType::U8,
            2 => DType::U16,
            4 => DType::U32,
            _ => DType::U64,
        };
        let plan = plan(step.from, step.to, &step.shape, bits, Prices::default())
            .map_err(|error| failed(error.to_string()))?;
        let bytes = match (state.leaves().get(name).map(|leaf| &leaf.value), step.from.mesh().position(rank))
        {
            (Some(LeafValue::Tensor(tensor)), Ok(_)) => Some(&*tensor.bytes),
            (_, Err(_)) => None,
            _ => return Err(PlanError::NoSuchItem { name: name.to_owned() }.into()),
        };
        Ok(Self { name, plan, bytes })
    }

    fn run(&self, redistributor: &mut Redistributor) -> Result<Option<Vec<u8>>, CheckpointError> {
        let Some(bytes) = self.bytes else { return Ok(None) };
        macro_rules! moved {
            ($type:ty) => {{
                let local: Vec<$type> = bytemuck::pod_collect_to_vec(bytes);
                let moved = redistributor.run(&self.plan, local).map_err(|error| {
                    CheckpointError::Redistribute { name: self.name.to_owned(), message: error.to_string() }
                })?;
                bytemuck::cast_slice(&moved).to_vec()
            }};
        }
        Ok(Some(match self.plan.dtype().size() {
            1 => moved!(u8),
            2 => moved!(u16),
            4 => moved!(u32),
            _ => moved!(u64),
        }))
    }
}
