//! Loading of a model from a checkpoint, sharded over the ranks.
//!
//! Each rank allocates and reads only its own shards, once. Missing keys,
//! unexpected keys and wrong shapes are found before the first read, for all
//! stages; what to do about them is a [`Strictness`]. Every element is written exactly once, because the tiles in the index
//! cover each tensor exactly once.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use weightloom_checkpoint::plan::{
    LoadPlannerFactory, LoadState, MissingKeys, StandardPlanners, UnexpectedKeys,
};
use weightloom_checkpoint::storage::ReadMode;
use weightloom_checkpoint::{
    Index, KeyMap, KeyRule, LoadReport, Observer, ReadOptions, ReadRequest, Section, Sharding, Source,
    TensorSpec, Verify, load_groups, load_planned, read,
};
use weightloom_dtensor::{DTensor, DistContext, DistOptions};
use weightloom_errors::nearest;
use weightloom_gang::{GangOptions, GangSizes, Gangs, solo};
use weightloom_layout::{DType, Mesh, Region};
use weightloom_nn::{Model, ModelDefinition, ModelShard, Parallel, ParameterSpec, Plan, Stage, Usage};
use weightloom_tensor::{Device, HostMemory, Tensor};

use crate::error::{CheckpointMismatch, HubError};
use crate::strictness::Strictness;

/// Options for loading a model.
#[derive(Clone, Default)]
pub struct ModelLoadOptions {
    /// The ranks to shard the model over; `None` loads all of it on this rank.
    pub gangs: Option<Gangs>,
    /// The device of this rank. A context has its own.
    pub device: Device,
    /// The dtype of parameters; defaults to the checkpoint's.
    pub dtype: Option<DType>,
    /// How to read files. `Mapped` parameters share memory with the files where
    /// the format allows: nothing is read before its first use, and the files
    /// must not change.
    pub read_mode: Option<ReadMode>,
    /// Whether to compare checksums.
    pub verify: Verify,
    /// The layers of this rank; defaults to its pipeline stage.
    pub stage: Option<Stage>,
    /// Intended use of the parameters.
    pub usage: Usage,
    /// The context to share between several models.
    pub dist: Option<Arc<DistContext>>,
    /// Sharding rules of the operations that the model uses; defaults to those of the
    /// hub, or the built-in ones. A context has its own.
    pub operations: Option<weightloom_dtensor::Registry>,
    /// Who decides what this rank reads; defaults to the standard planner.
    pub planner: Option<Arc<dyn LoadPlannerFactory>>,
    /// What to do with tensors that do not match.
    pub strictness: Strictness,
    /// The seed of parameters that the checkpoint does not provide.
    pub seed: u64,
}

impl std::fmt::Debug for ModelLoadOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mesh = self.gangs.as_ref().map(Gangs::mesh);
        f.debug_struct("ModelLoadOptions")
            .field("mesh", &mesh)
            .field("device", &self.device)
            .field("dtype", &self.dtype)
            .field("read_mode", &self.read_mode)
            .field("verify", &self.verify)
            .field("stage", &self.stage)
            .field("usage", &self.usage)
            .field("strictness", &self.strictness)
            .field("seed", &self.seed)
            .finish()
    }
}

impl ModelLoadOptions {
    /// The same options, with these operations if there are none.
    pub(crate) fn or_operations(&self, operations: &weightloom_dtensor::Registry) -> Self {
        let mut options = self.clone();
        options.operations.get_or_insert_with(|| operations.clone());
        options
    }

    /// The given gangs, or this rank alone.
    fn effective_gangs(&self) -> Result<Gangs, HubError> {
        match (&self.gangs, self.device) {
            (_, Device::Meta) => Err(HubError::MetaDevice),
            (Some(gangs), _) => Ok(gangs.clone()),
            (None, _) => Ok(Gangs::new(solo(GangOptions::default()), &GangSizes::default())?),
        }
    }
}

