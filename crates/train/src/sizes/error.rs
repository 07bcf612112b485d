//! Sizes that do not fit, and what would.

use std::fmt;

use weightloom_errors::Hint;

use crate::config::divisors;

use super::common;

/// Everything that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeErrors {
    /// What does not.
    pub errors: Vec<SizeFault>,
}

/// A size that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum SizeFault {
    /// A size of 0.
    #[error("{name} is 0")]
    Zero { name: &'static str },
    /// A number of shards that is none.
    #[error("dp_shard is {found}")]
    Shard { found: i64 },
    /// A way to share that is planned.
    #[error("{name}={found} is not supported yet")]
    NotYet { name: &'static str, found: usize },
    /// Sizes that make another number of ranks.
    #[error(
        "dp_replicate={dp_replicate} × dp_shard={dp_shard} × tp={tp} × pp={pp} makes {}, but there are \
         {world} ranks",
        product([*dp_replicate, *dp_shard, *tp, *pp])
    )]
    Product { world: usize, dp_replicate: usize, dp_shard: usize, tp: usize, pp: usize },
    /// Sizes that leave no whole number of ranks to share parameters.
    #[error("{world} ranks cannot be split by dp_replicate={dp_replicate} × tp={tp} × pp={pp}")]
    NothingLeft { world: usize, dp_replicate: usize, tp: usize, pp: usize },
    /// Heads that cannot be shared evenly.
    #[error("tp={tp} does not divide {heads} heads of queries and {kv_heads} of keys and values")]
    Heads { tp: usize, heads: usize, kv_heads: usize },
    /// Experts that cannot be shared evenly.
    #[error("tp={tp} does not divide the {inner} numbers inside of an expert")]
    Experts {
        tp: usize,
        inner: usize,
        /// What must be divided by a tp that fits experts and heads.
        fits: usize,
    },
    /// Positions that cannot be shared evenly.
    #[error("sequence_parallel is on, but tp={tp} does not divide max_seq_len={max_seq_len}")]
    Sequence { tp: usize, max_seq_len: usize },
    /// Rows that are longer than the model has positions.
    #[error("max_seq_len={max_seq_len} is more than the {most} positions that the model has learned")]
    Positions { max_seq_len: usize, most: usize },
    /// More stages than layers.
    #[error("pp={pp} × vpp={vpp} makes {} stages, but there are {layers} layers", product([*pp, *vpp]))]
    Layers { layers: usize, pp: usize, vpp: usize },
    /// A split with another number of stages.
    #[error("layer_split has {found} numbers, but pp={pp} × vpp={vpp} makes {} stages", product([*pp, *vpp]))]
    SplitLength { found: usize, pp: usize, vpp: usize },
    /// A stage without layers.
    #[error("layer_split leaves nothing for stage {stage}")]
    SplitNothing { stage: usize },
    /// A split with another number of layers.
    #[error("the numbers of layer_split add up to {found}, but there are {layers} layers")]
    SplitSum { found: usize, layers: usize },
    /// Several stages on a rank without the schedule for it.
    #[error("vpp={vpp} needs the interleaved schedule")]
    NotInterleaved { vpp: usize },
    /// Rows that cannot be shared evenly.
    #[error(
        "global_batch_size={global_batch_size} cannot be split over dp_replicate={dp_replicate} × \
         dp_shard={dp_shard} ranks"
    )]
    Batch { global_batch_size: usize, dp_replicate: usize, dp_shard: usize },
    /// A rank's rows that cannot be cut evenly.
    #[error("micro_batch_size={micro_batch_size} does not divide the {rows} rows that a rank has in a step")]
    MicroBatch { micro_batch_size: usize, rows: usize, dp: usize },
    /// Micro-batches that do not fill an interleaved pipeline evenly.
    #[error(
        "the interleaved schedule needs a multiple of pp={pp} micro-batches, but there are {micro_batches}"
    )]
    Interleaved { micro_batches: usize, pp: usize, rows: usize, dp: usize },
}

fn product<const N: usize>(sizes: [usize; N]) -> usize {
    sizes.into_iter().fold(1, usize::saturating_mul)
}

/// The multiples of a number around another, for those who must choose one.
fn around(step: usize, found: usize) -> String {
    let below = found / step * step;
    let above = below.checked_add(step);
    let both = [Some(below).filter(|below| *below > 0), above];
    both.into_iter().flatten().map(|number| number.to_string()).collect::<Vec<_>>().join(" or ")
}

