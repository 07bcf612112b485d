//! Finding the operation that produced a NaN or infinity.

use weightloom_dtensor::NanCheck;
use weightloom_gang::GangExt;
use weightloom_layout::DType;

use super::{Engine, MicroBatch, StepResult, StepSettings};
use crate::error::TrainError;

impl Engine {
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
                // `x - x` is zero only for finite `x`.
                let local = value.to_local().detach();
                let difference = local.sub(&local)?.sum_all()?.cast(DType::F64)?.item::<f64>()?;
                if difference != 0.0 && found.is_none() {
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
        Ok(TrainError::NotFinite { step, loss, gradient_norm, what })
    }
}
