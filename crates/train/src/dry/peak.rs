//! What a rank has in memory at a time, from its program.

use std::collections::BTreeSet;

use super::report::MemoryReport;
use super::setup::Setup;
use super::stage::Measured;
use crate::pipeline::Action;

/// What is there besides parameters and optimizer states.
#[derive(Clone, Copy, Default)]
struct There {
    activations: u64,
    kept_weights: u64,
    gradients: u64,
}

impl There {
    fn total(self) -> u64 {
        self.activations + self.kept_weights + self.gradients
    }
}

/// Follows what is there, and remembers when it was most.
#[derive(Default)]
struct Course {
    now: There,
    /// When most was in use: what was there, and what was worked with.
    most: (There, u64),
}

impl Course {
    fn work(&mut self, working: u64) {
        if self.now.total() + working > self.most.0.total() + self.most.1 {
            self.most = (self.now, working);
        }
    }
}

/// The memory of a place in the pipeline.
pub(super) fn of_rank(setup: &Setup<'_>, measured: &[&Measured], rank: usize) -> MemoryReport {
    let stages: Vec<&Measured> = setup.schedule.stages_of(rank).map(|number| measured[number]).collect();
    let sum = |of: fn(&Measured) -> u64| stages.iter().map(|stage| of(stage)).sum::<u64>();
    let (parameters, optimizer) = (sum(|stage| stage.parameter_bytes), sum(|stage| stage.optimizer_bytes));
    let gradients = sum(|stage| stage.gradient_bytes);
    let mut course = Course::default();
    let mut begun = BTreeSet::new();
    let (mut flying, mut in_flight) = (0, 0);
    for action in &setup.schedule.ranks[rank] {
        match *action {
            Action::Forward { stage, .. } => {
                let passes = &measured[stage].passes;
                course.work(passes.forward_peak);
                course.now.activations += passes.activations;
                course.now.kept_weights += passes.kept_weights;
                flying += 1;
                in_flight = in_flight.max(flying);
            }
            Action::Backward { stage, .. } => {
                let passes = &measured[stage].passes;
                let first = begun.insert(stage);
                course.work(if first { passes.first_backward_peak } else { passes.later_backward_peak });
                course.now.activations = course.now.activations.saturating_sub(passes.activations);
                course.now.kept_weights = course.now.kept_weights.saturating_sub(passes.kept_weights);
                if first {
                    course.now.gradients += measured[stage].gradient_bytes;
                }
                flying -= 1;
            }
            Action::Send { .. } | Action::Receive { .. } => {}
        }
    }
    for stage in &stages {
        course.work(stage.step_peak);
    }
    let (then, working) = course.most;
    let working = working + sum(|stage| stage.other_bytes);
    MemoryReport {
        parameters,
        least_parameters: sum(|stage| stage.least_parameter_bytes),
        gradients,
        optimizer,
        activations: then.activations,
        kept_weights: then.kept_weights,
        gradients_then: then.gradients,
        working,
        peak: parameters + optimizer + then.total() + working,
        in_flight,
    }
}