/// Bytes in host memory on their way to a GPU, unless one parameter has more.
const STAGING: u64 = 1 << 30;

/// One rank's shard of a model.
struct RankShard {
    gangs: Gangs,
    dist: Arc<DistContext>,
    stage: Stage,
    plan: Plan,
    specs: Vec<ParameterSpec>,
}

/// The mesh of one pipeline stage.
fn stage_mesh(gangs: &Gangs) -> Result<Mesh, HubError> {
    let mesh = gangs.mesh().sub_mesh(gangs.root.rank(), &["rdp", "sdp", "tp"]);
    Ok(mesh.map_err(weightloom_gang::GangsError::from)?)
}

impl RankShard {
    fn new(
        definition: &dyn ModelDefinition,
        parallel: &Parallel,
        options: &ModelLoadOptions,
    ) -> Result<Self, HubError> {
        definition.check()?;
        let gangs = options.effective_gangs()?;
        let stage = match &options.stage {
            Some(stage) => stage.clone(),
            None => Stage::one_of(definition.layers(), gangs.pp.rank(), gangs.pp.size())?,
        };
        let specs = definition.parameters(&stage);
        let plan = Plan::new(parallel, &specs, stage_mesh(&gangs)?)?.with_usage(options.usage);
        let dist = options.dist.clone().unwrap_or_else(|| {
            let registry = options.operations.clone().unwrap_or_default();
            let options = DistOptions { device: options.device, registry, ..DistOptions::default() };
            DistContext::with_options(Arc::clone(&gangs.root), options)
        });
        Ok(Self { gangs, dist, stage, plan, specs })
    }

    /// The parameters that are read together, as ranges of `specs`: all of them into
    /// host memory, and for a GPU as many at a time as [`STAGING`] allows. All ranks
    /// read in as many groups.
    fn groups(&self, dtype: DType) -> Result<Vec<Range<usize>>, HubError> {
        let mut sizes = Vec::with_capacity(self.specs.len());
        for spec in &self.specs {
            let layout = self.plan.layout_of(&spec.name);
            // The first rank of a mesh has the largest shard.
            let first = layout.mesh().ranks().next().unwrap_or(0);
            let largest = layout.local_shape(&spec.shape, first).map_err(weightloom_nn::NnError::from)?;
            sizes.push((largest.volume() * dtype.size()) as u64);
        }
        let budget = if self.dist.device() == Device::Cpu { u64::MAX } else { STAGING };
        Ok(load_groups(sizes, budget, &*self.gangs.root).map_err(weightloom_gang::GangsError::from)?)
    }

    fn build(
        self,
        definition: &dyn ModelDefinition,
        values: Vec<(String, DTensor)>,
    ) -> Result<Box<dyn Model>, HubError> {
        let Self { dist, stage, plan, specs, .. } = self;
        Ok(definition.build(ModelShard::new(specs, stage, plan, dist, values)?)?)
    }
}

/// A checkpoint under the names of the model's parameters.
fn with_model_names(
    source: &Source,
    keys: &KeyMap,
    definition: &dyn ModelDefinition,
) -> Result<Source, HubError> {
    let mut keys = keys.clone();
    keys.rules.extend(definition.redundant_tensors().into_iter().map(|key| KeyRule::Drop { key }));
    let changes = keys.rules.iter().any(|rule| match rule {
        KeyRule::Drop { key } => source.index.tensors().contains_key(key) || key.contains("{}"),
        _ => true,
    });
    // Renamed tensors have no checksums, so rename only if necessary.
    if changes { Ok(source.with_keys(&keys)?) } else { Ok(source.clone()) }
}

