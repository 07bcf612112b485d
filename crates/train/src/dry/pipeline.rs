//! When what happens in a step, if time goes with arithmetic alone.

use super::DryError;
use super::report::PipelineReport;
use super::setup::Setup;
use super::stage::Measured;
use crate::pipeline::{Costs, draw, timeline};

/// Columns of the drawing.
const WIDTH: usize = 100;

pub(super) fn report(setup: &Setup<'_>, measured: &[&Measured]) -> Result<PipelineReport, DryError> {
    let all = |of: fn(&Measured) -> u64| measured.iter().map(|stage| of(stage) as f64).collect();
    let costs = Costs {
        forward: all(|stage| stage.passes.forward_flops),
        backward: all(|stage| stage.passes.backward_flops),
        transfer: vec![0.0; measured.len()],
    };
    let times = timeline(&setup.schedule, &costs)?;
    Ok(PipelineReport {
        stages: setup.stages.len(),
        micro_batches: setup.micros,
        makespan: times.makespan,
        bubble: (0..setup.pp).map(|rank| times.bubble(rank)).collect(),
        overall_bubble: times.overall_bubble(),
        drawing: draw(&setup.schedule, &times, WIDTH),
    })
}
