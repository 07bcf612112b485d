//! How ranks share the work, checked before anything starts.
//!
//! Everything that must divide something else is compared here, with all
//! numbers at hand, so that nobody waits for a model to load before a size is
//! found not to fit. All that does not fit is told at once, with what would.

mod error;

use weightloom_gang::GangSizes;
use weightloom_nn::{DecoderConfig, PositionConfig};

use crate::config::{Accelerator, Config, PipelineSchedule};

pub use error::{SizeErrors, SizeFault};

/// The rows of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The longest row, in tokens.
    pub max_seq_len: usize,
    /// Rows in a step, over all ranks.
    pub global_batch_size: usize,
    /// Rows that a rank computes at a time; all of its own if not given.
    pub micro_batch_size: Option<usize>,
}

impl Batch {
    /// The rows of a step as a run's file says them.
    pub fn of(config: &Config) -> Self {
        Self {
            max_seq_len: config.data.max_seq_len,
            global_batch_size: config.train.global_batch_size,
            micro_batch_size: config.train.micro_batch_size,
        }
    }
}

/// Sizes that fit each other, the ranks, the model and the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParallelSizes {
    /// Ranks in all.
    pub world: usize,
    /// Groups of ranks that each hold all parameters.
    pub dp_replicate: usize,
    /// Ranks that together hold parameters within such a group.
    pub dp_shard: usize,
    /// Ranks that share each layer.
    pub tp: usize,
    /// Ranks that share the layers of a pipeline.
    pub pp: usize,
    /// Stages that each of them has.
    pub vpp: usize,
    /// Rows that a rank has in a step.
    pub rows_per_rank: usize,
    /// Rows that it computes at a time.
    pub micro_batch_size: usize,
    /// How many times in a step.
    pub micro_batches: usize,
}

impl ParallelSizes {
    /// The sizes that a run's file means for so many ranks, if everything fits.
    pub fn new(
        accelerator: &Accelerator,
        world: usize,
        decoder: &DecoderConfig,
        batch: &Batch,
    ) -> Result<Self, SizeErrors> {
        let mut check = Check { faults: Vec::new() };
        check.zeros(accelerator, world, batch);
        let dp = check.ranks(accelerator, world);
        check.model(accelerator, decoder, batch);
        check.layers(accelerator, decoder);
        let rows = dp.and_then(|(replicate, shard)| check.rows(accelerator, replicate, shard, batch));
        match (check.faults.is_empty(), dp, rows) {
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
            _ => Err(SizeErrors { errors: check.faults }),
        }
    }

    /// Ranks that compute different rows.
    pub fn dp(&self) -> usize {
        self.dp_replicate * self.dp_shard
    }

    /// Stages of the pipeline, over all of its ranks.
    pub fn stages(&self) -> usize {
        self.pp * self.vpp
    }

    /// The sizes of the gangs.
    pub fn gang_sizes(&self) -> GangSizes {
        GangSizes { pp: self.pp, tp: self.tp, sdp: Some(self.dp_shard) }
    }
}

/// Whether a number divides another. 0 divides nothing.
fn divides(part: usize, whole: usize) -> bool {
    part != 0 && whole.is_multiple_of(part)
}

