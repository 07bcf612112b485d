//! Timeline of the pipeline, with time proportional to flops.

use super::DryRunError;
use super::context::RunContext;
use super::report::PipelineReport;
use super::stage::StageCosts;
use crate::pipeline::{Costs, draw, timeline};

/// Columns of the drawing.
const WIDTH: usize = 100;

pub(super) fn report(
    context: &RunContext<'_>,
    measured: &[&StageCosts],
) -> Result<PipelineReport, DryRunError> {
    let all = |of: fn(&StageCosts) -> u64| measured.iter().map(|stage| of(stage) as f64).collect();
    let costs = Costs {
        forward: all(|stage| stage.passes.forward_flops),
        backward: all(|stage| stage.passes.backward_flops),
        transfer: vec![0.0; measured.len()],
    };
    let times = timeline(&context.schedule, &costs)?;
    Ok(PipelineReport {
        stages: context.stages.len(),
        micro_batches: context.micros,
        makespan: times.makespan,
        bubble: (0..context.pp).map(|rank| times.bubble(rank)).collect(),
        overall_bubble: times.overall_bubble(),
        drawing: draw(&context.schedule, &times, WIDTH),
    })
}
