//! Checks of engines, machines and users' functions.
//!
//! [`run`] trains a small transformer in every arrangement of ranks: every arrangement
//! must reproduce the losses of a single rank. Also an example of a distributed model.
//! [`check_function`] compares a function in every layout with the same function on
//! whole tensors.

mod function;
mod model;

use std::sync::Arc;

use weightloom_gang::Gang;
use weightloom_layout::{Layout, Mesh, Placement, Placement::Replicate, Placement::Shard};
use weightloom_tensor::Device;

pub use function::check_function;
pub use model::train;

use crate::dist_context::{DistContext, DistOptions};
use crate::error::Result;
use crate::sharding_plan::ShardingPlan;

/// An arrangement of the transformer over ranks.
#[derive(Clone, Debug)]
pub struct Arrangement {
    /// Its name, such as `fsdp×tp`.
    pub name: &'static str,
    /// The layouts of parameters and activations.
    pub plan: ShardingPlan,
    /// The placements of a batch.
    pub(crate) batch: Vec<Placement>,
}

/// Column-parallel weights, sharded by rows, and row-parallel weights, sharded by
/// columns.
const BY_ROWS: [&str; 7] =
    ["embed", "head", "layers.*.q", "layers.*.k", "layers.*.v", "layers.*.gate", "layers.*.up"];
const BY_COLUMNS: [&str; 2] = ["layers.*.o", "layers.*.down"];

impl Arrangement {
    /// All arrangements for a number of ranks.
    pub fn all(ranks: usize) -> Result<Vec<Self>> {
        let mut all = vec![
            Self::data_parallel(ranks)?,
            Self::tensor_parallel(ranks)?,
            Self::sequence_parallel(ranks)?,
            Self::fully_sharded(ranks)?,
        ];
        if ranks.is_multiple_of(2) && ranks > 2 {
            all.extend([Self::mixed(ranks)?, Self::sharded_mixed(ranks)?]);
        }
        Ok(all)
    }

    fn data_parallel(ranks: usize) -> Result<Self> {
        let plan = ShardingPlan::new(Mesh::new(&[("dp", ranks)])?);
        Ok(Self { name: "dp", plan, batch: vec![Shard(0)] })
    }

    fn tensor_parallel(ranks: usize) -> Result<Self> {
        let mut plan = ShardingPlan::new(Mesh::new(&[("tp", ranks)])?);
        let mesh = plan.mesh();
        let layout = |placements: &[Placement]| Layout::new(mesh, placements);
        for weight in BY_ROWS {
            plan = plan.parameter(weight, layout(&[Shard(0)])?)?;
        }
        for weight in BY_COLUMNS {
            plan = plan.parameter(weight, layout(&[Shard(1)])?)?;
        }
        plan = plan.output("embed", layout(&[Replicate])?)?;
        plan = plan
            .output("layers.*.attention", layout(&[Replicate])?)?
            .output("layers.*.mlp", layout(&[Replicate])?)?;
        Ok(Self { name: "tp", plan, batch: vec![Replicate] })
    }

    /// Between products, positions are sharded.
    fn sequence_parallel(ranks: usize) -> Result<Self> {
        let mut plan = Self::tensor_parallel(ranks)?.plan;
        let mesh = plan.mesh();
        let layout = |placements: &[Placement]| Layout::new(mesh, placements);
        for module in ["embed", "layers.*.attention", "layers.*.mlp"] {
            plan = plan.output(module, layout(&[Shard(1)])?)?;
        }
        for module in ["layers.*.attention", "layers.*.mlp", "head"] {
            plan = plan.input(module, layout(&[Replicate])?)?;
        }
        Ok(Self { name: "tp+sp", plan, batch: vec![Replicate] })
    }

