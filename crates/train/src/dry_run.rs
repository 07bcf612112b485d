//! Dry run: memory, communication and time of a run on any number of ranks,
//! without data or weights.
//!
//! There are no formulas for transformers here. The training code itself runs
//! the passes of each kind of stage on meta tensors, as one rank would, and the
//! dry run measures what it stores, gathers, sends and computes. The pipeline
//! program determines what is in memory at the same time.
//!
//! Only the first rank of each stage is measured, which never holds less than
//! the others. Stages that differ only in the numbers of their layers are
//! measured once, so the cost does not grow with the number of ranks.
//!
//! Not included: memory other than tensors (the program, copies of a background
//! save), buffers inside kernels and collectives, and gradients that wait in the
//! queue of a reduction thread.

mod checkpoint;
mod context;
mod error;
mod fit;
mod memory;
mod passes;
mod pipeline;
mod report;
mod stage;
#[cfg(test)]
mod tests;
mod traffic;

use weightloom_gang::GangSizes;
use weightloom_nn::{ModelDefinition, Parallel, SharedDefinition, Stage};

pub use error::DryRunError;
pub use fit::{DeviceMemory, Effect, FitReport, GpuFit, Remedy};
pub use report::{
    AxisTraffic, BatchReport, CheckpointReport, DataReport, DryRun, FlopReport, MemoryReport, MeshReport,
    PipelineReport, RankReport, StageReport, TimeReport, TrafficItem,
};

use crate::config::Config;
use crate::data::{DataSummary, Loader};
use crate::extensions::Extensions;
use context::RunContext;
use stage::StageCosts;

/// The inputs of a dry run.
#[allow(missing_docs)]
pub struct DryRunSettings<'a> {
    pub config: &'a Config,
    pub definition: &'a dyn ModelDefinition,
    /// The tensor-parallel plan.
    pub parallel: &'a Parallel,
    /// All pipeline stages in order: `pp`, or `pp` × `vpp` if interleaved.
    pub stages: &'a [Stage],
    pub sizes: GangSizes,
    pub world: usize,
    /// The data, if it is available.
    pub data: Option<DryRunData<'a>>,
    /// What the config may name.
    pub extensions: &'a Extensions,
}

/// The data of a dry run.
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct DryRunData<'a> {
    pub loader: &'a Loader,
    /// The account of the documents; `None` for dummy data.
    pub summary: Option<&'a DataSummary>,
}

/// The maximum number of steps in the digest of the data order.
const STEPS_IN_ORDER: u64 = 1000;

/// The model that a loss imitates.
pub(crate) struct Teacher {
    pub(crate) definition: SharedDefinition,
    /// The tensor-parallel plan.
    pub(crate) parallel: Parallel,
}

/// Predicts the costs of a run.
pub fn run(settings: &DryRunSettings<'_>) -> Result<DryRun, DryRunError> {
    run_with(settings, None)
}

/// Predicts the costs of a run with a teacher.
pub(crate) fn run_with(
    settings: &DryRunSettings<'_>,
    teacher: Option<&Teacher>,
) -> Result<DryRun, DryRunError> {
    let context = RunContext { teacher, ..RunContext::new(settings)? };
    let mut kinds: Vec<(stage::Kind, StageCosts)> = Vec::new();
    let mut of_stage = Vec::with_capacity(context.stages.len());
    for (number, stage) in context.stages.iter().enumerate() {
        let kind = stage::Kind::of(&context, stage);
        let known = kinds.iter().position(|(known, _)| *known == kind);
        of_stage.push(match known {
            Some(known) => known,
            None => {
                kinds.push((kind, StageCosts::new(&context, number)?));
                kinds.len() - 1
            }
        });
    }
    let measured: Vec<&StageCosts> = of_stage.iter().map(|&kind| &kinds[kind].1).collect();
    let ranks: Vec<RankReport> = (0..context.pp).map(|rank| rank_report(&context, &measured, rank)).collect();
    let per_stage = (context.world / context.pp) as f64;
    let flops = FlopReport {
        per_step: ranks.iter().map(|rank| rank.flops as f64 * per_stage).sum(),
        most_of_a_rank: ranks.iter().map(|rank| rank.flops).max().unwrap_or(0),
    };
    let pipeline = pipeline::report(&context, &measured)?;
    Ok(DryRun {
        mesh: context.mesh_report(),
        parameters: settings.definition.parameter_count(),
        trainable_parameters: context.trainable_parameters(),
        batch: context.batch_report(),
        flops,
        time: time_report(settings, pipeline.makespan),
        pipeline,
        checkpoint: checkpoint::report(&context, &of_stage)?,
        data: data_report(settings),
        fit: None,
        gpus: Vec::new(),
        warnings: Vec::new(),
        ranks,
    })
}

fn rank_report(context: &RunContext<'_>, measured: &[&StageCosts], rank: usize) -> RankReport {
    let numbers: Vec<usize> = context.schedule.stages_of(rank).collect();
    let stages =
        numbers.iter().map(|&number| measured[number].report(number, &context.stages[number])).collect();
    let traffic = traffic::of_rank(context, measured, rank);
    let micros = context.micros as u64;
    let flops = numbers.iter().map(|&number| measured[number].flops_of_step(micros));
    RankReport {
        pp_rank: rank,
        rank: context.first_rank(rank),
        stages,
        memory: memory::of_rank(context, measured, rank),
        by_axis: traffic::by_axis(&traffic),
        traffic,
        flops: flops.fold(0, u64::saturating_add),
    }
}

fn data_report(settings: &DryRunSettings<'_>) -> DataReport {
    let Some(DryRunData { loader, summary }) = settings.data else { return DataReport::NotAvailable };
    let steps = settings.config.train.max_steps.unwrap_or(STEPS_IN_ORDER).min(STEPS_IN_ORDER);
    let digest = loader.order_digest(steps, settings.config.train.global_batch_size);
    DataReport::Order { steps, digest, summary: summary.cloned().map(Box::new) }
}

/// The time of the passes at the peak of the hardware.
fn time_report(settings: &DryRunSettings<'_>, flops: f64) -> Option<TimeReport> {
    let train = &settings.config.train;
    let seconds_per_step = flops / (train.logging.peak_tflops? * 1e12);
    let steps = steps_of(settings.config, settings.data.and_then(|data| data.summary));
    Some(TimeReport { seconds_per_step, steps, seconds: steps.map(|steps| steps as f64 * seconds_per_step) })
}

/// The steps of a run, if they are known: with epochs, once all documents are counted.
pub(crate) fn steps_of(config: &Config, data: Option<&DataSummary>) -> Option<u64> {
    let train = &config.train;
    let of_epochs = || {
        let rows = data?.rows?.saturating_mul(train.epochs);
        Some(rows.div_ceil(train.global_batch_size.max(1) as u64))
    };
    train.max_steps.or_else(of_epochs)
}