/// The largest number that divides both.
fn common(mut one: usize, mut other: usize) -> usize {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

/// Collects what does not fit. What depends on a number that is none, such as
/// 0, is not judged: the number itself is told.
struct Check {
    faults: Vec<SizeFault>,
}

impl Check {
    fn tell(&mut self, fault: SizeFault) {
        self.faults.push(fault);
    }

    fn zeros(&mut self, accelerator: &Accelerator, world: usize, batch: &Batch) {
        let Accelerator { dp_replicate, dp_shard, tp, cp, pp, ep, vpp, .. } = *accelerator;
        let sizes = [
            ("world", world),
            ("dp_replicate", dp_replicate),
            ("tp", tp),
            ("pp", pp),
            ("vpp", vpp),
            ("global_batch_size", batch.global_batch_size),
            ("micro_batch_size", batch.micro_batch_size.unwrap_or(1)),
        ];
        for (name, _) in sizes.into_iter().filter(|(_, size)| *size == 0) {
            self.tell(SizeFault::Zero { name });
        }
        if dp_shard < 1 && dp_shard != -1 {
            self.tell(SizeFault::Shard { found: dp_shard });
        }
        for (name, found) in [("cp", cp), ("ep", ep)] {
            if found != 1 {
                self.tell(SizeFault::NotYet { name, found });
            }
        }
    }

    /// Data-parallel sizes, as far as they are known.
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
                    self.tell(SizeFault::Product { world, dp_replicate, dp_shard: shard, tp, pp });
                }
                // Whether rows fit does not depend on the other sizes.
                dp_replicate.checked_mul(shard).map(|_| (dp_replicate, shard))
            }
            (None, -1) => {
                let left = others.filter(|others| divides(*others, world)).map(|others| world / others);
                if left.is_none() {
                    self.tell(SizeFault::NothingLeft { world, dp_replicate, tp, pp });
                }
                left.map(|shard| (dp_replicate, shard))
            }
            (None, _) => None,
        }
    }

    /// What tensor parallelism shares.
    fn model(&mut self, accelerator: &Accelerator, decoder: &DecoderConfig, batch: &Batch) {
        let tp = accelerator.tp;
        let (heads, kv_heads) = (decoder.attention.heads, decoder.attention.kv_heads);
        let of_heads = common(heads, kv_heads);
        if tp > 0 {
            if !(divides(tp, heads) && divides(tp, kv_heads)) {
                self.tell(SizeFault::Heads { tp, heads, kv_heads });
            }
            if let Some(experts) = &decoder.experts {
                let inner = experts.inner;
                if !divides(tp, inner) {
                    self.tell(SizeFault::Experts { tp, inner, fits: common(of_heads, inner) });
                }
            }
            let max_seq_len = batch.max_seq_len;
            if accelerator.sequence_parallel && !divides(tp, max_seq_len) {
                self.tell(SizeFault::Sequence { tp, max_seq_len });
            }
        }
        let most = decoder.max_positions;
        // Angles go on; learned positions end.
        if decoder.positions == PositionConfig::Learned && batch.max_seq_len > most {
            self.tell(SizeFault::Positions { max_seq_len: batch.max_seq_len, most });
        }
    }

    /// What a pipeline shares.
    fn layers(&mut self, accelerator: &Accelerator, decoder: &DecoderConfig) {
        let Accelerator { pp, vpp, pp_schedule, .. } = *accelerator;
        let layers = decoder.layers;
        if vpp > 1 && pp_schedule != PipelineSchedule::Interleaved {
            self.tell(SizeFault::NotInterleaved { vpp });
        }
        if pp == 0 || vpp == 0 {
            return;
        }
        let stages = pp.saturating_mul(vpp);
        if layers < stages {
            self.tell(SizeFault::Layers { layers, pp, vpp });
        }
        let Some(split) = &accelerator.layer_split else { return };
        if split.len() != stages {
            self.tell(SizeFault::SplitLength { found: split.len(), pp, vpp });
        }
        if let Some(stage) = split.iter().position(|own| *own == 0) {
            self.tell(SizeFault::SplitNothing { stage });
        }
        let found = split.iter().fold(0usize, |sum, own| sum.saturating_add(*own));
        if found != layers {
            self.tell(SizeFault::SplitSum { found, layers });
        }
    }

    /// The rows of a rank, and how many of them it computes at a time.
    fn rows(
        &mut self,
        accelerator: &Accelerator,
        dp_replicate: usize,
        dp_shard: usize,
        batch: &Batch,
    ) -> Option<(usize, usize)> {
        let (dp, global_batch_size) = (dp_replicate * dp_shard, batch.global_batch_size);
        if global_batch_size == 0 {
            return None;
        }
        if !divides(dp, global_batch_size) {
            self.tell(SizeFault::Batch { global_batch_size, dp_replicate, dp_shard });
            return None;
        }
        let rows = global_batch_size / dp;
        let micro_batch_size = batch.micro_batch_size.unwrap_or(rows);
        if micro_batch_size == 0 {
            return None;
        }
        if !divides(micro_batch_size, rows) {
            self.tell(SizeFault::MicroBatch { micro_batch_size, rows, dp });
            return None;
        }
        let (micro_batches, pp) = (rows / micro_batch_size, accelerator.pp);
        let interleaved = accelerator.pp_schedule == PipelineSchedule::Interleaved;
        if interleaved && pp > 0 && !divides(pp, micro_batches) {
            self.tell(SizeFault::Interleaved { micro_batches, pp, rows, dp });
        }
        Some((rows, micro_batch_size))
    }
}
