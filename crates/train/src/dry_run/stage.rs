//! Costs of one stage on one rank, measured on meta tensors.

use std::collections::BTreeMap;
use std::sync::Arc;

use weightloom_dtensor::{CommRecord, DTensor, DistContext, DistOptions, Role};
use weightloom_layout::{DType, Layout, Shape};
use weightloom_nn::{Adapter, Model, ModelShard, ParameterSpec, Plan, Stage};
use weightloom_tensor::{Device, DeviceChoice, Meter, Tensor, counted};

use super::context::{RunContext, STORAGE_DTYPE};
use super::passes::Passes;
use super::report::StageReport;
use super::{DryRunError, Teacher};
use crate::lora_target::check_targets;
use crate::optimizer::{ParameterStates, StepInfo, update};

/// The properties of a stage that determine its costs.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Kind {
    first: bool,
    last: bool,
    /// The kind of each layer.
    layers: Vec<u64>,
    /// Whether each parameter is frozen.
    frozen: Vec<bool>,
}

impl Kind {
    pub(super) fn of(context: &RunContext<'_>, stage: &Stage) -> Self {
        let definition = context.definition;
        let frozen = match context.config.model.freeze_modules.is_empty() {
            true => Vec::new(),
            false => {
                let specs = definition.parameters(stage);
                specs.iter().map(|spec| context.frozen.matches(&spec.name)).collect()
            }
        };
        Self {
            first: stage.is_first(),
            last: stage.is_last(),
            layers: stage.layers.clone().map(|layer| definition.layer_kind(layer)).collect(),
            frozen,
        }
    }
}

/// Whether a run with this choice is on a GPU.
fn runs_on_gpu(choice: DeviceChoice) -> bool {
    match choice {
        DeviceChoice::Cpu => false,
        DeviceChoice::Cuda(_) => true,
        DeviceChoice::Auto => choice.resolve(0).is_ok_and(|chosen| matches!(chosen.device, Device::Cuda(_))),
    }
}

/// One stage on one rank, with meta tensors.
pub(super) struct DryStage {
    pub(super) model: Box<dyn Model>,
    pub(super) adapter: Option<Adapter>,
    pub(super) teacher: Option<Box<dyn Model>>,
    pub(super) dist: Arc<DistContext>,
    pub(super) meter: Meter,
    pub(super) states: Vec<ParameterStates>,
}

impl DryStage {
    /// Builds a stage with its optimizer, as an engine does.
    pub(super) fn new(context: &RunContext<'_>, number: usize) -> Result<Self, DryRunError> {
        let (stage, plan) = (context.stages[number].clone(), context.plan(number)?);
        let rank = context.first_rank(context.schedule.rank_of(number));
        let registry = context.operations.clone();
        let options = DistOptions { log_comm: true, registry, ..DistOptions::default() };
        let dist = DistContext::dry_run(rank, options);
        let meter = if runs_on_gpu(context.config.train.device) { Meter::of_gpu() } else { Meter::new() };
        let teacher = context.teacher.filter(|_| stage.is_last());
        let (model, adapter, states, teacher) = meter.watch(|| -> Result<_, DryRunError> {
            let specs = context.definition.parameters(&stage);
            let values = specs
                .iter()
                .map(|spec| empty(&dist, &plan, spec, context.config.weights_dtype()))
                .collect::<Result<_, _>>()?;
            let shard = ModelShard::new(specs, stage, plan, Arc::clone(&dist), values)?;
            let mut model = context.definition.build(shard)?;
            let mut adapter = adapter(context, &*model)?;
            let is_frozen = |name: &str| context.frozen.matches(name) || model.is_buffer(name);
            let roles: Vec<Role> = model
                .parameters()
                .iter()
                .map(|(name, _)| match adapter.is_some() || is_frozen(name) {
                    true => Role::Frozen,
                    false => Role::Trained,
                })
                .collect();
            for ((_, value), role) in model.parameters_mut().iter_mut().zip(roles) {
                *value = value.parameter(role);
            }
            for (_, value) in adapter.iter_mut().flat_map(Adapter::matrices_mut) {
                *value = value.parameter(Role::Trained);
            }
            let states = trained(&*model, adapter.as_ref())
                .iter()
                .map(|(name, value)| ParameterStates::new(&*context.optimizer, name, value))
                .collect::<Result<_, _>>()?;
            let teacher = teacher.map(|teacher| teacher_model(context, &dist, teacher)).transpose()?;
            Ok((model, adapter, states, teacher))
        })?;
        Ok(Self { model, adapter, teacher, dist, meter, states })
    }