/// A checkpoint under the model's names, checked against the model, and the
/// differences that are accepted.
fn checked_source(
    source: &Source,
    keys: &KeyMap,
    definition: &dyn ModelDefinition,
    strictness: Strictness,
) -> Result<(Source, CheckpointMismatch), HubError> {
    let original = source;
    let source = with_model_names(source, keys, definition)?;
    let mut mismatch = find_mismatch(&source.index, definition);
    // Training state is not part of the model.
    mismatch.unexpected.retain(|name| !belongs_to_training(original, name));
    if strictness.accepts(&mismatch, definition.all_parameters().len()) {
        return Ok((source, mismatch));
    }
    Err(HubError::Incompatible { location: source.storage.location(), mismatch })
}

/// Whether a tensor is training state rather than a part of the model.
pub(crate) fn belongs_to_training(source: &Source, name: &str) -> bool {
    let entry = source.manifest.as_ref().and_then(|manifest| manifest.tensors.get(name));
    entry.is_some_and(|tensor| tensor.section == Section::Training)
}

/// Compares a checkpoint with a model.
fn find_mismatch(index: &Index, definition: &dyn ModelDefinition) -> CheckpointMismatch {
    let wanted: BTreeMap<String, ParameterSpec> =
        definition.all_parameters().into_iter().map(|spec| (spec.name.clone(), spec)).collect();
    let found = index.tensors();
    let unexpected: Vec<String> = found.keys().filter(|name| !wanted.contains_key(*name)).cloned().collect();
    let mut result = CheckpointMismatch { unexpected, ..CheckpointMismatch::default() };
    for (name, spec) in &wanted {
        match found.get(name) {
            None => {
                let near = nearest(name, result.unexpected.iter().map(String::as_str)).map(str::to_owned);
                result.missing.push((name.clone(), near));
            }
            Some(entry) if entry.shape != spec.shape => {
                result.wrong_shape.push((name.clone(), entry.shape.clone(), spec.shape.clone()));
            }
            Some(_) => {}
        }
    }
    result
}

/// The dtype that most of a checkpoint's elements have, if models can be
/// computed in it.
fn own_dtype(index: &Index) -> DType {
    let mut counts: BTreeMap<String, (DType, usize)> = BTreeMap::new();
    for entry in index.tensors().values().filter(|entry| entry.dtype.is_float()) {
        let count = counts.entry(entry.dtype.to_string()).or_insert((entry.dtype, 0));
        count.1 += entry.shape.volume();
    }
    let most = counts.into_values().max_by_key(|(_, count)| *count).map_or(DType::F32, |(dtype, _)| dtype);
    // 8-bit floats are a storage format only.
    if computes(most) { most } else { DType::Bf16 }
}

fn computes(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::Bf16 | DType::F16 | DType::F64)
}

/// A rank's shard of a parameter.
enum ShardMemory {
    /// Memory to read into.
    Read(HostMemory),
    /// Memory shared with the file.
    Mapped(Tensor),
    /// The values of a new model, for what the checkpoint does not provide.
    Initial(DTensor),
}

impl ShardMemory {
    fn new(
        source: &Source,
        shard: &RankShard,
        spec: &ParameterSpec,
        dtype: DType,
        read_mode: Option<ReadMode>,
    ) -> Result<Self, HubError> {
        let nn = weightloom_nn::NnError::from;
        let layout = shard.plan.layout_of(&spec.name);
        let region =
            layout.region_of(&spec.shape, shard.dist.rank()).map_err(weightloom_nn::NnError::from)?;
        let entry = source.index.tensors().get(&spec.name).filter(|entry| entry.dtype == dtype);
        // Files with checksums must be read, and empty shards have no position.
        let mappable = read_mode == Some(ReadMode::Mapped) && source.manifest.is_none() && !region.is_empty();
        if let Some((file, offset)) =
            entry.filter(|_| mappable).and_then(|entry| entry.contiguous_location(&region))
        {
            let name = source.index.files().get(file.0 as usize).map_or("", |file| file.name.as_str());
            let bytes = source.storage.map(name).map_err(weightloom_checkpoint::CheckpointError::from)?;
            let tensor = bytes.and_then(|bytes| {
                let offset = usize::try_from(offset).ok()?;
                // Unaligned tensors are read.
                Tensor::from_shared(dtype, &region.shape(), bytes, offset).ok()
            });
            if let Some(tensor) = tensor {
                return Ok(Self::Mapped(tensor));
            }
        }
        Ok(Self::Read(HostMemory::new(dtype, &region.shape()).map_err(nn)?))
    }

