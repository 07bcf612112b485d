//! Errors of parallel dims.

use std::fmt;

use weightloom_errors::Hint;

use crate::config::divisors;

/// All parallel sizes that do not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParallelDimErrors {
    /// At least one error.
    pub errors: Vec<ParallelDimError>,
}

/// A parallel size that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ParallelDimError {
    #[error("cannot run on 0 ranks")]
    NoRanks,
    #[error("`{name}` is 0")]
    Zero { name: &'static str },
    #[error("invalid `dp_shard`: {found}")]
    Shard { found: i64 },
    #[error("{name}={found} is not supported yet")]
    NotYet { name: &'static str, found: usize },
    #[error(
        "dp_replicate={dp_replicate} × dp_shard={dp_shard} × tp={tp} × pp={pp} is {}, but there are {world} \
         ranks",
        product([*dp_replicate, *dp_shard, *tp, *pp])
    )]
    Product { world: usize, dp_replicate: usize, dp_shard: usize, tp: usize, pp: usize },
    #[error("dp_replicate={dp_replicate} × tp={tp} × pp={pp} does not divide {world} ranks")]
    NothingLeft { world: usize, dp_replicate: usize, tp: usize, pp: usize },
    #[error("tp={tp} exceeds the {heads} attention heads of the model")]
    Heads { tp: usize, heads: usize },
    #[error("sequence_parallel requires tp={tp} to divide max_seq_len={max_seq_len}")]
    Sequence { tp: usize, max_seq_len: usize },
    #[error("max_seq_len={max_seq_len} exceeds the {most} positions of the model")]
    Positions { max_seq_len: usize, most: usize },
    #[error("pp={pp} × vpp={vpp} is {} stages, but the model has {layers} layers", product([*pp, *vpp]))]
    Layers { layers: usize, pp: usize, vpp: usize },
    #[error("layer_split has {found} entries, but pp={pp} × vpp={vpp} is {} stages", product([*pp, *vpp]))]
    SplitLength { found: usize, pp: usize, vpp: usize },
    #[error("layer_split has no layers for stage {stage}")]
    EmptyStage { stage: usize },
    #[error("layer_split adds up to {found}, but the model has {layers} layers")]
    SplitSum { found: usize, layers: usize },
    #[error("vpp={vpp} requires the interleaved schedule")]
    NotInterleaved { vpp: usize },
    #[error(
        "dp_replicate={dp_replicate} × dp_shard={dp_shard} does not divide \
         global_batch_size={global_batch_size}"
    )]
    Batch { global_batch_size: usize, dp_replicate: usize, dp_shard: usize },
    #[error("micro_batch_size={micro_batch_size} does not divide the {rows} rows per rank")]
    MicroBatch { micro_batch_size: usize, rows: usize, dp: usize },
    #[error("the interleaved schedule requires a multiple of pp={pp} micro-batches, not {micro_batches}")]
    Interleaved { micro_batches: usize, pp: usize, rows: usize, dp: usize },
}

fn product<const N: usize>(sizes: [usize; N]) -> usize {
    sizes.into_iter().fold(1, usize::saturating_mul)
}

/// The multiples of `step` next to a number, as a list for hints.
fn around(step: usize, found: usize) -> String {
    let below = found / step * step;
    let above = below.checked_add(step);
    let both = [Some(below).filter(|below| *below > 0), above];
    both.into_iter().flatten().map(|number| number.to_string()).collect::<Vec<_>>().join(" or ")
}

/// Values that fit for each size with the others unchanged.
fn alternatives(world: usize, sizes: &[(&str, usize)], listed: impl Fn(usize) -> String) -> Option<String> {
    let choices: Vec<String> = sizes
        .iter()
        .enumerate()
        .filter_map(|(index, (name, _))| {
            let others = sizes.iter().enumerate().filter(|(other, _)| *other != index);
            let others = others.fold(1, |product: usize, (_, (_, size))| product.saturating_mul(*size));
            let fits = others > 0 && world.is_multiple_of(others);
            fits.then(|| format!("set {name} to {}", listed(world / others)))
        })
        .collect();
    (!choices.is_empty()).then(|| choices.join(", or "))
}

impl Hint for ParallelDimError {
    fn hint(&self) -> Option<String> {
        Some(match *self {
            Self::NoRanks => "set the number of ranks to 1 or more".to_owned(),
            Self::Zero { name } => format!("set {name} to 1 or more"),
            Self::Shard { .. } => "set dp_shard to 1 or more, or to -1 for all remaining ranks".to_owned(),
            Self::NotYet { name, .. } => format!("set {name} to 1, or remove it"),
            Self::Product { world, dp_replicate, dp_shard, tp, pp } => {
                let sizes = [("dp_replicate", dp_replicate), ("dp_shard", dp_shard), ("tp", tp), ("pp", pp)];
                let start = format!("start {} ranks", product(sizes.map(|(_, size)| size)));
                match alternatives(world, &sizes, |size| size.to_string()) {
                    Some(choices) => format!("{choices}; or {start}"),
                    None => start,
                }
            }
            Self::NothingLeft { world, dp_replicate, tp, pp } => {
                let sizes = [("dp_replicate", dp_replicate), ("tp", tp), ("pp", pp)];
                let choices = alternatives(world, &sizes, divisors);
                choices.unwrap_or_else(|| {
                    let step = product(sizes.map(|(_, size)| size));
                    format!("start {} ranks", around(step, world))
                })
            }
            Self::Heads { heads, .. } => format!("set tp to {heads} or less"),
            Self::Sequence { tp, max_seq_len } => {
                format!("set max_seq_len to {}, or sequence_parallel to false", around(tp, max_seq_len))
            }
            Self::Positions { most, .. } => format!("set max_seq_len to {most} or less"),
            Self::Layers { layers, .. } => format!("use 1 to {layers} stages (pp × vpp)"),
            Self::SplitLength { pp, vpp, .. } => format!("list {} numbers", product([pp, vpp])),
            Self::EmptyStage { .. } => "give every stage at least one layer".to_owned(),
            Self::SplitSum { layers, .. } => format!("make the entries add up to {layers}"),
            Self::NotInterleaved { .. } => "set pp_schedule to interleaved, or vpp to 1".to_owned(),
            Self::Batch { global_batch_size, dp_replicate, dp_shard } => {
                let dp = product([dp_replicate, dp_shard]);
                format!("set global_batch_size to {}", around(dp, global_batch_size))
            }
            Self::MicroBatch { rows, .. } => format!("set micro_batch_size to one of {}", divisors(rows)),
            Self::Interleaved { pp, rows, dp, .. } => {
                if rows.is_multiple_of(pp) {
                    format!("set micro_batch_size to one of {}", divisors(rows / pp))
                } else {
                    let step = product([dp, pp]);
                    let found = product([dp, rows]);
                    format!("set global_batch_size to {}, and micro_batch_size to 1", around(step, found))
                }
            }
        })
    }
}

/// A single error is shown as itself, several as a list with hints.
impl fmt::Display for ParallelDimErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.errors.as_slice() {
            return only.fmt(f);
        }
        write!(f, "{} parallel sizes do not fit", self.errors.len())?;
        for error in &self.errors {
            write!(f, "\n  {error}")?;
            if let Some(hint) = error.hint() {
                write!(f, "\n    hint: {hint}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for ParallelDimErrors {}

impl Hint for ParallelDimErrors {
    fn hint(&self) -> Option<String> {
        match self.errors.as_slice() {
            [only] => only.hint(),
            _ => None,
        }
    }
}