    /// Reduces gradients and runs the optimizer, as an engine does. Returns the
    /// communication.
    fn step(&mut self, context: &RunContext<'_>) -> Result<Vec<CommRecord>, DryRunError> {
        let Self { model, adapter, dist, meter, states, .. } = self;
        meter.watch(|| {
            let values = trained(&**model, adapter.as_ref());
            values.iter().try_for_each(|(_, value)| value.reduce_gradient())?;
            let mut gradients = Vec::with_capacity(values.len());
            for (_, value) in &values {
                gradients.push(value.take_gradient()?);
            }
            // What changes in place must not be shared.
            drop(values);
            let info = StepInfo { number: 1, learning_rate: 1.0, weight_decay: 0.1, gradient_scale: 1.0 };
            let values = trained_mut(&mut **model, adapter.as_mut());
            for ((value, gradient), states) in values.into_iter().zip(gradients).zip(states) {
                // Without a gradient, the run itself reports an error.
                let Some(gradient) = gradient else { continue };
                update(&*context.optimizer, &info, value, &gradient, &mut states.tensors)?;
            }
            Ok(dist.take_comm_log())
        })
    }
}

/// The trained parameters by name.
fn trained(model: &dyn Model, adapter: Option<&Adapter>) -> Vec<(String, DTensor)> {
    match adapter {
        Some(adapter) => adapter.matrices().into_iter().map(|(name, value)| (name, value.clone())).collect(),
        None => {
            let values = model.parameters().iter().filter(|(_, value)| value.tracks_gradient());
            values.map(|(name, value)| (name.clone(), value.clone())).collect()
        }
    }
}

/// The same, to be changed.
fn trained_mut<'a>(model: &'a mut dyn Model, adapter: Option<&'a mut Adapter>) -> Vec<&'a mut DTensor> {
    match adapter {
        Some(adapter) => adapter.matrices_mut().into_iter().map(|(_, value)| value).collect(),
        None => {
            let values = model.parameters_mut().iter_mut().map(|(_, value)| value);
            values.filter(|value| value.tracks_gradient()).collect()
        }
    }
}

/// A meta parameter.
fn empty(
    dist: &Arc<DistContext>,
    plan: &Plan,
    spec: &ParameterSpec,
    dtype: DType,
) -> Result<(String, DTensor), DryRunError> {
    let layout = plan.layout_of(&spec.name);
    let local = layout.local_shape(&spec.shape, dist.rank())?;
    let local = Tensor::zeros(dtype, &local, Device::Meta)?;
    Ok((spec.name.clone(), DTensor::from_local(dist, local, layout, &spec.shape)?))
}

/// A teacher on a rank, in the dtype in which it computes.
fn teacher_model(
    context: &RunContext<'_>,
    dist: &Arc<DistContext>,
    teacher: &Teacher,
) -> Result<Box<dyn Model>, DryRunError> {
    let (definition, plan) = (&teacher.definition, context.teacher_plan(teacher, dist.rank())?);
    let (specs, dtype) = (definition.all_parameters(), context.compute_dtype());
    let values = specs.iter().map(|spec| empty(dist, &plan, spec, dtype)).collect::<Result<_, _>>()?;
    let stage = Stage::whole(definition.layers());
    let mut model = definition.build(ModelShard::new(specs, stage, plan, Arc::clone(dist), values)?)?;
    for (_, value) in model.parameters_mut() {
        *value = value.parameter(Role::Frozen);
    }
    Ok(model)
}

