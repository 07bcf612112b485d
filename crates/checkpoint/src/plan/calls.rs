//! Calls of a planner. Planners may be a user's code: a panic becomes an error
//! that names the planner, so that this rank can report it to the others.

use weightloom_errors::{Panicked, caught};

use super::load::LoadPlanError;
use super::planner_error::{PlannerError, PlannerProblem};
use super::save::PlanError;
use crate::error::CheckpointError;

/// Calls a planner and names it in errors.
#[derive(Clone, Debug)]
pub(crate) struct PlannerCalls {
    name: String,
}

impl PlannerCalls {
    /// Asks a planner for its name.
    pub(crate) fn new<'n>(name: impl FnOnce() -> &'n str) -> Self {
        // Not a planner's name, so that nobody mistakes it for one.
        let name = caught(name).unwrap_or("(its name panicked)");
        Self { name: name.to_owned() }
    }

    /// Whether it is a default planner.
    pub(crate) fn is_standard(&self) -> bool {
        self.name == super::STANDARD
    }

    /// Runs one call. A planner that panicked is configured again before its
    /// next plan, so that it may be used again.
    pub(crate) fn run<T, E: ReturnedError>(
        &self,
        call: &'static str,
        body: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, CheckpointError> {
        match caught(body) {
            Ok(Ok(value)) => Ok(value),
            // The default planners report conflicts of the state, not mistakes
            // that they made.
            Ok(Err(error)) if self.is_standard() => Err(error.into()),
            Ok(Err(error)) => Err(self.error(error.into_problem())),
            Err(Panicked { message }) => Err(self.error(PlannerProblem::Panicked { call, message })),
        }
    }

    /// As [`run`](Self::run), for calls that cannot fail.
    pub(crate) fn ask<T>(&self, call: &'static str, body: impl FnOnce() -> T) -> Result<T, CheckpointError> {
        self.run(call, || Ok::<T, PlanError>(body()))
    }

    /// A mistake of the planner.
    pub(crate) fn error(&self, problem: PlannerProblem) -> CheckpointError {
        CheckpointError::Planner(PlannerError { planner: self.name.clone(), problem })
    }

    /// Names the planner in an error about what was written.
    pub(crate) fn blame(&self, error: CheckpointError) -> CheckpointError {
        match error {
            CheckpointError::Plan(error) if !self.is_standard() => self.error(error.into_problem()),
            CheckpointError::NotWrittenOnce { tensor: name } => {
                self.error(PlannerProblem::NotWrittenOnce { name })
            }
            other => other,
        }
    }
}

/// An error that a planner returns.
pub(crate) trait ReturnedError: Into<CheckpointError> {
    /// The problem of the planner.
    fn into_problem(self) -> PlannerProblem;
}

impl ReturnedError for PlanError {
    fn into_problem(self) -> PlannerProblem {
        match self {
            Self::Refused { reason } => PlannerProblem::Refused { reason },
            other => PlannerProblem::Save(Box::new(other)),
        }
    }
}

impl ReturnedError for LoadPlanError {
    fn into_problem(self) -> PlannerProblem {
        match self {
            Self::Plan(error) => error.into_problem(),
            other => PlannerProblem::Load(Box::new(other)),
        }
    }
}
