//! What a run would do, without data or weights, for any number of ranks.
//!
//! Nothing here knows formulas of transformers. The passes of each kind of stage
//! are run on tensors without data, by the code that trains, as one rank would
//! run them: what the tape keeps, what is gathered, sent and computed is what
//! that code keeps, gathers, sends and computes. A pipeline's program says what
//! of it is there at a time.
//!
//! Of the ranks of a stage, the first along every axis is looked at: chunks are
//! cut so that it never holds less than another. Stages that differ in nothing
//! but their layers' numbers are looked at once, so that the work does not grow
//! with the number of ranks.
//!
//! What is not seen: what goes on beside the tensors (the program itself, copies
//! that a save in the background makes), buffers inside of kernels and
//! collectives, and gradients that wait in the queue of a thread that sums them.

mod error;
mod passes;
mod peak;
mod pipeline;
mod report;
mod saving;
mod setup;
mod stage;
#[cfg(test)]
mod tests;
mod traffic;

use weightloom_gang::GangSizes;
use weightloom_nn::{DecoderConfig, Parallel, Stage};

pub use error::DryError;
pub use report::{
    AxisTraffic, BatchReport, CheckpointReport, DataReport, DryRun, FlopReport, MemoryReport, MeshReport,
    PipelineReport, RankReport, StageReport, TrafficItem,
};

use crate::config::Config;
use crate::data::Loader;
use setup::Setup;
use stage::Measured;

/// What a dry run is about.
pub struct DrySettings<'a> {
    /// The run.
    pub config: &'a Config,
    /// The model.
    pub decoder: &'a DecoderConfig,
    /// What tensor parallelism shares.
    pub parallel: &'a Parallel,
    /// The stages of the pipeline, in order: as many as `pp`, or `pp` × `vpp`
    /// where they are interleaved.
    pub stages: &'a [Stage],
    /// How ranks share the work.
    pub sizes: GangSizes,
    /// How many ranks there would be.
    pub world: usize,
    /// The data, if they are there.
    pub data: Option<&'a Loader>,
}

/// The most steps whose order of documents is looked at.
const STEPS_IN_ORDER: u64 = 1000;

/// Says what a run would do.
pub fn dry_run(settings: &DrySettings<'_>) -> Result<DryRun, DryError> {
    let setup = Setup::new(settings)?;
    let mut kinds: Vec<(stage::Kind, Measured)> = Vec::new();
    let mut of_stage = Vec::with_capacity(setup.stages.len());
    for (number, stage) in setup.stages.iter().enumerate() {
        let kind = stage::Kind::of(&setup, stage);
        let known = kinds.iter().position(|(known, _)| *known == kind);
        of_stage.push(match known {
            Some(known) => known,
            None => {
                kinds.push((kind, Measured::new(&setup, number)?));
                kinds.len() - 1
            }
        });
    }
    let measured: Vec<&Measured> = of_stage.iter().map(|&kind| &kinds[kind].1).collect();
    let ranks: Vec<RankReport> = (0..setup.pp).map(|rank| rank_report(&setup, &measured, rank)).collect();
    let per_stage = (setup.world / setup.pp) as f64;
    let flops = FlopReport {
        per_step: ranks.iter().map(|rank| rank.flops as f64 * per_stage).sum(),
        most_of_a_rank: ranks.iter().map(|rank| rank.flops).max().unwrap_or(0),
    };
    Ok(DryRun {
        mesh: setup.mesh_report(),
        parameters: settings.decoder.parameter_count(),
        batch: setup.batch_report(),
        flops,
        pipeline: pipeline::report(&setup, &measured)?,
        checkpoint: saving::report(&setup, &of_stage)?,
        data: data_report(settings),
        ranks,
    })
}

fn rank_report(setup: &Setup<'_>, measured: &[&Measured], rank: usize) -> RankReport {
    let numbers: Vec<usize> = setup.schedule.stages_of(rank).collect();
    let stages =
        numbers.iter().map(|&number| measured[number].report(number, &setup.stages[number])).collect();
    let traffic = traffic::of_rank(setup, measured, rank);
    let micros = setup.micros as u64;
    let flops = numbers.iter().map(|&number| measured[number].flops_of_step(micros));
    RankReport {
        pp_rank: rank,
        rank: setup.first_rank(rank),
        stages,
        memory: peak::of_rank(setup, measured, rank),
        by_axis: traffic::by_axis(&traffic),
        traffic,
        flops: flops.fold(0, u64::saturating_add),
    }
}

fn data_report(settings: &DrySettings<'_>) -> DataReport {
    let Some(loader) = settings.data else { return DataReport::NotThere };
    let steps = settings.config.train.max_steps.unwrap_or(STEPS_IN_ORDER).min(STEPS_IN_ORDER);
    DataReport::Order { steps, digest: loader.order_digest(steps, settings.config.train.global_batch_size) }
}