    fn into_parameter(self, shard: &RankShard, spec: &ParameterSpec) -> Result<DTensor, HubError> {
        let tensor = match self {
            Self::Read(memory) => memory.into_tensor(),
            Self::Mapped(tensor) => tensor,
            Self::Initial(value) => return Ok(value),
        };
        let layout = shard.plan.layout_of(&spec.name);
        let tensor = tensor.to(shard.dist.device()).map_err(weightloom_nn::NnError::from)?;
        let value = DTensor::from_local(&shard.dist, tensor, layout, &spec.shape);
        Ok(value.map_err(weightloom_nn::NnError::from)?)
    }
}

/// A loaded model.
#[derive(Debug)]
pub struct LoadedModel<M: Model + ?Sized = dyn Model> {
    /// The model.
    pub model: Box<M>,
    /// Statistics of this rank.
    pub report: LoadReport,
    /// Tensors that do not match, of all ranks: initialized or ignored, as
    /// [`ModelLoadOptions::strictness`] allows.
    pub mismatch: CheckpointMismatch,
}

/// Loads a model from a checkpoint. Called by every rank of the gangs.
pub fn load_model(
    source: &Source,
    definition: &dyn ModelDefinition,
    keys: &KeyMap,
    parallel: &Parallel,
    options: &ModelLoadOptions,
    observer: &dyn Observer,
) -> Result<LoadedModel, HubError> {
    let shard = RankShard::new(definition, parallel, options)?;
    let (source, mismatch) = checked_source(source, keys, definition, options.strictness)?;
    let initialized: BTreeSet<&str> = mismatch.initialized().collect();
    let dtype = options.dtype.unwrap_or_else(|| own_dtype(&source.index));
    if !computes(dtype) {
        return Err(HubError::DType { dtype });
    }
    let load_options = weightloom_checkpoint::LoadOptions {
        read: ReadOptions { mode: options.read_mode, ..ReadOptions::default() },
        missing: MissingKeys::Error,
        // Other stages have these parameters; the whole model was checked above.
        unexpected: UnexpectedKeys::Ignore,
        verify: options.verify,
        ..weightloom_checkpoint::LoadOptions::default()
    };
    let planner: &dyn LoadPlannerFactory = options.planner.as_deref().unwrap_or(&StandardPlanners);
    let mut values = Vec::with_capacity(shard.specs.len());
    let mut report = LoadReport::default();
    for group in shard.groups(dtype)? {
        let mut parts = Vec::with_capacity(group.len());
        for spec in &shard.specs[group.clone()] {
            parts.push(match initialized.contains(spec.name.as_str()) {
                true => {
                    let layout = shard.plan.layout_of(&spec.name);
                    let seed = options.seed;
                    ShardMemory::Initial(definition.initial_values(spec, dtype, seed, &shard.dist, layout)?)
                }
                false => ShardMemory::new(&source, &shard, spec, dtype, options.read_mode)?,
            });
        }
        let mut state = LoadState::new();
        for (spec, part) in shard.specs[group.clone()].iter().zip(&mut parts) {
            let sharding = Sharding::Layout(shard.plan.layout_of(&spec.name));
            let wanted = TensorSpec { dtype, shape: spec.shape.clone(), sharding };
            if let ShardMemory::Read(memory) = part {
                state.tensor(spec.name.clone(), wanted, memory.bytes_mut());
            }
        }
        report += load_planned(&source, state, planner, &*shard.gangs.root, &load_options, observer)?;
        for (spec, part) in shard.specs[group].iter().zip(parts) {
            values.push((spec.name.clone(), part.into_parameter(&shard, spec)?));
        }
    }
    Ok(LoadedModel { model: shard.build(definition, values)?, report, mismatch })
}

