//! From a checkpoint to a decoder, in the shape that the ranks need.
//!
//! Each rank allocates and reads its own parts alone, once. That nothing is
//! missing, left over, or of another shape is known before the first byte is
//! read, for all stages alike; that every element is written exactly once
//! follows from the index, whose tiles cover each tensor exactly once.

use std::collections::BTreeMap;
use std::sync::Arc;

use weightloom_checkpoint::plan::{LoadState, MissingKeys, UnexpectedKeys};
use weightloom_checkpoint::storage::ReadMode;
use weightloom_checkpoint::{
    Index, KeyMap, KeyRule, LoadReport, Observer, ReadOptions, ReadRequest, Section, Sharding, Source,
    TensorSpec, Verify, load, read,
};
use weightloom_dtensor::{DTensor, DistContext};
use weightloom_errors::nearest;
use weightloom_gang::{GangOptions, GangSizes, Gangs, solo};
use weightloom_layout::{DType, Mesh, Region};
use weightloom_nn::{
    Decoder, DecoderConfig, Parallel, ParameterSpec, Plan, Stage, Usage, initial_values, parameters,
};
use weightloom_tensor::{Device, HostMemory, Tensor};

use crate::error::{HubError, Misfit};

/// Where and how a model is loaded.
#[derive(Clone, Default)]
pub struct LoadOptions {
    /// The ranks that share the model. Without them, this rank has all of it.
    pub gangs: Option<Gangs>,
    /// The device. Not together with gangs, which have their own.
    pub device: Option<Device>,
    /// The dtype of parameters; the checkpoint's own if not given.
    pub dtype: Option<DType>,
    /// How bytes come from files. Mapped, parameters are the files themselves
    /// where their form allows it: nothing is read before it is used, and the
    /// files must stay as they are.
    pub way: Option<ReadMode>,
    /// Whether checksums are compared, where there are some.
    pub verify: Verify,
    /// The layers that this rank has; its share of the pipeline if not given.
    pub stage: Option<Stage>,
    /// How parameters are used.
    pub usage: Usage,
    /// The ranks as tensors see them, if several decoders are to share them.
    pub dist: Option<Arc<DistContext>>,
}

impl std::fmt::Debug for LoadOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mesh = self.gangs.as_ref().map(Gangs::mesh);
        f.debug_struct("LoadOptions")
            .field("mesh", &mesh)
            .field("device", &self.device)
            .field("dtype", &self.dtype)
            .field("way", &self.way)
            .field("verify", &self.verify)
            .field("stage", &self.stage)
            .field("usage", &self.usage)
            .finish()
    }
}

impl LoadOptions {
    /// The gangs to use: those given, or this rank alone.
    fn effective_gangs(&self) -> Result<Gangs, HubError> {
        match (&self.gangs, self.device) {
            (Some(_), Some(_)) => Err(HubError::GangsAndDevice),
            (None, Some(Device::Meta)) => Err(HubError::MetaDevice),
            (Some(gangs), None) => Ok(gangs.clone()),
            (None, _) => Ok(Gangs::new(solo(GangOptions::default()), &GangSizes::default())?),
        }
    }
}

/// One rank's place among those that share a model.
struct Seat {
    gangs: Gangs,
    dist: Arc<DistContext>,
    stage: Stage,
    plan: Plan,
    specs: Vec<ParameterSpec>,
}

/// The ranks of one stage.
fn stage_mesh(gangs: &Gangs) -> Result<Mesh, HubError> {
    let mesh = gangs.mesh().sub_mesh(gangs.root.rank(), &["rdp", "sdp", "tp"]);
    Ok(mesh.map_err(weightloom_gang::GangsError::from)?)
}

impl Seat {
    fn new(config: &DecoderConfig, parallel: &Parallel, options: &LoadOptions) -> Result<Self, HubError> {
        config.check().map_err(NnConfig)?;
        let gangs = options.effective_gangs()?;
        let stage = match &options.stage {
            Some(stage) => stage.clone(),
            None => Stage::one_of(config.layers, gangs.pp.rank(), gangs.pp.size())?,
        };
        let specs = parameters(config, &stage);
        let plan = Plan::new(parallel, &specs, stage_mesh(&gangs)?)?.with_usage(options.usage);
        let dist = options.dist.clone().unwrap_or_else(|| DistContext::new(Arc::clone(&gangs.root)));
        Ok(Self { gangs, dist, stage, plan, specs })
    }
}

/// Tells options that do not go together as the model's error.
struct NnConfig(weightloom_nn::ConfigError);

impl From<NnConfig> for HubError {
    fn from(error: NnConfig) -> Self {
        Self::Nn(error.0.into())
    }
}

