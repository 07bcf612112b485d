//! Finding where numbers stop being numbers.

use weightloom_dtensor::NanCheck;
use weightloom_gang::GangExt;
use weightloom_layout::DType;

use super::{Engine, MicroBatch, StepSettings, Stepped};
use crate::error::TrainError;

impl Engine {
    /// What went wrong in a step whose loss or norm is no number: its passes are
    /// done again, and the first operation with such a result is noted. Every
    /// rank. Weights stay as they were before the step.
    pub fn not_finite(
        &mut self,
        step: u64,
        micros: &[MicroBatch],
        stepped: &Stepped,
    ) -> Result<TrainError, TrainError> {
        let mut found = None;
        for stage in &self.stages {
            for (name, value) in stage.decoder.parameters() {
                // Only what is finite is nothing without itself.
                let local = value.to_local().detach();
                let nothing = local.sub(&local)?.sum_all()?.cast(DType::F64)?.item::<f64>()?;
                if nothing != 0.0 && found.is_none() {
                    found = Some(format!("the parameter `{name}` before the step"));
                }
            }
        }
        let check = NanCheck::recording();
        let settings = StepSettings { number: step, learning_rate: 0.0, clip: &|_| 1.0, substep: &|_, _| {} };
        let targets = self.count_targets(micros)?;
        let passed = self.checked_passes(&settings, micros, (targets as f64).max(1.0), Some(&check));
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
        // Of a pipeline, what comes first; of ranks that share a layer, any.
        let mine = (self.gangs.pp.rank(), found.or(noted));
        let all: Vec<(usize, Option<String>)> = self.gangs.root.all_gather_objects(&mine)?;
        let first =
            all.into_iter().filter_map(|(stage, what)| Some((stage, what?))).min_by_key(|(stage, _)| *stage);
        let what = first.map_or_else(|| "the sum over all ranks".to_owned(), |(_, what)| what);
        let (loss, gradient_norm) = (stepped.loss.to_string(), stepped.gradient_norm.to_string());
        Ok(TrainError::NotFinite { step, loss, gradient_norm, what })
    }
}