/// Creates a model with random parameters, which do not depend on the
/// sharding. Called by every rank of the gangs.
pub fn new_model(
    definition: &dyn ModelDefinition,
    parallel: &Parallel,
    seed: u64,
    options: &ModelLoadOptions,
) -> Result<Box<dyn Model>, HubError> {
    let shard = RankShard::new(definition, parallel, options)?;
    let dtype = options.dtype.unwrap_or(DType::F32);
    if !computes(dtype) {
        return Err(HubError::DType { dtype });
    }
    let mut values = Vec::with_capacity(shard.specs.len());
    for spec in &shard.specs {
        let layout = shard.plan.layout_of(&spec.name);
        values.push((spec.name.clone(), definition.initial_values(spec, dtype, seed, &shard.dist, layout)?));
    }
    shard.build(definition, values)
}

/// Creates a model on the meta device, as one rank of the gangs would hold it.
/// Allocates nothing and does not communicate.
pub fn meta_model(
    definition: &dyn ModelDefinition,
    parallel: &Parallel,
    options: &ModelLoadOptions,
) -> Result<Box<dyn Model>, HubError> {
    let shard =
        RankShard::new(definition, parallel, &ModelLoadOptions { device: Device::Cpu, ..options.clone() })?;
    let dtype = options.dtype.unwrap_or(DType::F32);
    let rank = shard.dist.rank();
    let mut values = Vec::with_capacity(shard.specs.len());
    for spec in &shard.specs {
        let layout = shard.plan.layout_of(&spec.name);
        let make = || -> Result<DTensor, weightloom_nn::NnError> {
            let local = layout.local_shape(&spec.shape, rank)?;
            let empty = Tensor::zeros(dtype, &local, Device::Meta)?;
            Ok(DTensor::from_local(&shard.dist, empty, layout, &spec.shape)?)
        };
        values.push((spec.name.clone(), make()?));
    }
    shard.build(definition, values)
}

/// Iterates over the parameters of a checkpoint as this rank of the gangs would
/// hold them, with one in memory at a time. Parameters that it does not provide,
/// which only non-strict loading accepts, are left out.
pub fn iter_parameters<'a>(
    source: &Source,
    definition: &dyn ModelDefinition,
    keys: &KeyMap,
    parallel: &Parallel,
    options: &ModelLoadOptions,
    observer: &'a dyn Observer,
) -> Result<impl Iterator<Item = Result<(String, Tensor), HubError>> + use<'a>, HubError> {
    let shard = RankShard::new(definition, parallel, options)?;
    let (source, mismatch) = checked_source(source, keys, definition, options.strictness)?;
    let missing: BTreeSet<String> = mismatch.initialized().map(str::to_owned).collect();
    let (given, read_mode) = (options.dtype, options.read_mode);
    let rank = shard.dist.rank();
    let specs = shard.specs.into_iter().filter(move |spec| !missing.contains(&spec.name));
    Ok(specs.map(move |spec| {
        let layout = shard.plan.layout_of(&spec.name);
        let region: Region = layout.region_of(&spec.shape, rank).map_err(weightloom_nn::NnError::from)?;
        let entry = &source.index.tensors()[&spec.name];
        let dtype = given.unwrap_or(entry.dtype);
        let mut memory = HostMemory::new(dtype, &region.shape()).map_err(weightloom_nn::NnError::from)?;
        let want = ReadRequest { name: &spec.name, entry, region, dtype, into: memory.bytes_mut() };
        read(&source, vec![want], &ReadOptions { mode: read_mode, ..ReadOptions::default() }, observer)?;
        Ok((spec.name, memory.into_tensor()))
    }))
}
