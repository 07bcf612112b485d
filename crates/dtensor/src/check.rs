//! A small transformer, trained in every way of distributing it.
//!
//! An engine or a machine is right if all of them give the losses that one rank
//! gives, step by step. This is a check to be run, and an example to be read.

mod model;

use std::sync::Arc;

use weightloom_gang::Gang;
use weightloom_layout::{Layout, Mesh, Placement, Placement::Replicate, Placement::Shard};

pub use model::train;

use crate::dist_context::{DistContext, DistOptions};
use crate::error::DTensorError;
use crate::sharding_plan::ShardingPlan;

/// A way of distributing the transformer.
#[derive(Clone, Debug)]
pub struct Arrangement {
    /// What it is called.
    pub name: &'static str,
    /// Where parameters and activations live.
    pub plan: ShardingPlan,
    /// Where a batch lives.
    pub(crate) batch: Vec<Placement>,
}

/// Weights whose rows, and such whose columns, are shared by tensor
/// parallelism.
const BY_ROWS: [&str; 7] =
    ["embed", "head", "layers.*.q", "layers.*.k", "layers.*.v", "layers.*.gate", "layers.*.up"];
const BY_COLUMNS: [&str; 2] = ["layers.*.o", "layers.*.down"];

impl Arrangement {
    /// Every way for so many ranks.
    pub fn all(ranks: usize) -> Result<Vec<Self>, DTensorError> {
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

    fn data_parallel(ranks: usize) -> Result<Self, DTensorError> {
        let plan = ShardingPlan::new(Mesh::new(&[("dp", ranks)])?);
        Ok(Self { name: "dp", plan, batch: vec![Shard(0)] })
    }

    fn tensor_parallel(ranks: usize) -> Result<Self, DTensorError> {
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

    /// Between products each rank has some of the positions.
    fn sequence_parallel(ranks: usize) -> Result<Self, DTensorError> {
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

    /// Parameters are gathered when they are used, gradients scattered.
    fn fully_sharded(ranks: usize) -> Result<Self, DTensorError> {
        let mut plan = ShardingPlan::new(Mesh::new(&[("dp", ranks)])?);
        let mesh = plan.mesh();
        let layout = |placements: &[Placement]| Layout::new(mesh, placements);
        for weight in BY_ROWS.iter().chain(&BY_COLUMNS).chain(&["norm", "layers.*.norm1", "layers.*.norm2"]) {
            plan = plan.parameter(weight, layout(&[Shard(0)])?)?.used_as(weight, layout(&[Replicate])?)?;
        }
        Ok(Self { name: "fsdp", plan, batch: vec![Shard(0)] })
    }

    fn mixed(ranks: usize) -> Result<Self, DTensorError> {
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

    /// Tensor parallel, and each rank's part sharded again: the tensor axis cuts
    /// first, so that gathering along the other gives back its part.
    fn sharded_mixed(ranks: usize) -> Result<Self, DTensorError> {
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

/// What came of training in one arrangement.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// The arrangement.
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
    /// How far its losses are from others, at most, relative to them.
    pub fn apart_from(&self, losses: &[f32]) -> f32 {
        let apart = self.losses.iter().zip(losses).map(|(a, b)| (a - b).abs() / b.abs());
        apart.fold(0.0, |most, apart| if apart > most || apart.is_nan() { apart } else { most })
    }
}

/// Trains in each arrangement that fits the dist of a gang.
pub fn run(gang: &Arc<dyn Gang>, steps: usize) -> Result<Vec<Outcome>, DTensorError> {
    let options = DistOptions { log_comm: true, ..DistOptions::default() };
    let dist = DistContext::with_options(Arc::clone(gang), options);
    let arrangements = Arrangement::all(gang.size())?;
    let train = |arrangement: &Arrangement| {
        dist.take_comm_log();
        let losses = train(&dist, arrangement, steps)?;
        let comm_log = dist.take_comm_log();
        let per_step = steps.max(1);
        Ok(Outcome {
            name: arrangement.name,
            mesh: arrangement.plan.mesh(),
            losses,
            collectives: comm_log.len() / per_step,
            received: comm_log.iter().map(|item| item.bytes).sum::<u64>() / per_step as u64,
        })
    };
    arrangements.iter().map(train).collect()
}
