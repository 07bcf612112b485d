//! A small transformer, trained in every way of distributing it.
//!
//! An engine or a machine is right if all of them give the losses that one rank
//! gives, step by step. This is a check to be run, and an example to be read.

mod model;

use std::sync::Arc;

use shardloom_gang::Gang;
use shardloom_layout::{Mesh, Placement, Placement::Replicate, Placement::Shard};

pub use model::train;

use crate::error::DTensorError;
use crate::ranks::Ranks;
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
        for weight in BY_ROWS {
            plan = plan.parameter(weight, &[Shard(0)])?;
        }
        for weight in BY_COLUMNS {
            plan = plan.parameter(weight, &[Shard(1)])?;
        }
        plan = plan.output("embed", &[Replicate])?;
        plan = plan.output("layers.*.attention", &[Replicate])?.output("layers.*.mlp", &[Replicate])?;
        Ok(Self { name: "tp", plan, batch: vec![Replicate] })
    }

    /// Between products each rank has some of the positions.
    fn sequence_parallel(ranks: usize) -> Result<Self, DTensorError> {
        let mut plan = Self::tensor_parallel(ranks)?.plan;
        for module in ["embed", "layers.*.attention", "layers.*.mlp"] {
            plan = plan.output(module, &[Shard(1)])?;
        }
        for module in ["layers.*.attention", "layers.*.mlp", "head"] {
            plan = plan.input(module, &[Replicate])?;
        }
        Ok(Self { name: "tp+sp", plan, batch: vec![Replicate] })
    }

    /// Parameters are gathered when they are used, gradients scattered.
    fn fully_sharded(ranks: usize) -> Result<Self, DTensorError> {
        let mut plan = ShardingPlan::new(Mesh::new(&[("dp", ranks)])?);
        for weight in BY_ROWS.iter().chain(&BY_COLUMNS).chain(&["norm", "layers.*.norm1", "layers.*.norm2"]) {
            plan = plan.parameter(weight, &[Shard(0)])?.used_as(weight, &[Replicate])?;
        }
        Ok(Self { name: "fsdp", plan, batch: vec![Shard(0)] })
    }

    fn mixed(ranks: usize) -> Result<Self, DTensorError> {
        let mut plan = ShardingPlan::new(Mesh::new(&[("dp", 2), ("tp", ranks / 2)])?);
        for weight in BY_ROWS {
            plan = plan.parameter(weight, &[Replicate, Shard(0)])?;
        }
        for weight in BY_COLUMNS {
            plan = plan.parameter(weight, &[Replicate, Shard(1)])?;
        }
        for module in ["embed", "layers.*.attention", "layers.*.mlp"] {
            plan = plan.output(module, &[Shard(0), Replicate])?;
        }
        Ok(Self { name: "dp×tp", plan, batch: vec![Shard(0), Replicate] })
    }

    /// Tensor parallel, and each rank's part sharded again.
    fn sharded_mixed(ranks: usize) -> Result<Self, DTensorError> {
        let mut plan = Self::mixed(ranks)?.plan;
        for weight in BY_ROWS {
            plan = plan.parameter(weight, &[Shard(0), Shard(0)])?.used_as(weight, &[Replicate, Shard(0)])?;
        }
        for weight in BY_COLUMNS {
            plan = plan.parameter(weight, &[Shard(0), Shard(1)])?.used_as(weight, &[Replicate, Shard(1)])?;
        }
        Ok(Self { name: "fsdp×tp", plan, batch: vec![Shard(0), Replicate] })
    }
}

/// The losses of each arrangement for the ranks of a gang.
pub fn losses(gang: &Arc<dyn Gang>, steps: usize) -> Result<Vec<(&'static str, Vec<f32>)>, DTensorError> {
    let ranks = Ranks::new(Arc::clone(gang));
    let arrangements = Arrangement::all(gang.size())?;
    arrangements
        .iter()
        .map(|arrangement| Ok((arrangement.name, train(&ranks, arrangement, steps)?)))
        .collect()
}