    /// Parameters are gathered for use, and gradients reduce-scattered.
    fn fully_sharded(ranks: usize) -> Result<Self> {
        let mut plan = ShardingPlan::new(Mesh::new(&[("dp", ranks)])?);
        let mesh = plan.mesh();
        let layout = |placements: &[Placement]| Layout::new(mesh, placements);
        for weight in BY_ROWS.iter().chain(&BY_COLUMNS).chain(&["norm", "layers.*.norm1", "layers.*.norm2"]) {
            plan = plan.parameter(weight, layout(&[Shard(0)])?)?.used_as(weight, layout(&[Replicate])?)?;
        }
        Ok(Self { name: "fsdp", plan, batch: vec![Shard(0)] })
    }

    fn mixed(ranks: usize) -> Result<Self> {
        let mut plan = ShardingPlan::new(Mesh::new(&[("dp", 2), ("tp", ranks / 2)])?);
        let mesh = plan.mesh();
        let layout = |placements: &[Placement]| Layout::new(mesh, placements);
        for weight in BY_ROWS {
            plan = plan.parameter(weight, layout(&[Replicate, Shard(0)])?)?;
        }
        for weight in BY_COLUMNS {
            plan = plan.parameter(weight, layout(&[Replicate, Shard(1)])?)?;
        }
        for module in ["embed", "layers.*.attention", "layers.*.mlp"] {
            plan = plan.output(module, layout(&[Shard(0), Replicate])?)?;
        }
        Ok(Self { name: "dp×tp", plan, batch: vec![Shard(0), Replicate] })
    }

    /// Tensor parallel and fully sharded. The `tp` axis splits first, so that
    /// gathering along `dp` restores the tensor-parallel shard.
    fn sharded_mixed(ranks: usize) -> Result<Self> {
        let mut plan = Self::mixed(ranks)?.plan;
        let mesh = plan.mesh();
        let layout = |placements: &[Placement]| Layout::new(mesh, placements);
        let sharded_rows = Layout::with_split_order(mesh, &[Shard(0), Shard(0)], &[(0, &["tp", "dp"])])?;
        for weight in BY_ROWS {
            plan = plan.parameter(weight, sharded_rows)?.used_as(weight, layout(&[Replicate, Shard(0)])?)?;
        }
        for weight in BY_COLUMNS {
            plan = plan
                .parameter(weight, layout(&[Shard(0), Shard(1)])?)?
                .used_as(weight, layout(&[Replicate, Shard(1)])?)?;
        }
        Ok(Self { name: "fsdp×tp", plan, batch: vec![Shard(0), Replicate] })
    }
}

/// The result of training in one arrangement.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// The name of the arrangement.
    pub name: &'static str,
    /// Its mesh.
    pub mesh: Mesh,
    /// The loss of every step.
    pub losses: Vec<f32>,
    /// Collectives of this rank in one step.
    pub collectives: usize,
    /// Bytes that this rank received in one step.
    pub received: u64,
}

impl Outcome {
    /// The largest relative difference of its losses to others.
    pub fn apart_from(&self, losses: &[f32]) -> f32 {
        let apart = self.losses.iter().zip(losses).map(|(a, b)| (a - b).abs() / b.abs());
        apart.fold(0.0, |most, apart| if apart > most || apart.is_nan() { apart } else { most })
    }
}

/// Trains in all arrangements for the ranks of a gang, each rank on the same device.
pub fn run(gang: &Arc<dyn Gang>, device: Device, steps: usize) -> Result<Vec<Outcome>> {
    let options = DistOptions { device, log_comm: true, ..DistOptions::default() };
    let dist = DistContext::with_options(Arc::clone(gang), options);
    let arrangements = Arrangement::all(gang.size())?;
    let train = |arrangement: &Arrangement| {
        dist.take_comm_log();
        let losses = train(&dist, arrangement, steps)?;
        let log = dist.take_comm_log();
        let per_step = steps.max(1);
        Ok(Outcome {
            name: arrangement.name,
            mesh: arrangement.plan.mesh(),
            losses,
            collectives: log.len() / per_step,
            received: log.iter().map(|item| item.bytes).sum::<u64>() / per_step as u64,
        })
    };
    arrangements.iter().map(train).collect()
}
