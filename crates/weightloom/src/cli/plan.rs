//! `weightloom plan`: the memory of each rank for a model, or its reads from a
//! checkpoint.

use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::{Args, ValueHint};
use serde::Serialize;
use weightloom::Registry;
use weightloom::checkpoint::{Extent, Source, TensorEntry, extents};
use weightloom::errors::Hint;
use weightloom::gang::GangSizes;
use weightloom::layout::{Layout, Mesh, Placement, TextError};

use super::convert::glob;
use super::failure::Failure;
use super::hub::HubArgs;
use super::located::open_checkpoint;
use super::model_plan::{self, Sharing};
use super::output::{Output, bytes, counted, table};

#[derive(Args)]
pub(super) struct PlanArgs {
    /// Model or checkpoint: card, file, folder, run, adapter, org/name or URL.
    #[arg(value_hint = ValueHint::AnyPath)]
    path: String,

    /// Tensor-parallel ranks.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "mesh", value_hint = ValueHint::Other)]
    tp: usize,

    /// Pipeline stages.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "mesh", value_hint = ValueHint::Other)]
    pp: usize,

    /// Data-parallel ranks.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "mesh", value_hint = ValueHint::Other)]
    dp: usize,

    /// Data-parallel ranks that shard parameters.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "mesh", value_hint = ValueHint::Other)]
    sdp: usize,

    /// Dtype of the parameters [default: that of the checkpoint, or bf16].
    #[arg(long, value_parser = super::convert::dtype, conflicts_with = "mesh", value_hint = ValueHint::Other)]
    dtype: Option<weightloom::layout::DType>,

    /// Context length of the key-value cache.
    #[arg(long, value_name = "N", default_value_t = 4096, conflicts_with = "mesh", value_hint = ValueHint::Other)]
    context: usize,

    /// Plan the reads of a checkpoint on this mesh, as in dp=2,tp=4.
    #[arg(long, value_name = "AXES", value_parser = mesh, value_hint = ValueHint::Other)]
    mesh: Option<Mesh>,

    /// Show the tensors of one rank.
    #[arg(long, value_name = "N", value_hint = ValueHint::Other)]
    rank: Option<usize>,

    /// Layout of matching tensors, with one placement per axis, as in
    /// '*.o_proj.weight=R,S(1)'; repeatable, and the first match counts. By default,
    /// an axis tp shards projections as in Llama, axes fsdp, sdp or shard split dim
    /// 0, and other axes replicate.
    #[arg(long, value_name = "GLOB=PLACEMENTS", value_hint = ValueHint::Other)]
    shard: Vec<String>,

    #[command(flatten)]
    hub: HubArgs,
}

/// Parses axes with or without `mesh(…)`.
fn mesh(text: &str) -> Result<Mesh, TextError> {
    if text.starts_with("mesh(") { text.parse() } else { format!("mesh({text})").parse() }
}

/// An invalid plan.
#[derive(Debug, thiserror::Error)]
enum PlanFailure {
    #[error("invalid rule `{text}`: {reason}")]
    Rule { text: String, reason: String },
    #[error("unknown rank {rank} of {mesh}")]
    NoSuchRank { rank: usize, mesh: Mesh },
    #[error("cannot place `{tensor}` of shape {shape} as {layout}: {reason}")]
    Layout { tensor: String, shape: String, layout: Layout, reason: String },
}

impl Hint for PlanFailure {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Rule { .. } => Some("use a rule such as `--shard '*.o_proj.weight=R,S(1)'`".to_owned()),
            Self::NoSuchRank { mesh, .. } => Some(format!("use 0 to {}", mesh.len() - 1)),
            Self::Layout { .. } => Some("add a rule for the tensor with `--shard`".to_owned()),
        }
    }
}

#[derive(Serialize)]
struct Planned {
    mesh: String,
    ranks: Vec<Rank>,
}

#[derive(Serialize)]
struct Rank {
    rank: usize,
    /// Bytes of its shards in memory.
    keeps: u64,
    reads: u64,
    requests: u64,
    files: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tensors: Vec<Tensor>,
}

#[derive(Serialize)]
struct Tensor {
    name: String,
    layout: String,
    region: String,
    keeps: u64,
    extents: Vec<Bytes>,
}

#[derive(Serialize)]
struct Bytes {
    file: String,
    start: u64,
    end: u64,
}

/// The layout of tensors with matching names.
struct Rule {
    matcher: globset::GlobMatcher,
    layout: Layout,
}

pub(super) fn run(args: &PlanArgs, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    let Some(mesh) = args.mesh else {
        let sizes = GangSizes { pp: args.pp, tp: args.tp, sdp: Some(args.sdp) };
        let (dp, dtype, context, rank) = (args.dp, args.dtype, args.context, args.rank);
        let sharing = Sharing { sizes, dp, dtype, context, rank };
        return model_plan::run(&args.path, &sharing, args.hub.hub(registry)?, output);
    };
    let source = open_checkpoint(registry, &args.path, output)?;
    let failed = |error: PlanFailure| Failure::user(&error);
    let rules: Vec<Rule> =
        args.shard.iter().map(|text| rule(text, mesh)).collect::<Result<_, _>>().map_err(failed)?;
    let ranks: Vec<usize> = match args.rank {
        Some(rank) if mesh.position(rank).is_err() => {
            return Err(failed(PlanFailure::NoSuchRank { rank, mesh }));
        }
        Some(rank) => vec![rank],
        None => mesh.ranks().collect(),
    };
    let ranks = ranks.into_iter().map(|rank| plan(&source, mesh, args, &rules, rank));
    let planned = Planned { mesh: mesh.to_string(), ranks: ranks.collect::<Result<_, _>>().map_err(failed)? };
    output.show(&planned, text)
}

