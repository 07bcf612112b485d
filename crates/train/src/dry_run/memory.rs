//! Peak memory of a rank, from its pipeline program.

use std::collections::BTreeSet;

use super::context::RunContext;
use super::report::MemoryReport;
use super::stage::StageCosts;
use crate::pipeline::Action;

/// Memory other than parameters and optimizer states.
#[derive(Clone, Copy, Default)]
struct InUse {
    activations: u64,
    kept_weights: u64,
    gradients: u64,
}

impl InUse {
    fn total(self) -> u64 {
        self.activations + self.kept_weights + self.gradients
    }
}

/// Tracks memory in use and its peak.
#[derive(Default)]
struct PeakTracker {
    now: InUse,
    /// At the peak: memory in use, and temporary memory.
    peak: (InUse, u64),
}

impl PeakTracker {
    fn observe(&mut self, working: u64) {
        if self.now.total() + working > self.peak.0.total() + self.peak.1 {
            self.peak = (self.now, working);
        }
    }
}

/// The peak memory of a pipeline rank.
pub(super) fn of_rank(context: &RunContext<'_>, measured: &[&StageCosts], rank: usize) -> MemoryReport {
    let stages: Vec<&StageCosts> = context.schedule.stages_of(rank).map(|number| measured[number]).collect();
    let sum = |of: fn(&StageCosts) -> u64| stages.iter().map(|stage| of(stage)).sum::<u64>();
    let (parameters, optimizer) = (sum(|stage| stage.parameter_bytes), sum(|stage| stage.optimizer_bytes));
    let gradients = sum(|stage| stage.gradient_bytes);
    let mut tracker = PeakTracker::default();
    let mut begun = BTreeSet::new();
    let (mut flying, mut in_flight) = (0, 0);
    for action in &context.schedule.ranks[rank] {
        match *action {
            Action::Forward { stage, .. } => {
                let passes = &measured[stage].passes;
                tracker.observe(passes.forward_peak);
                tracker.now.activations += passes.activations;
                tracker.now.kept_weights += passes.kept_weights;
                flying += 1;
                in_flight = in_flight.max(flying);
            }
            Action::Backward { stage, .. } => {
                let passes = &measured[stage].passes;
                let first = begun.insert(stage);
                tracker.observe(if first { passes.first_backward_peak } else { passes.later_backward_peak });
                tracker.now.activations = tracker.now.activations.saturating_sub(passes.activations);
                tracker.now.kept_weights = tracker.now.kept_weights.saturating_sub(passes.kept_weights);
                if first {
                    tracker.now.gradients += measured[stage].gradient_bytes;
                }
                flying -= 1;
            }
            Action::Send { .. } | Action::Receive { .. } => {}
        }
    }
    for stage in &stages {
        tracker.observe(stage.step_peak);
    }
    let (then, working) = tracker.peak;
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