/// The adapter of a LoRA run.
fn adapter(context: &RunContext<'_>, model: &dyn Model) -> Result<Option<Adapter>, DryRunError> {
    let Some(lora) = &context.config.model.lora else { return Ok(None) };
    let everywhere = context.definition.all_parameters();
    let modules: Vec<(&str, &Shape)> = everywhere
        .iter()
        .filter(|spec| spec.shape.ndim() == 2 && !spec.name.starts_with("model.embed"))
        .filter_map(|spec| Some((spec.name.strip_suffix(".weight")?, &spec.shape)))
        .collect();
    check_targets(lora, context.definition)?;
    let mut adapter = Adapter::new();
    for (module, shape) in modules {
        let here = model.parameter(&format!("{module}.weight")).is_some();
        if here && lora.adapts(module) {
            let a = Tensor::zeros(STORAGE_DTYPE, &[lora.rank, shape[1]], Device::Meta)?;
            let b = Tensor::zeros(STORAGE_DTYPE, &[shape[0], lora.rank], Device::Meta)?;
            adapter.add(model, module, [&a, &b], None, None, 1.0)?;
        }
    }
    Ok(Some(adapter))
}

/// The costs of a stage on the rank that holds most of it.
pub(super) struct StageCosts {
    /// Elements.
    parameters: u64,
    trained: u64,
    /// Bytes.
    pub(super) parameter_bytes: u64,
    pub(super) least_parameter_bytes: u64,
    pub(super) gradient_bytes: u64,
    pub(super) optimizer_bytes: u64,
    /// Other memory, such as the whole matrix of which an adapter holds a shard.
    pub(super) other_bytes: u64,
    gathered: u64,
    pub(super) passes: Passes,
    /// Communication of the gradient reduction.
    pub(super) reduction: Vec<CommRecord>,
    /// Axes and sizes of the all-reduces of the gradient norm.
    pub(super) norms: Vec<(&'static str, usize)>,
    /// Temporary bytes of the optimizer step.
    pub(super) step_peak: u64,
    step_flops: u64,
    /// Bytes of the gradient of tied weights on this stage.
    pub(super) tied_bytes: u64,
}

impl StageCosts {
    pub(super) fn new(context: &RunContext<'_>, number: usize) -> Result<Self, DryRunError> {
        let mut stage = DryStage::new(context, number)?;
        let held_at_rest = stage.meter.in_use();
        let states = stage.states.iter().flat_map(|states| &states.tensors);
        let optimizer_bytes =
            states.map(|state| state.shape().volume() as u64 * state.dtype().size() as u64).sum();
        let values = trained(&*stage.model, stage.adapter.as_ref()).into_iter().map(|(_, value)| value);
        let values: Vec<DTensor> = values.collect();
        let held: Vec<DTensor> = match &stage.adapter {
            Some(adapter) => adapter.matrices().into_iter().map(|(_, value)| value.clone()).collect(),
            None => Vec::new(),
        };
        let all = || stage.model.parameters().iter().map(|(_, value)| value).chain(&held);
        let bytes = |values: &mut dyn Iterator<Item = &DTensor>| values.map(local_bytes).sum::<u64>();
        let parameter_bytes = bytes(&mut all());
        let gradient_bytes = bytes(&mut values.iter());
        let elements = |values: &mut dyn Iterator<Item = &DTensor>| {
            values.map(|value| value.to_local().shape().volume() as u64).sum::<u64>()
        };
        let (parameters, trained_elements) = (elements(&mut all()), elements(&mut values.iter()));
        let least_parameter_bytes = least_bytes(all())?;
        let (gathered, norms) = (gathered(context, &*stage.model), norm_axes(&values));
        let tied_bytes = context
            .definition
            .tied_parameter()
            .and_then(|tied| stage.model.parameter(tied))
            .map_or(0, local_bytes);
        stage.dist.take_comm_log();
        let passes = Passes::new(context, &stage)?;
        drop(values);
        drop(held);
        stage.meter.reset_high_water();
        let before = stage.meter.in_use();
        let (reduction, costs) = counted(|| stage.step(context));
        let reduction = reduction?;
        Ok(Self {
            parameters,
            trained: trained_elements,
            parameter_bytes,
            least_parameter_bytes,
            gradient_bytes,
            optimizer_bytes,
            other_bytes: held_at_rest.saturating_sub(parameter_bytes + optimizer_bytes),
            gathered,
            passes,
            reduction,
            norms,
            step_peak: stage.meter.high_water() - before,
            step_flops: costs.total().flops,
            tied_bytes,
        })
    }

