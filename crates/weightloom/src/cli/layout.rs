//! `weightloom layout`.

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueHint};
use serde::Serialize;
use weightloom::errors::Hint;
use weightloom::gang::check_reducible;
use weightloom::layout::{
    DType, Layout, LayoutError, Placement, Prices, ReduceOp, Shape, Step, greedy_plan, plan,
};

use super::failure::Failure;
use super::output::{Output, bytes, table};

/// The maximum number of ranks to list.
const LISTED: usize = 32;

/// The maximum number of ranks to compute; more than the largest machines have.
const MAX_RANKS: usize = 1 << 20;

/// Help on the syntax of layouts.
macro_rules! layout_syntax {
    () => {
        "A layout is a mesh and one placement per mesh axis:
  R        replicated: every rank along the axis has the same values
  S(dim)   sharded: the ranks split this dim, counted from 0
  P(op)    partial: values to be reduced by sum, avg, max, min or prod
If several axes split one dim, the first one splits first, unless @ reorders them:
  [S(0)@1, S(0)@0]              the second axis splits first
  mesh(tp=4; ranks=4..8)        a mesh of ranks 4 to 7
"
    };
}

#[derive(Subcommand)]
pub(super) enum LayoutCommand {
    /// Show the region of a tensor on each rank.
    #[command(after_help = concat!(layout_syntax!(), "
Examples:
  weightloom layout show 'mesh(dp=2,tp=4) [R, S(0)]' --shape 4096x1024
  weightloom layout show 'mesh(dp=2,tp=2) [S(0)@1, S(0)@0]' --shape 10x3   tp splits first, then dp
  weightloom layout show 'mesh(tp=8) [S(1)]' --shape 4096x1024 --rank 3 --json"))]
    Show(ShowArgs),

    /// Plan the cheapest redistribution from one layout to another.
    #[command(after_help = concat!(layout_syntax!(), "
Steps: slice and seed are local, the others are collectives along one mesh axis.
  slice            each rank keeps its chunk of a replicated dim
  seed             replicated values become partial ones that reduce to the same
  all-gather, all-to-all, reduce-scatter, all-reduce
  exchange         the ranks of another mesh receive their regions

Examples:
  weightloom layout move 'mesh(dp=2,tp=4) [S(0), S(1)]' 'mesh(dp=2,tp=4) [R, S(1)]' --shape 4096x4096
  weightloom layout move 'mesh(x=8) [S(0)]' 'mesh(a=2,b=2) [S(1), R]' --shape 64x64 --dtype bf16"))]
    Move(MoveArgs),
}

#[derive(Args)]
pub(super) struct ShowArgs {
    /// Layout, as in 'mesh(dp=2,tp=4) [R, S(0)]'.
    layout: String,

    /// Global shape, as in 4096x1024, or `scalar`.
    #[arg(long, allow_hyphen_values = true, value_hint = ValueHint::Other)]
    shape: String,

    /// Dtype: f64, f32, bf16, f16, f8e4m3, f8e5m2, i64, i32, i16,
    /// i8, u64, u32, u16, u8 or bool.
    #[arg(long, default_value = "f32", value_hint = ValueHint::Other)]
    dtype: String,

    /// Show this rank only.
    #[arg(long, allow_negative_numbers = true, value_hint = ValueHint::Other)]
    rank: Option<usize>,
}

#[derive(Args)]
pub(super) struct MoveArgs {
    /// Source layout.
    from: String,

    /// Target layout, on the same or another mesh.
    to: String,

    /// Global shape, as in 4096x1024, or `scalar`.
    #[arg(long, allow_hyphen_values = true, value_hint = ValueHint::Other)]
    shape: String,

    /// Dtype: f64, f32, bf16, f16, f8e4m3, f8e5m2, i64, i32, i16,
    /// i8, u64, u32, u16, u8 or bool.
    #[arg(long, default_value = "f32", value_hint = ValueHint::Other)]
    dtype: String,

    /// Cost of starting a collective, in bytes per rank.
    #[arg(long, allow_negative_numbers = true, value_hint = ValueHint::Other, value_name = "BYTES", default_value_t = Prices::default().bytes_per_collective)]
    collective_cost: u64,
}

pub(super) fn run(command: &LayoutCommand, output: Output) -> Result<ExitCode, Failure> {
    match command {
        LayoutCommand::Show(args) => show(args, output),
        LayoutCommand::Move(args) => show_move(args, output),
    }
}

