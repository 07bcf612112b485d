//! Finding the operation that produced a NaN or infinity.

use weightloom_dtensor::{DTensor, NanCheck};
use weightloom_gang::GangExt;
use weightloom_layout::{DType, ReduceOp};

use super::{Engine, MicroBatch, StepResult, StepSettings};
use crate::error::{BatchOutcome, TrainError};

/// Whether this rank's part of a parameter is finite.
fn is_finite(value: &DTensor) -> Result<bool, TrainError> {
    // `x - x` is zero only for finite `x`.
    let local = value.to_local().detach();
    Ok(local.sub(&local)?.sum_all()?.cast(DType::F64)?.item::<f64>()? == 0.0)
}

impl Engine {
    /// Whether all parameters of all ranks are finite. Called by every rank.
    pub fn has_finite_weights(&self) -> Result<bool, TrainError> {
        let mut broken = [0u64];
        for stage in &self.stages {
            for (_, value) in stage.model.parameters() {
                broken[0] += u64::from(!is_finite(value)?);
            }
            for (_, value) in stage.trained() {
                broken[0] += u64::from(!is_finite(value)?);
            }
        }
        self.gangs.root.all_reduce(&mut broken, ReduceOp::Sum)?;
        Ok(broken[0] == 0)
    }

    /// Diagnoses a step with a non-finite loss or norm: repeats its passes and
    /// records the first operation with a non-finite result. Called by every
    /// rank. Weights keep their values from before the step.
    pub fn diagnose_non_finite(
        &mut self,
        step: u64,
        micros: &[MicroBatch],
        result: &StepResult,
    ) -> Result<TrainError, TrainError> {
        let mut found = None;
        for stage in &self.stages {
            for (name, value) in stage.model.parameters() {
                if found.is_none() && !is_finite(value)? {
                    found = Some(format!("the parameter `{name}` before the step"));
                }
            }
        }
        let check = NanCheck::recording();
        let settings = StepSettings { number: step, learning_rate: 0.0 };
        let divisor = self.prepare_loss(micros)?;
        let passed = self.checked_forward_backward(&settings, micros, divisor, &mut (), Some(&check));
        self.dist.finish()?;
        passed?;
        for stage in &self.stages {
            for (_, value) in stage.trained() {
                value.zero_grad()?;
            }
        }
        let noted = check.take_first().map(|first| match first.module.is_empty() {
            true => first.error.to_string(),
            false => format!("`{}`: {}", first.module, first.error),
        });
        // Report the earliest pipeline stage, and any of its ranks.
        let mine = (self.gangs.pp.rank(), found.or(noted));
        let all: Vec<(usize, Option<String>)> = self.gangs.root.all_gather_objects(&mine)?;
        let first =
            all.into_iter().filter_map(|(stage, what)| Some((stage, what?))).min_by_key(|(stage, _)| *stage);
        let what = first.map_or_else(|| "the reduction over all ranks".to_owned(), |(_, what)| what);
        let (loss, gradient_norm) = (result.loss.to_string(), result.gradient_norm.to_string());
        let batch = BatchOutcome::default();
        Ok(TrainError::NotFinite { step, loss, gradient_norm, what, batch })
    }
}
