//! Parallel dims: which sizes of parallelism fit the ranks, the model and the
//! batch.
//!
//! All rules are checked here, before a model is loaded. Every
//! violation is reported at once, with the sizes that would fit.

mod error;

use weightloom_gang::GangSizes;
use weightloom_nn::ModelDefinition;

use crate::config::{Accelerator, Config, PipelineSchedule};

pub use error::{ParallelDimError, ParallelDimErrors};

/// The batch sizes of a config.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct BatchSizes {
    pub max_seq_len: usize,
    pub global_batch_size: usize,
    pub micro_batch_size: Option<usize>,
}

impl BatchSizes {
    /// The batch sizes of a config.
    pub fn of(config: &Config) -> Self {
        Self {
            max_seq_len: config.data.max_seq_len,
            global_batch_size: config.train.global_batch_size,
            micro_batch_size: config.train.micro_batch_size,
        }
    }
}

/// Parallel sizes that fit the ranks, the model and the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)]
pub struct ParallelDims {
    pub world: usize,
    pub dp_replicate: usize,
    pub dp_shard: usize,
    pub tp: usize,
    pub pp: usize,
    /// Pipeline stages per rank.
    pub vpp: usize,
    /// Rows of a rank in a step.
    pub rows_per_rank: usize,
    pub micro_batch_size: usize,
    /// Micro-batches per step on one rank.
    pub micro_batches: usize,
}

impl ParallelDims {
    /// Resolves and checks the sizes for `world` ranks.
    pub fn new(
        accelerator: &Accelerator,
        world: usize,
        definition: &dyn ModelDefinition,
        batch: &BatchSizes,
    ) -> Result<Self, ParallelDimErrors> {
        let mut check = Check { errors: Vec::new() };
        check.zeros(accelerator, world, batch);
        let dp = check.ranks(accelerator, world);
        check.model(accelerator, definition, batch);
        check.layers(accelerator, definition);
        let rows = dp.and_then(|(replicate, shard)| check.rows(accelerator, replicate, shard, batch));
        match (check.errors.is_empty(), dp, rows) {
            (true, Some((dp_replicate, dp_shard)), Some((rows_per_rank, micro_batch_size))) => Ok(Self {
                world,
                dp_replicate,
                dp_shard,
                tp: accelerator.tp,
                pp: accelerator.pp,
                vpp: accelerator.vpp,
                rows_per_rank,
                micro_batch_size,
                micro_batches: rows_per_rank / micro_batch_size,
            }),
            _ => Err(ParallelDimErrors { errors: check.errors }),
        }
    }

    /// Data-parallel ranks.
    pub fn dp(&self) -> usize {
        self.dp_replicate * self.dp_shard
    }

    /// Pipeline stages over all ranks.
    pub fn stages(&self) -> usize {
        self.pp * self.vpp
    }

    /// The sizes of the process groups.
    pub fn gang_sizes(&self) -> GangSizes {
        GangSizes { pp: self.pp, tp: self.tp, sdp: Some(self.dp_shard) }
    }
}

/// Whether `part` divides `whole`; false for 0.
fn divides(part: usize, whole: usize) -> bool {
    part != 0 && whole.is_multiple_of(part)
}

/// Collects errors. A rule that involves an invalid number, such as 0, is not
/// checked: the number itself is reported.
struct Check {
    errors: Vec<ParallelDimError>,
}

impl Check {
    fn report(&mut self, error: ParallelDimError) {
        self.errors.push(error);
    }

    fn zeros(&mut self, accelerator: &Accelerator, world: usize, batch: &BatchSizes) {
        let Accelerator { dp_replicate, dp_shard, tp, cp, pp, ep, vpp, .. } = *accelerator;
        let sizes = [
            ("dp_replicate", dp_replicate),
            ("tp", tp),
            ("pp", pp),
            ("vpp", vpp),
            ("global_batch_size", batch.global_batch_size),
            ("micro_batch_size", batch.micro_batch_size.unwrap_or(1)),
        ];
        if world == 0 {
            self.report(ParallelDimError::NoRanks);
        }
        for (name, _) in sizes.into_iter().filter(|(_, size)| *size == 0) {
            self.report(ParallelDimError::Zero { name });
        }
        if dp_shard < 1 && dp_shard != -1 {
            self.report(ParallelDimError::Shard { found: dp_shard });
        }
        for (name, found) in [("cp", cp), ("ep", ep)] {
            if found != 1 {
                self.report(ParallelDimError::NotYet { name, found });
            }
        }
    }