    pub(super) fn report(&self, number: usize, stage: &Stage) -> StageReport {
        StageReport {
            number,
            first_layer: stage.layers.start,
            layers: stage.layers.len(),
            parameters: self.parameters,
            trained: self.trained,
            forward_flops: self.passes.forward_flops,
            backward_flops: self.passes.backward_flops,
            activations: self.passes.activations,
            kept_weights: self.passes.kept_weights,
            gathered: self.gathered,
            message: self.passes.message,
        }
    }

    /// Flops of a step.
    pub(super) fn flops_of_step(&self, micros: u64) -> u64 {
        let passes = self.passes.forward_flops.saturating_add(self.passes.backward_flops);
        passes.saturating_mul(micros).saturating_add(self.step_flops)
    }
}

fn local_bytes(value: &DTensor) -> u64 {
    value.to_local().shape().volume() as u64 * value.dtype().size() as u64
}

/// Bytes on the rank that holds least. Values with the same layout are computed
/// once.
fn least_bytes<'a>(values: impl Iterator<Item = &'a DTensor>) -> Result<u64, DryRunError> {
    let mut alike: Vec<(&DTensor, u64)> = Vec::new();
    for value in values {
        let known = alike.iter_mut().find(|(known, _)| Arc::ptr_eq(known.spec(), value.spec()));
        match known {
            Some((_, times)) => *times += 1,
            None => alike.push((value, 1)),
        }
    }
    let Some((first, _)) = alike.first() else { return Ok(0) };
    let mut held: BTreeMap<usize, u64> = first.layout().mesh().ranks().map(|rank| (rank, 0)).collect();
    for (value, times) in alike {
        for (rank, sum) in &mut held {
            let local = value.layout().local_shape(value.shape(), *rank)?;
            *sum += times * local.volume() as u64 * value.dtype().size() as u64;
        }
    }
    Ok(held.into_values().min().unwrap_or(0))
}

/// Bytes of the gathered or cast weights of the layers that are in memory at the
/// same time.
fn gathered(context: &RunContext<'_>, model: &dyn Model) -> u64 {
    let dtype = context.compute_dtype();
    let (plan, definition) = (model.plan(), model.definition());
    let rank = model.dist().rank();
    let of_layer = |number: usize| -> u64 {
        let values = model.parameters().iter();
        let values = values.filter(|(name, _)| definition.layer_of(name) == Some(number));
        values
            .filter_map(|(name, value)| {
                let used: Layout = plan.used_layout_of(name);
                let as_held = used == value.layout() && dtype == value.dtype();
                let local = used.local_shape(value.shape(), rank).ok().filter(|_| !as_held)?;
                Some(local.volume() as u64 * dtype.size() as u64)
            })
            .sum()
    };
    let layers: Vec<u64> = model.stage().layers.clone().map(of_layer).collect();
    let at_once = (context.usage().prefetch + 1).min(layers.len().max(1));
    layers.windows(at_once).map(|some| some.iter().sum()).max().unwrap_or(0)
}

/// The axes and sizes of the all-reduces of the gradient norm: one for each set
/// of axes that shards a gradient.
fn norm_axes(values: &[DTensor]) -> Vec<(&'static str, usize)> {
    let mut sets: Vec<Vec<usize>> = Vec::new();
    let mut found = Vec::new();
    for value in values {
        let layout = value.layout();
        let mut axes: Vec<usize> = layout.splits().iter().flat_map(|split| split.axes.to_vec()).collect();
        axes.sort_unstable();
        if !sets.contains(&axes) {
            let mesh = layout.mesh();
            let several = axes.iter().filter(|&&axis| mesh.axis_size(axis) > 1);
            found.extend(several.map(|&axis| (mesh.axis_name(axis), mesh.axis_size(axis))));
            sets.push(axes);
        }
    }
    found
}