fn rule(text: &str, mesh: Mesh) -> Result<Rule, PlanFailure> {
    let failed = |reason: String| PlanFailure::Rule { text: text.to_owned(), reason };
    let (pattern, placements) = text.rsplit_once('=').ok_or_else(|| failed("it has no `=`".to_owned()))?;
    let matcher = glob(pattern).map_err(|error| failed(error.kind().to_string()))?.compile_matcher();
    let placements = placements.trim_start_matches('[').trim_end_matches(']');
    let layout: Layout =
        format!("{mesh} [{placements}]").parse().map_err(|error: TextError| failed(error.to_string()))?;
    Ok(Rule { matcher, layout })
}

/// The layout of a tensor without a rule.
fn default_layout(name: &str, entry: &TensorEntry, mesh: Mesh) -> Layout {
    let rows = ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head", "qkv_proj"];
    let columns = ["o_proj", "down_proj"];
    let named = |words: &[&str]| words.iter().any(|word| name.contains(word));
    let ndim = entry.shape.ndim();
    let placement = |axis: usize| match mesh.axis_name(axis) {
        "tp" if named(&rows) && ndim >= 1 => Placement::Shard(0),
        "tp" if named(&columns) && ndim >= 2 => Placement::Shard(1),
        "fsdp" | "sdp" | "shard" if ndim >= 1 => Placement::Shard(0),
        _ => Placement::Replicate,
    };
    let placements: Vec<Placement> = (0..mesh.ndim()).map(placement).collect();
    Layout::new(mesh, &placements).unwrap_or_else(|_| Layout::replicated(mesh))
}

fn plan(
    source: &Source,
    mesh: Mesh,
    args: &PlanArgs,
    rules: &[Rule],
    rank: usize,
) -> Result<Rank, PlanFailure> {
    let mut planned = Rank { rank, keeps: 0, reads: 0, requests: 0, files: 0, tensors: Vec::new() };
    let mut files = BTreeSet::new();
    for (name, entry) in source.index.tensors() {
        let ruled = rules.iter().find(|rule| rule.matcher.is_match(name)).map(|rule| rule.layout);
        let layout = ruled.unwrap_or_else(|| default_layout(name, entry, mesh));
        let region = layout.region_of(&entry.shape, rank).map_err(|error| PlanFailure::Layout {
            tensor: name.clone(),
            shape: entry.shape.to_string(),
            layout,
            reason: error.to_string(),
        })?;
        let wanted = extents(entry, &region, source.storage.gap());
        let keeps = region.volume() as u64 * entry.dtype.size() as u64;
        planned.keeps += keeps;
        planned.reads += wanted.iter().map(|extent| extent.end - extent.start).sum::<u64>();
        planned.requests += wanted.len() as u64;
        files.extend(wanted.iter().map(|extent| extent.file));
        if args.rank.is_some() {
            let bytes = |extent: &Extent| Bytes {
                file: source.index.file(extent.file).name.clone(),
                start: extent.start,
                end: extent.end,
            };
            planned.tensors.push(Tensor {
                name: name.clone(),
                layout: layout.to_string(),
                region: region.to_string(),
                keeps,
                extents: wanted.iter().map(bytes).collect(),
            });
        }
    }
    planned.files = files.len();
    Ok(planned)
}

fn text(planned: &Planned) -> String {
    if let [rank] = planned.ranks.as_slice()
        && !rank.tensors.is_empty()
    {
        return one_rank(&planned.mesh, rank);
    }
    let mut table =
        table(&["rank", "keeps", "reads", "reads ÷ keeps", "requests", "files"], &[0, 1, 2, 3, 4, 5]);
    for rank in &planned.ranks {
        table.add_row([
            rank.rank.to_string(),
            bytes(rank.keeps),
            bytes(rank.reads),
            format!("{:.3}", rank.reads as f64 / (rank.keeps as f64).max(1.0)),
            rank.requests.to_string(),
            rank.files.to_string(),
        ]);
    }
    format!("{}\n{table}", planned.mesh)
}

fn one_rank(mesh: &str, rank: &Rank) -> String {
    let mut table = table(&["tensor", "region", "keeps", "extents", "first extent"], &[2, 3]);
    for tensor in &rank.tensors {
        let first = tensor
            .extents
            .first()
            .map_or_else(String::new, |extent| format!("{} {}..{}", extent.file, extent.start, extent.end));
        table.add_row([
            tensor.name.clone(),
            tensor.region.clone(),
            bytes(tensor.keeps),
            tensor.extents.len().to_string(),
            first,
        ]);
    }
    format!(
        "rank {} of {mesh}: keeps {}, reads {} in {} from {}\n{table}",
        rank.rank,
        bytes(rank.keeps),
        bytes(rank.reads),
        counted(rank.requests as usize, "request"),
        counted(rank.files, "file")
    )
}