    /// The data-parallel sizes, if they can be determined.
    fn ranks(&mut self, accelerator: &Accelerator, world: usize) -> Option<(usize, usize)> {
        let Accelerator { dp_replicate, dp_shard, tp, pp, .. } = *accelerator;
        if [world, dp_replicate, tp, pp].contains(&0) {
            return None;
        }
        let shard = usize::try_from(dp_shard).ok().filter(|shard| *shard > 0);
        let others = dp_replicate.checked_mul(tp).and_then(|product| product.checked_mul(pp));
        match (shard, dp_shard) {
            (Some(shard), _) => {
                let product = others.and_then(|others| others.checked_mul(shard));
                if product != Some(world) {
                    self.report(ParallelDimError::Product { world, dp_replicate, dp_shard: shard, tp, pp });
                }
                // The batch rules do not depend on the other sizes.
                dp_replicate.checked_mul(shard).map(|_| (dp_replicate, shard))
            }
            (None, -1) => {
                let left = others.filter(|others| divides(*others, world)).map(|others| world / others);
                if left.is_none() {
                    self.report(ParallelDimError::NothingLeft { world, dp_replicate, tp, pp });
                }
                left.map(|shard| (dp_replicate, shard))
            }
            (None, _) => None,
        }
    }

    /// The rules of tensor parallelism.
    fn model(&mut self, accelerator: &Accelerator, definition: &dyn ModelDefinition, batch: &BatchSizes) {
        let tp = accelerator.tp;
        // Shards may differ in size, but a rank without heads would only wait.
        if let Some(heads) = definition.heads().filter(|heads| tp > *heads) {
            self.report(ParallelDimError::Heads { tp, heads });
        }
        if tp > 0 {
            let max_seq_len = batch.max_seq_len;
            if accelerator.sequence_parallel && !divides(tp, max_seq_len) {
                self.report(ParallelDimError::Sequence { tp, max_seq_len });
            }
        }
        if let Some(most) = definition.max_positions().filter(|most| batch.max_seq_len > *most) {
            self.report(ParallelDimError::Positions { max_seq_len: batch.max_seq_len, most });
        }
    }

    /// The rules of pipeline parallelism.
    fn layers(&mut self, accelerator: &Accelerator, definition: &dyn ModelDefinition) {
        let Accelerator { pp, vpp, pp_schedule, .. } = *accelerator;
        let layers = definition.layers();
        if vpp > 1 && pp_schedule != PipelineSchedule::Interleaved {
            self.report(ParallelDimError::NotInterleaved { vpp });
        }
        if pp == 0 || vpp == 0 {
            return;
        }
        let stages = pp.saturating_mul(vpp);
        if layers < stages {
            self.report(ParallelDimError::Layers { layers, pp, vpp });
        }
        let Some(split) = &accelerator.layer_split else { return };
        if split.len() != stages {
            self.report(ParallelDimError::SplitLength { found: split.len(), pp, vpp });
        }
        if let Some(stage) = split.iter().position(|own| *own == 0) {
            self.report(ParallelDimError::EmptyStage { stage });
        }
        let found = split.iter().fold(0usize, |sum, own| sum.saturating_add(*own));
        if found != layers {
            self.report(ParallelDimError::SplitSum { found, layers });
        }
    }

    /// The rows per rank and per micro-batch.
    fn rows(
        &mut self,
        accelerator: &Accelerator,
        dp_replicate: usize,
        dp_shard: usize,
        batch: &BatchSizes,
    ) -> Option<(usize, usize)> {
        let (dp, global_batch_size) = (dp_replicate * dp_shard, batch.global_batch_size);
        if global_batch_size == 0 {
            return None;
        }
        if !divides(dp, global_batch_size) {
            self.report(ParallelDimError::Batch { global_batch_size, dp_replicate, dp_shard });
            return None;
        }
        let rows = global_batch_size / dp;
        let micro_batch_size = batch.micro_batch_size.unwrap_or(rows);
        if micro_batch_size == 0 {
            return None;
        }
        if !divides(micro_batch_size, rows) {
            self.report(ParallelDimError::MicroBatch { micro_batch_size, rows, dp });
            return None;
        }
        let (micro_batches, pp) = (rows / micro_batch_size, accelerator.pp);
        let interleaved = accelerator.pp_schedule == PipelineSchedule::Interleaved;
        if interleaved && pp > 0 && !divides(pp, micro_batches) {
            self.report(ParallelDimError::Interleaved { micro_batches, pp, rows, dp });
        }
        Some((rows, micro_batch_size))
    }
}
