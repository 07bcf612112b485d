//! When everything in a schedule happens, for given costs.
//!
//! A rank does one thing at a time. Sending takes none of its time; a message
//! is there one transfer after it was sent, however many are on the way.

use weightloom_errors::Hint;

use super::check::{check, run};
use super::error::ProgramError;
use super::{Action, Message, Schedule};

/// What each stage costs, in any unit of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// The forward pass of a micro-batch, for each stage.
    pub forward: Vec<f64>,
    /// The backward pass of a micro-batch, for each stage.
    pub backward: Vec<f64>,
    /// The way of a message, for each stage that makes it.
    pub transfer: Vec<f64>,
}

impl Costs {
    /// The same for all stages.
    pub fn even(stages: usize, forward: f64, backward: f64, transfer: f64) -> Self {
        let all = |cost| vec![cost; stages];
        Self { forward: all(forward), backward: all(backward), transfer: all(transfer) }
    }

    fn check(&self, stages: usize) -> Result<(), CostError> {
        for (of, costs) in
            [("forward", &self.forward), ("backward", &self.backward), ("transfer", &self.transfer)]
        {
            if costs.len() != stages {
                return Err(CostError::Count { of, found: costs.len(), stages });
            }
            let bad = costs.iter().enumerate().find(|(_, cost)| !(0.0..f64::INFINITY).contains(*cost));
            if let Some((stage, cost)) = bad {
                return Err(CostError::Cost { of, stage, found: cost.to_string() });
            }
        }
        Ok(())
    }
}

/// Why there is no timeline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum CostError {
    /// The schedule does not work.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// Not one cost for each stage.
    #[error("{found} costs ({of}) are given for {stages} stages")]
    Count { of: &'static str, found: usize, stages: usize },
    /// An invalid cost.
    #[error("a cost ({of}) of stage {stage} is {found}")]
    Cost { of: &'static str, stage: usize, found: String },
}

impl Hint for CostError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Program(error) => error.hint(),
            Self::Count { stages, .. } => Some(format!("give {stages} costs, one for each stage")),
            Self::Cost { .. } => Some("give finite costs of at least 0".to_owned()),
        }
    }
}

/// From when to when an action happens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Span {
    /// When its rank comes to it.
    pub start: f64,
    /// When its rank continues.
    pub end: f64,
}

/// When everything happens.
#[derive(Clone, Debug, PartialEq)]
pub struct Timeline {
    /// The span of each action, in the order of each rank's program.
    pub ranks: Vec<Vec<Span>>,
    /// When the last rank is done.
    pub makespan: f64,
    /// How long each rank computes.
    pub busy: Vec<f64>,
    /// The most micro-batches, counted for each stage, of which a rank keeps
    /// activations at a time.
    pub peak_activations: Vec<usize>,
}

impl Timeline {
    /// The share of the time in which a rank computes nothing; all of it for a
    /// rank that there is not.
    pub fn bubble(&self, rank: usize) -> f64 {
        let busy = self.busy.get(rank).copied().unwrap_or(0.0);
        if self.makespan > 0.0 { 1.0 - busy / self.makespan } else { 0.0 }
    }

    /// The share of the time of all ranks in which they compute nothing.
    pub fn overall_bubble(&self) -> f64 {
        let ranks = self.ranks.len().max(1);
        (0..self.ranks.len()).map(|rank| self.bubble(rank)).sum::<f64>() / ranks as f64
    }
}

/// Says when everything in a schedule happens. The schedule is checked first.
pub fn timeline(schedule: &Schedule, costs: &Costs) -> Result<Timeline, CostError> {
    check(schedule)?;
    costs.check(schedule.stages)?;
    let ranks = schedule.ranks.len();
    let index = |message: Message| {
        (message.payload as usize * schedule.stages + message.stage) * schedule.micro_batches + message.micro
    };
    let mut arrivals = vec![0.0; 2 * schedule.stages * schedule.micro_batches];
    let mut now = vec![0.0_f64; ranks];
    let mut kept = vec![0_usize; ranks];
    let mut found = Timeline {
        ranks: schedule.ranks.iter().map(|program| vec![Span::default(); program.len()]).collect(),
        makespan: 0.0,
        busy: vec![0.0; ranks],
        peak_activations: vec![0; ranks],
    };
    run(schedule, |rank, position| {
        let start = now[rank];
        let end = match schedule.ranks[rank][position] {
            Action::Forward { stage, .. } => {
                kept[rank] += 1;
                found.peak_activations[rank] = found.peak_activations[rank].max(kept[rank]);
                found.busy[rank] += costs.forward[stage];
                start + costs.forward[stage]
            }
            Action::Backward { stage, .. } => {
                kept[rank] -= 1;
                found.busy[rank] += costs.backward[stage];
                start + costs.backward[stage]
            }
            Action::Send { message, .. } => {
                arrivals[index(message)] = start + costs.transfer[message.stage];
                start
            }
            Action::Receive { message, .. } => start.max(arrivals[index(message)]),
        };
        now[rank] = end;
        found.ranks[rank][position] = Span { start, end };
    })?;
    found.makespan = now.into_iter().fold(0.0, f64::max);
    Ok(found)
}
