//! Redistribution before a save, so that ranks write long runs.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use weightloom_gang::{Gang, Redistributor};
use weightloom_layout::{DType, Plan, Prices, Region, Tile, TileMut, copy_region, plan};

use crate::collective_result;
use crate::error::CheckpointError;
use crate::plan::{PlanError, Redistribution, SavePlan, WriteData, WriteItem};
use crate::state::{Bytes, DeviceReadError, LeafValue, State};

/// Tensors in the layout that they are written from, by name.
#[derive(Default)]
pub(super) struct Redistributed {
    shards: BTreeMap<String, Shard>,
    rank: usize,
}

/// A shard after its redistribution.
struct Shard {
    region: Region,
    bytes: Vec<u8>,
}

impl Redistributed {
    /// The bytes of an item; `None` if its tensor was not redistributed.
    pub(super) fn take(&mut self, item: &WriteItem) -> Result<Option<Vec<u8>>, PlanError> {
        let (name, WriteData::Tensor { dtype, region: wanted, .. }) = (&item.index.name, &item.data) else {
            return Ok(None);
        };
        let Some(shard) = self.shards.get_mut(name) else { return Ok(None) };
        if shard.region == *wanted && !shard.bytes.is_empty() {
            return Ok(Some(std::mem::take(&mut shard.bytes)));
        }
        // A planner that splits shards asks for parts of one.
        let mut bytes = vec![0; wanted.volume() * dtype.size()];
        let source = Tile { region: &shard.region, bytes: &shard.bytes };
        let target = &mut TileMut { region: wanted, bytes: &mut bytes };
        match copy_region(wanted, dtype.size(), source, target) {
            Ok(()) => Ok(Some(bytes)),
            Err(_) => Err(PlanError::NotHeld {
                name: name.clone(),
                rank: self.rank,
                wanted: wanted.clone(),
                held: shard.region.clone(),
            }),
        }
    }
}

/// Carries out the plan's redistributions and keeps the tensors that this rank
/// writes. Every rank.
pub(super) fn redistribute(
    plan: &SavePlan,
    state: &State<'_>,
    gang: &Arc<dyn Gang>,
) -> Result<Redistributed, CheckpointError> {
    let mut redistributed = Redistributed { rank: gang.rank(), ..Redistributed::default() };
    if plan.redistributions.is_empty() {
        return Ok(redistributed);
    }
    // Failures of a single rank must happen before the first collective.
    let moves: Result<Vec<PlannedMove<'_>>, CheckpointError> =
        plan.redistributions.iter().map(|step| PlannedMove::new(step, state, gang.rank())).collect();
    let moves = collective_result(&**gang, moves)?;
    let mut redistributor = Redistributor::new(Arc::clone(gang));
    let mut read = Ok(());
    for planned in moves {
        let moved = planned.run(&mut redistributor, &mut read)?;
        let (Some(bytes), Some(region)) = (moved, planned.region.clone()) else {
            continue;
        };
        if plan.items.iter().any(|item| item.index.name == planned.name) {
            redistributed.shards.insert(planned.name.to_owned(), Shard { region, bytes });
        }
    }
    collective_result(&**gang, read.map_err(CheckpointError::from))?;
    Ok(redistributed)
}

/// One redistribution, ready to run.
struct PlannedMove<'a> {
    name: &'a str,
    plan: Plan,
    /// This rank's shard; `None` if the rank is outside the mesh.
    bytes: Option<&'a Bytes<'a>>,
    /// The region that the rank holds afterwards.
    region: Option<Region>,
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
            (Some(LeafValue::Tensor(tensor)), Ok(_)) => Some(&tensor.bytes),
            (_, Err(_)) => None,
            _ => return Err(PlanError::NoSuchItem { name: name.to_owned() }.into()),
        };
        let region = bytes.and_then(|_| step.to.region_of(&step.shape, rank).ok());
        Ok(Self { name, plan, bytes, region })
    }

    /// If a device fails, zeros are sent, so that the others receive what they wait
    /// for, and `read` is the error.
    fn run(
        &self,
        redistributor: &mut Redistributor,
        read: &mut Result<(), DeviceReadError>,
    ) -> Result<Option<Vec<u8>>, CheckpointError> {
        let Some(bytes) = self.bytes else { return Ok(None) };
        let bytes = bytes.to_host().unwrap_or_else(|error| {
            *read = Err(error);
            Cow::Owned(vec![0; bytes.len()])
        });
        let bytes = &*bytes;
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