fn read<T>(argument: &str, text: &str) -> Result<T, Failure>
where
    T: std::str::FromStr,
    T::Err: std::error::Error + Hint,
{
    text.parse().map_err(|error| Failure::user(&error).about(argument))
}

#[derive(Serialize)]
struct Held {
    rank: usize,
    coordinate: Vec<usize>,
    start: Vec<usize>,
    size: Vec<usize>,
    bytes: u64,
    /// The first rank that holds the same values.
    same_as: usize,
}

#[derive(Serialize)]
struct Shown {
    layout: String,
    shape: Vec<usize>,
    dtype: DType,
    /// Reductions still to be done, by mesh axis.
    pending: Vec<Pending>,
    ranks: Vec<Held>,
}

#[derive(Serialize)]
struct Pending {
    axis: &'static str,
    op: ReduceOp,
}

fn show(args: &ShowArgs, output: Output) -> Result<ExitCode, Failure> {
    let layout: Layout = read("LAYOUT", &args.layout)?;
    let shape: Shape = read("--shape", &args.shape)?;
    let dtype: DType = read("--dtype", &args.dtype)?;
    let ranks: Vec<usize> = match args.rank {
        Some(rank) => vec![rank],
        None => check_countable(layout)?.mesh().ranks().collect(),
    };
    let failure = |error| Failure::user(&error);
    let held = |&rank: &usize| -> Result<Held, Failure> {
        let region = layout.region_of(&shape, rank).map_err(failure)?;
        let coordinate = layout.mesh().coordinate(rank).map_err(|error| failure(error.into()))?;
        Ok(Held {
            rank,
            coordinate: coordinate.to_vec(),
            start: region.start().to_vec(),
            size: region.size().to_vec(),
            bytes: (region.volume() * dtype.size()) as u64,
            same_as: first_copy(layout, rank).map_err(failure)?,
        })
    };
    let ranks = ranks.iter().map(held).collect::<Result<_, _>>()?;
    let pending =
        layout.pending().map(|(axis, op)| Pending { axis: layout.mesh().axis_name(axis), op }).collect();
    let shown = Shown { layout: layout.to_string(), shape: shape.to_vec(), dtype, pending, ranks };
    output.show(&shown, |shown| {
        let axes: Vec<&str> = layout.mesh().axis_names().collect();
        let mut table = table(&["rank", &axes.join(","), "region", "size", "bytes", "same on"], &[0, 4]);
        for held in shown.ranks.iter().take(LISTED) {
            let others = match check_countable(layout).and_then(|_| layout.copies(held.rank).map_err(failure))
            {
                Ok(replicas) => shortened(&replicas, held.rank),
                Err(_) => "(too many to list)".to_owned(),
            };
            let ranges: Vec<String> = held
                .start
                .iter()
                .zip(&held.size)
                .map(|(start, size)| format!("{start}:{}", start + size))
                .collect();
            table.add_row([
                held.rank.to_string(),
                join(&held.coordinate, ","),
                format!("[{}]", ranges.join(", ")),
                if held.size.is_empty() { "scalar".to_owned() } else { join(&held.size, "x") },
                bytes(held.bytes),
                others,
            ]);
        }
        let hidden = shown.ranks.len().saturating_sub(LISTED);
        let more = match hidden {
            0 => String::new(),
            _ => format!("\n… and {hidden} more ranks; `--rank N` shows one, `--json` all"),
        };
        let pending: Vec<String> =
            shown.pending.iter().map(|p| format!("\npending: {} over {}", p.op, p.axis)).collect();
        format!("{} of a {shape} {dtype} tensor\n{table}{more}{}", shown.layout, pending.concat())
    })
}

/// The first rank that holds the same values: at 0 along every axis that
/// replicates.
fn first_copy(layout: Layout, rank: usize) -> Result<usize, LayoutError> {
    let mut coordinate = layout.mesh().coordinate(rank)?;
    for (axis, &placement) in layout.placements().iter().enumerate() {
        if placement == Placement::Replicate {
            coordinate[axis] = 0;
        }
    }
    Ok(layout.mesh().rank_at(&coordinate)?)
}

/// Refuses meshes with more ranks than can be listed.
fn check_countable(layout: Layout) -> Result<Layout, Failure> {
    let ranks = layout.mesh().len();
    if ranks <= MAX_RANKS {
        return Ok(layout);
    }
    Err(Failure::user(&TooManyRanks { ranks }))
}

