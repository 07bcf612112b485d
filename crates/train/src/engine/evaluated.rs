//! The weights that are evaluated and saved, where they are not the trained ones.

use std::collections::BTreeMap;

use weightloom_dtensor::DTensor;
use weightloom_tensor::Tensor;

use super::{Engine, StageModel};
use crate::error::TrainError;
use crate::optimizer::{EvaluatedWeights, evaluated};

/// Local tensors of the trained parameters of a stage, by name.
type StageWeights = BTreeMap<String, Tensor>;

impl Engine {
    /// Whether an average is evaluated and saved in place of the trained weights.
    pub(crate) fn evaluates_average(&self) -> bool {
        self.optimizer.evaluated() == EvaluatedWeights::Averaged
    }

    /// The average to evaluate in place of a trained parameter.
    pub(crate) fn average(
        &self,
        stage: &StageModel,
        name: &str,
        value: &DTensor,
    ) -> Result<Option<DTensor>, TrainError> {
        let Some(states) = stage.states.get(name) else { return Ok(None) };
        Ok(evaluated(&*self.optimizer, value, &states.tensors)?)
    }

    /// Does some work with the weights that are evaluated in place of the trained ones,
    /// which come back afterwards. Called by every rank.
    pub fn with_evaluated_weights<T>(
        &mut self,
        work: impl FnOnce(&Self) -> Result<T, TrainError>,
    ) -> Result<T, TrainError> {
        if !self.evaluates_average() {
            return work(self);
        }
        let mut averages = Vec::with_capacity(self.stages.len());
        for stage in &self.stages {
            let mut of_stage = StageWeights::new();
            for (name, value) in stage.trained() {
                if let Some(average) = self.average(stage, &name, value)? {
                    of_stage.insert(name, average.to_local().clone());
                }
            }
            averages.push(of_stage);
        }
        self.swap(&mut averages)?;
        let done = work(self);
        self.swap(&mut averages)?;
        done
    }

    /// Exchanges the trained parameters with others.
    fn swap(&mut self, weights: &mut [StageWeights]) -> Result<(), TrainError> {
        for (stage, weights) in self.stages.iter_mut().zip(weights) {
            for (name, value) in stage.trained_mut() {
                let Some(other) = weights.get_mut(&name) else { continue };
                value.change_local(|local| {
                    let new = other.detach().requires_grad();
                    *other = std::mem::replace(local, new);
                    Ok(())
                })?;
            }
        }
        Ok(())
    }
}