/// What a checkpoint has, under the names of a model's parameters.
fn under_model_names(source: &Source, keys: &KeyMap, config: &DecoderConfig) -> Result<Source, HubError> {
    let mut keys = keys.clone();
    if config.head.tied {
        // Some files hold the embedding twice.
        keys.rules.push(KeyRule::Drop { key: "lm_head.weight".to_owned() });
    }
    let changes = keys.rules.iter().any(|rule| match rule {
        KeyRule::Drop { key } => source.index.tensors().contains_key(key) || key.contains("{}"),
        _ => true,
    });
    // Under other names there are no checksums, so they are changed only if
    // they must be.
    if changes { Ok(source.with_keys(&keys)?) } else { Ok(source.clone()) }
}

/// The same, of a checkpoint that is known to be of the model.
fn fitted(source: &Source, keys: &KeyMap, config: &DecoderConfig) -> Result<Source, HubError> {
    let told = source;
    let source = under_model_names(source, keys, config)?;
    let mut misfit = misfit(&source.index, config);
    // What a training run keeps for itself is not the model's.
    misfit.unexpected.retain(|name| !belongs_to_training(told, name));
    if misfit.is_empty() {
        return Ok(source);
    }
    Err(HubError::Incompatible { location: source.storage.location(), misfit })
}

/// Whether a tensor of a checkpoint is not the model's.
pub(crate) fn belongs_to_training(source: &Source, name: &str) -> bool {
    let said = source.manifest.as_ref().and_then(|manifest| manifest.tensors.get(name));
    said.is_some_and(|tensor| tensor.section == Section::Training)
}