#[derive(Debug, thiserror::Error)]
#[error("a mesh of {ranks} ranks is too large to list; at most {MAX_RANKS} are")]
struct TooManyRanks {
    ranks: usize,
}

impl Hint for TooManyRanks {
    fn hint(&self) -> Option<String> {
        Some("look at one rank with `layout show --rank N`".to_owned())
    }
}

fn join(numbers: &[usize], separator: &str) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(separator)
}

/// The ranks other than `own`, or the first few and their number.
fn shortened(ranks: &[usize], own: usize) -> String {
    let others: Vec<usize> = ranks.iter().copied().filter(|&rank| rank != own).collect();
    match others.len() {
        0..=8 => join(&others, ", "),
        count => format!("{}, … ({count})", join(&others[..6], ", ")),
    }
}

#[derive(Serialize)]
struct MoveStage {
    step: String,
    layout: String,
    /// Bytes received by the rank that receives most.
    bytes_per_rank: u64,
}

#[derive(Serialize)]
struct Moved {
    from: String,
    to: String,
    shape: Vec<usize>,
    dtype: DType,
    stages: Vec<MoveStage>,
    /// Bytes that all ranks together receive.
    total_bytes: u64,
    /// The same for a plan in fixed order that weighs no costs.
    fixed_order_bytes: u64,
    /// Whether the plan is known to be the cheapest.
    optimal: bool,
}

fn show_move(args: &MoveArgs, output: Output) -> Result<ExitCode, Failure> {
    let source = check_countable(read("FROM", &args.from)?)?;
    let target = check_countable(read("TO", &args.to)?)?;
    let shape: Shape = read("--shape", &args.shape)?;
    let dtype: DType = read("--dtype", &args.dtype)?;
    let prices = Prices { bytes_per_collective: args.collective_cost, ..Prices::default() };
    let cheapest = plan(source, target, &shape, dtype, prices).map_err(|error| Failure::user(&error))?;
    let fixed = greedy_plan(source, target, &shape, dtype).map_err(|error| Failure::user(&error))?;
    for stage in cheapest.stages() {
        if let Step::AllReduce { op, .. } | Step::ReduceScatter { op, .. } = stage.step {
            check_reducible(dtype, op).map_err(|error| Failure::user(&error).about("--dtype"))?;
        }
    }
    let mut stages = Vec::new();
    let mut total_bytes = 0;
    for stage in cheapest.stages() {
        let mut most = 0;
        for rank in stage.after.mesh().ranks() {
            let received =
                stage.received(&shape, rank).map_err(|error| Failure::user(&error))? * dtype.size();
            total_bytes += received as u64;
            most = most.max(received as u64);
        }
        stages.push(MoveStage {
            step: stage.to_string(),
            layout: stage.after.to_string(),
            bytes_per_rank: most,
        });
    }
    let mut fixed_order_bytes = 0;
    for rank in
        source.mesh().ranks().chain(target.mesh().ranks().filter(|&r| source.mesh().position(r).is_err()))
    {
        fixed_order_bytes += fixed.received(rank).map_err(|error| Failure::user(&error))?;
    }
    let moved = Moved {
        from: source.to_string(),
        to: target.to_string(),
        shape: shape.to_vec(),
        dtype,
        stages,
        total_bytes,
        fixed_order_bytes,
        optimal: cheapest.is_optimal(),
    };
    output.show(&moved, |moved| {
        let title = format!("{shape} {dtype}: {} -> {}", moved.from, moved.to);
        if moved.stages.is_empty() {
            return format!("{title}\nnothing to do");
        }
        let mut table = table(&["step", "layout after", "received, most on a rank"], &[2]);
        for stage in &moved.stages {
            table.add_row([stage.step.clone(), stage.layout.clone(), bytes(stage.bytes_per_rank)]);
        }
        let note = match (moved.optimal, source.mesh() == target.mesh()) {
            (true, _) | (_, false) => "",
            _ => "\nnote: too many axes to look at every plan; there may be a cheaper one",
        };
        format!(
            "{title}\n{table}\n{} received by all ranks together; {} if reduced first, then moved dim by dim{note}",
            bytes(moved.total_bytes),
            bytes(moved.fixed_order_bytes)
        )
    })
}
