//! Saves a state from the ranks of a mesh, or loads a checkpoint on them and
//! compares it with what it must be; for `interop/run.py`.
//!
//! The one argument is a job as JSON. The tensors come from, or are compared
//! with, a safetensors file that another reader than ours opens, so that a
//! mistake cannot hide by being made twice.

#![allow(clippy::print_stdout, reason = "the script reads the answer")]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use safetensors::SafeTensors;
use serde::Deserialize;
use serde_json::Value;
use weightloom_checkpoint::plan::LoadState;
use weightloom_checkpoint::{
    LoadOptions, LocalTensor, SaveFormat, SaveOptions, Saver, Sharding, Source, State, Target, TensorSpec,
    load,
};
use weightloom_gang::{Gang, GangOptions, threads};
use weightloom_layout::{DType, Layout, Mesh, Placement, Region, Shape, Tile, TileMut, copy_region};

type Failure = Box<dyn Error + Send + Sync>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Job {
    action: Action,
    /// The checkpoint's folder.
    checkpoint: PathBuf,
    /// A safetensors file with all tensors, whole.
    tensors: PathBuf,
    /// As in `mesh(dp=2, tp=2)`.
    mesh: String,
    /// How tensors lie, as in `[S(0), R]`. Others go round all that is possible.
    #[serde(default)]
    layouts: BTreeMap<String, String>,
    /// What is not a tensor.
    #[serde(default)]
    values: BTreeMap<String, Value>,
    /// Tensors whose names begin so belong to the training.
    #[serde(default)]
    training: Option<String>,
    /// Files to save beside the tensors.
    #[serde(default)]
    assets: BTreeMap<String, String>,
    /// Bytes of a file.
    #[serde(default)]
    shard_size: Option<u64>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    Native,
    Dcp,
    Load,
}

/// A rank's part of a tensor.
struct Local {
    name: String,
    spec: TensorSpec,
    bytes: Vec<u8>,
}

fn main() -> Result<(), Failure> {
    let job: Job = serde_json::from_str(&std::env::args().nth(1).ok_or("give a job")?)?;
    let file = fs::read(&job.tensors)?;
    let tensors = SafeTensors::deserialize(&file)?;
    let mesh: Mesh = job.mesh.parse()?;
    let done = threads::run(mesh.len(), GangOptions::default(), |gang| {
        let locals = locals(&job, &tensors, mesh, gang.rank())?;
        match job.action {
            Action::Load => compare(&job, &locals, &*gang),
            Action::Native => save(&job, &locals, gang, SaveFormat::Native),
            Action::Dcp => save(&job, &locals, gang, SaveFormat::Dcp),
        }
    })?;
    done.into_iter().collect::<Result<Vec<()>, Failure>>()?;
    println!("{}", tensors.len());
    Ok(())
}

fn save(job: &Job, locals: &[Local], gang: Arc<dyn Gang>, format: SaveFormat) -> Result<(), Failure> {
    let mut state = State::new();
    for Local { name, spec, bytes } in locals {
        let tensor = LocalTensor { spec: spec.clone(), bytes: bytes.into() };
        match &job.training {
            Some(prefix) if name.starts_with(prefix) => state.training(name, tensor),
            _ => state.model(name, tensor),
        };
    }
    for (name, value) in &job.values {
        state.value(name, value)?;
    }
    let mut options = SaveOptions { format, ..SaveOptions::default() };
    options.assets =
        job.assets.iter().map(|(name, text)| (name.clone(), text.clone().into_bytes())).collect();
    options.shard_size = job.shard_size.unwrap_or(options.shard_size);
    Saver::new(gang)?.save(&state, &Target::Folder(job.checkpoint.clone()), &options, &())?;
    Ok(())
}

fn compare(job: &Job, expected: &[Local], gang: &dyn Gang) -> Result<(), Failure> {
    // Bytes that stand nowhere in a tensor by accident.
    let mut found: Vec<Vec<u8>> = expected.iter().map(|local| vec![0xa5; local.bytes.len()]).collect();
    let mut values: Vec<(&String, Vec<u8>)> = job.values.keys().map(|name| (name, Vec::new())).collect();
    let mut state = LoadState::new();
    for (local, into) in expected.iter().zip(&mut found) {
        state.tensor(&local.name, local.spec.clone(), into);
    }
    for (name, into) in &mut values {
        state.bytes(name.as_str(), into);
    }
    load(&Source::open(&job.checkpoint)?, state, gang, &LoadOptions::default(), &())?;
    for (local, found) in expected.iter().zip(&found) {
        if local.bytes != *found {
            return Err(format!("rank {} has other bits of `{}`", gang.rank(), local.name).into());
        }
    }
    for (name, bytes) in &values {
        let (found, expected): (Value, _) = (serde_json::from_slice(bytes)?, &job.values[*name]);
        if found != *expected {
            return Err(format!("`{name}` is {found}, not {expected}").into());
        }
    }
    Ok(())
}

/// What a rank holds of all tensors.
fn locals(job: &Job, tensors: &SafeTensors<'_>, mesh: Mesh, rank: usize) -> Result<Vec<Local>, Failure> {
    let mut locals = Vec::new();
    // Sorted, so that all ranks and runs choose the same layouts.
    let tensors: BTreeMap<String, _> = tensors.tensors().into_iter().collect();
    for (number, (name, view)) in tensors.into_iter().enumerate() {
        let shape = Shape::new(view.shape())?;
        let dtype = dtype_of(view.dtype())?;
        let layout = match job.layouts.get(&name) {
            Some(placements) => format!("{mesh} {placements}").parse()?,
            None => in_turn(mesh, shape.ndim(), number)?,
        };
        let region = layout.region_of(&shape, rank)?;
        let mut bytes = vec![0; region.volume() * dtype.size()];
        let whole = Region::whole(&shape);
        let from = Tile { region: &whole, bytes: view.data() };
        copy_region(&region, dtype.size(), from, &mut TileMut { region: &region, bytes: &mut bytes })?;
        locals.push(Local {
            name,
            spec: TensorSpec { dtype, shape, sharding: Sharding::Layout(layout) },
            bytes,
        });
    }
    Ok(locals)
}

/// The layout that comes with a number: each axis shards one of the dims or
/// holds copies.
fn in_turn(mesh: Mesh, ndim: usize, number: usize) -> Result<Layout, Failure> {
    let mut rest = number;
    let mut placements = Vec::new();
    for _ in 0..mesh.ndim() {
        let choice = rest % (ndim + 1);
        rest /= ndim + 1;
        placements.push(if choice == ndim { Placement::Replicate } else { Placement::Shard(choice) });
    }
    Ok(Layout::new(mesh, &placements)?)
}

fn dtype_of(dtype: safetensors::Dtype) -> Result<DType, Failure> {
    use safetensors::Dtype as Other;
    Ok(match dtype {
        Other::F64 => DType::F64,
        Other::F32 => DType::F32,
        Other::F16 => DType::F16,
        Other::BF16 => DType::Bf16,
        Other::F8_E4M3 => DType::F8E4M3,
        Other::F8_E5M2 => DType::F8E5M2,
        Other::I64 => DType::I64,
        Other::I32 => DType::I32,
        Other::I16 => DType::I16,
        Other::I8 => DType::I8,
        Other::U64 => DType::U64,
        Other::U32 => DType::U32,
        Other::U16 => DType::U16,
        Other::U8 => DType::U8,
        Other::BOOL => DType::Bool,
        other => return Err(format!("dtype {other:?}").into()),
    })
}
