//! Notes on the training run that an adapter comes from: its loss curve, and how
//! the gradients are spread over layers.
//!
//! Weightloom saves `metrics.jsonl` and the optimizer's state, so a report can say
//! whether the run itself was healthy. These are notes: they explain a verdict,
//! and no score depends on them.

mod gradients;
mod loss_curve;

use std::path::{Path, PathBuf};

use serde::Serialize;

pub use gradients::{GradientSpread, LayerMoment};
pub use loss_curve::{LossCurve, LossPoint};

use crate::suite::{Plan, PlannedModel, Suite};

/// What the files of a training run say about it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TrainingHealth {
    /// The training loss, from `metrics.jsonl`, up to the step of the checkpoint.
    pub loss: Option<LossCurve>,
    /// The second moments of the gradients, from the optimizer's state.
    pub gradients: Option<GradientSpread>,
}

impl TrainingHealth {
    /// Reads the run of an adapter or model that is one of its checkpoints,
    /// `RUN/checkpoints/step_N`. `None` if it is not.
    pub fn of_checkpoint(checkpoint: &Path) -> Option<Self> {
        let full = std::path::absolute(checkpoint).ok()?;
        let step: u64 = full.file_name()?.to_str()?.strip_prefix("step_")?.parse().ok()?;
        let checkpoints = full.parent()?;
        if checkpoints.file_name()? != "checkpoints" {
            return None;
        }
        let loss = LossCurve::read_file(&checkpoints.parent()?.join("metrics.jsonl"), step);
        let gradients = GradientSpread::read(&full);
        (loss.is_some() || gradients.is_some()).then_some(Self { loss, gradients })
    }

    /// The findings as sentences, healthy or not.
    pub fn notes(&self) -> Vec<String> {
        let loss = self.loss.iter().flat_map(LossCurve::notes);
        let gradients = self.gradients.iter().flat_map(GradientSpread::notes);
        loss.chain(gradients).map(|note| format!("training run: {note}")).collect()
    }
}

/// Notes on the run that the fine-tuned model of a suite comes from; none if it
/// is not a checkpoint of a run.
pub fn notes_of_suite(suite: &Suite) -> Vec<String> {
    let folder = match &suite.plan {
        Plan::Adapter { model } | Plan::Two { tuned: PlannedModel::Local(model), .. } => {
            model.adapter.clone().unwrap_or_else(|| PathBuf::from(&model.base))
        }
        _ => return Vec::new(),
    };
    TrainingHealth::of_checkpoint(&folder).map(|health| health.notes()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