/// Every key that does not fit.
fn misfit(index: &Index, config: &DecoderConfig) -> Misfit {
    let wanted: BTreeMap<String, ParameterSpec> = parameters(config, &Stage::whole(config.layers))
        .into_iter()
        .map(|spec| (spec.name.clone(), spec))
        .collect();
    let found = index.tensors();
    let unexpected: Vec<String> = found.keys().filter(|name| !wanted.contains_key(*name)).cloned().collect();
    let mut result = Misfit { unexpected, ..Misfit::default() };
    for (name, spec) in &wanted {
        match found.get(name) {
            None => {
                let near = nearest(name, result.unexpected.iter().map(String::as_str)).map(str::to_owned);
                result.missing.push((name.clone(), near));
            }
            Some(entry) if entry.shape != spec.shape => {
                result.misshapen.push((name.clone(), entry.shape.clone(), spec.shape.clone()));
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
    // 8-bit floats are stored, not computed in.
    if computes(most) { most } else { DType::Bf16 }
}

fn computes(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::Bf16 | DType::F16 | DType::F64)
}

/// A rank's part of a parameter, on its way.
enum Arriving {
    /// Memory to be read into.
    Read(HostMemory),
    /// The file itself.
    Mapped(Tensor),
}

impl Arriving {
    fn new(
        source: &Source,
        seat: &Seat,
        spec: &ParameterSpec,
        dtype: DType,
        way: Option<ReadMode>,
    ) -> Result<Self, HubError> {
        let nn = weightloom_nn::NnError::from;
        let layout = seat.plan.layout_of(&spec.name);
        let region = layout.region_of(&spec.shape, seat.dist.rank()).map_err(weightloom_nn::NnError::from)?;
        let entry = source.index.tensors().get(&spec.name).filter(|entry| entry.dtype == dtype);
        // Nothing that has checksums is used unread, and nothing without bytes
        // is anywhere.
        let mappable = way == Some(ReadMode::Mapped) && source.manifest.is_none() && !region.is_empty();
        if let Some((file, offset)) = entry.filter(|_| mappable).and_then(|entry| entry.in_one_piece(&region))
        {
            let name = source.index.files().get(file.0 as usize).map_or("", |file| file.name.as_str());
            let bytes = source.storage.map(name).map_err(weightloom_checkpoint::CheckpointError::from)?;
            let tensor = bytes.and_then(|bytes| {
                let offset = usize::try_from(offset).ok()?;
                // What is not aligned is read.
                Tensor::from_shared(dtype, &region.shape(), bytes, offset).ok()
            });
            if let Some(tensor) = tensor {
                return Ok(Self::Mapped(tensor));
            }
        }
        Ok(Self::Read(HostMemory::new(dtype, &region.shape()).map_err(nn)?))
    }

    fn into_tensor(self) -> Tensor {
        match self {
            Self::Read(memory) => memory.into_tensor(),
            Self::Mapped(tensor) => tensor,
        }
    }
}

/// A decoder and what its loading took.
#[derive(Debug)]
pub struct Loaded {
    /// The decoder.
    pub decoder: Decoder,
    /// What this rank read.
    pub report: LoadReport,
}

/// Loads a decoder from a checkpoint. Every rank of the gangs.
pub fn load_decoder(
    source: &Source,
    config: &DecoderConfig,
    keys: &KeyMap,
    parallel: &Parallel,
    options: &LoadOptions,
    observer: &dyn Observer,
) -> Result<Loaded, HubError> {
    let seat = Seat::new(config, parallel, options)?;
    let source = fitted(source, keys, config)?;
    let dtype = options.dtype.unwrap_or_else(|| own_dtype(&source.index));
    if !computes(dtype) {
        return Err(HubError::DType { dtype });
    }
    let mut parts = Vec::with_capacity(seat.specs.len());
    for spec in &seat.specs {
        parts.push(Arriving::new(&source, &seat, spec, dtype, options.way)?);
    }
    let mut state = LoadState::new();
    for (spec, part) in seat.specs.iter().zip(&mut parts) {
        let sharding = Sharding::Layout(seat.plan.layout_of(&spec.name));
        let wanted = TensorSpec { dtype, shape: spec.shape.clone(), sharding };
        if let Arriving::Read(memory) = part {
            state.tensor(spec.name.clone(), wanted, memory.bytes_mut());
        }
    }
    let load_options = weightloom_checkpoint::LoadOptions {
        read: ReadOptions { mode: options.way, ..ReadOptions::default() },
        missing: MissingKeys::Error,
        // A stage has no use for the others' parameters; that the model has
        // was seen above.
        unexpected: UnexpectedKeys::Ignore,
        verify: options.verify,
        ..weightloom_checkpoint::LoadOptions::default()
    };
    let report = load(&source, state, &*seat.gangs.root, &load_options, observer)?;
    let mut values = Vec::with_capacity(seat.specs.len());
    for (spec, part) in seat.specs.iter().zip(parts) {
        let layout = seat.plan.layout_of(&spec.name);
        let value = DTensor::from_local(&seat.dist, part.into_tensor(), layout, &spec.shape);
        values.push((spec.name.clone(), value.map_err(weightloom_nn::NnError::from)?));
    }
    let decoder = Decoder::new(config.clone(), seat.stage, seat.plan, seat.dist, values)?;
    Ok(Loaded { decoder, report })
}

/// A decoder with new parameters: random numbers that are the same however it
/// is shared. Every rank of the gangs.
pub fn new_decoder(
    config: &DecoderConfig,
    parallel: &Parallel,
    seed: u64,
    options: &LoadOptions,
) -> Result<Decoder, HubError> {
    let seat = Seat::new(config, parallel, options)?;
    let dtype = options.dtype.unwrap_or(DType::F32);
    if !computes(dtype) {
        return Err(HubError::DType { dtype });
    }
    let mut values = Vec::with_capacity(seat.specs.len());
    for spec in &seat.specs {
        let layout = seat.plan.layout_of(&spec.name);
        values.push((spec.name.clone(), initial_values(config, spec, dtype, seed, &seat.dist, layout)?));
    }
    Ok(Decoder::new(config.clone(), seat.stage, seat.plan, seat.dist, values)?)
}

/// A decoder without data, as one rank of the gangs would have it: to see
/// shapes and costs. Nothing is allocated, and no rank is asked.
pub fn meta_decoder(
    config: &DecoderConfig,
    parallel: &Parallel,
    options: &LoadOptions,
) -> Result<Decoder, HubError> {
    let seat = Seat::new(config, parallel, &LoadOptions { device: None, ..options.clone() })?;
    let dtype = options.dtype.unwrap_or(DType::F32);
    let rank = seat.dist.rank();
    let mut values = Vec::with_capacity(seat.specs.len());
    for spec in &seat.specs {
        let layout = seat.plan.layout_of(&spec.name);
        let make = || -> Result<DTensor, weightloom_nn::NnError> {
            let local = layout.local_shape(&spec.shape, rank)?;
            let empty = Tensor::zeros(dtype, &local, Device::Meta)?;
            Ok(DTensor::from_local(&seat.dist, empty, layout, &spec.shape)?)
        };
        values.push((spec.name.clone(), make()?));
    }
    Ok(Decoder::new(config.clone(), seat.stage, seat.plan, seat.dist, values)?)
}

/// The parameters of a checkpoint, one after the other, as this rank of the
/// gangs would hold them. Only the one that is asked for is in memory.
pub fn iter_parameters<'a>(
    source: &Source,
    config: &DecoderConfig,
    keys: &KeyMap,
    parallel: &Parallel,
    options: &LoadOptions,
    observer: &'a dyn Observer,
) -> Result<impl Iterator<Item = Result<(String, Tensor), HubError>> + use<'a>, HubError> {
    let seat = Seat::new(config, parallel, options)?;
    let source = fitted(source, keys, config)?;
    let (given, way) = (options.dtype, options.way);
    let rank = seat.dist.rank();
    Ok(seat.specs.into_iter().map(move |spec| {
        let layout = seat.plan.layout_of(&spec.name);
        let region: Region = layout.region_of(&spec.shape, rank).map_err(weightloom_nn::NnError::from)?;
        let entry = &source.index.tensors()[&spec.name];
        let dtype = given.unwrap_or(entry.dtype);
        let mut memory = HostMemory::new(dtype, &region.shape()).map_err(weightloom_nn::NnError::from)?;
        let want = ReadRequest { name: &spec.name, entry, region, dtype, into: memory.bytes_mut() };
        read(&source, vec![want], &ReadOptions { mode: way, ..ReadOptions::default() }, observer)?;
        Ok((spec.name, memory.into_tensor()))
    }))
}