/// What each size could be if the others stay.
fn instead(world: usize, sizes: &[(&str, usize)], listed: impl Fn(usize) -> String) -> Option<String> {
    let choices: Vec<String> = sizes
        .iter()
        .enumerate()
        .filter_map(|(index, (name, _))| {
            let others = sizes.iter().enumerate().filter(|(other, _)| *other != index);
            let others = others.fold(1, |product: usize, (_, (_, size))| product.saturating_mul(*size));
            let fits = others > 0 && world.is_multiple_of(others);
            fits.then(|| format!("{name} can be {}", listed(world / others)))
        })
        .collect();
    (!choices.is_empty()).then(|| format!("if the others stay, {}", choices.join(", or ")))
}

impl Hint for SizeFault {
    fn hint(&self) -> Option<String> {
        Some(match *self {
            Self::Zero { name } => format!("set {name} to 1 or more"),
            Self::Shard { .. } => {
                "set dp_shard to -1 for all ranks that are left, or to 1 or more".to_owned()
            }
            Self::NotYet { name, .. } => format!("set {name} to 1, or leave it out"),
            Self::Product { world, dp_replicate, dp_shard, tp, pp } => {
                let sizes = [("dp_replicate", dp_replicate), ("dp_shard", dp_shard), ("tp", tp), ("pp", pp)];
                let start = format!("start {} ranks", product(sizes.map(|(_, size)| size)));
                match instead(world, &sizes, |size| size.to_string()) {
                    Some(choices) => format!("{choices}; or {start}"),
                    None => start,
                }
            }
            Self::NothingLeft { world, dp_replicate, tp, pp } => {
                let sizes = [("dp_replicate", dp_replicate), ("tp", tp), ("pp", pp)];
                let choices = instead(world, &sizes, divisors);
                choices.unwrap_or_else(|| {
                    let step = product(sizes.map(|(_, size)| size));
                    format!("start {} ranks", around(step, world))
                })
            }
            Self::Heads { heads, kv_heads, .. } => format!("tp can be {}", divisors(common(heads, kv_heads))),
            Self::Experts { fits, .. } => format!("tp can be {}", divisors(fits)),
            Self::Sequence { tp, max_seq_len } => {
                format!("set max_seq_len to {}, or sequence_parallel to false", around(tp, max_seq_len))
            }
            Self::Positions { most, .. } => format!("set max_seq_len to {most} or less"),
            Self::Layers { layers, .. } => format!("pp × vpp can be 1 to {layers}"),
            Self::SplitLength { pp, vpp, .. } => format!("give {} numbers", product([pp, vpp])),
            Self::SplitNothing { .. } => "give every stage a layer".to_owned(),
            Self::SplitSum { layers, .. } => format!("let them add up to {layers}"),
            Self::NotInterleaved { .. } => "set pp_schedule to interleaved, or vpp to 1".to_owned(),
            Self::Batch { global_batch_size, dp_replicate, dp_shard } => {
                let dp = product([dp_replicate, dp_shard]);
                format!("set global_batch_size to {}", around(dp, global_batch_size))
            }
            Self::MicroBatch { rows, .. } => format!("micro_batch_size can be {}", divisors(rows)),
            Self::Interleaved { pp, rows, dp, .. } => {
                if rows.is_multiple_of(pp) {
                    format!("micro_batch_size can be {}", divisors(rows / pp))
                } else {
                    let step = product([dp, pp]);
                    let found = product([dp, rows]);
                    format!("set global_batch_size to {}, and micro_batch_size to 1", around(step, found))
                }
            }
        })
    }
}

/// One fault is told as itself. Several are listed, each with its hint.
impl fmt::Display for SizeErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.errors.as_slice() {
            return only.fmt(f);
        }
        write!(f, "{} sizes do not fit", self.errors.len())?;
        for fault in &self.errors {
            write!(f, "\n  {fault}")?;
            if let Some(hint) = fault.hint() {
                write!(f, "\n    hint: {hint}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for SizeErrors {}

impl Hint for SizeErrors {
    fn hint(&self) -> Option<String> {
        match self.errors.as_slice() {
            [only] => only.hint(),
            // They stand with each.
            _ => None,
        }
    }
}
