//! Direct preference optimization.

use schemars::JsonSchema;
use serde::Deserialize;
use weightloom_tensor::{Result, Tensor};

use super::{Completions, Example, Objective, PreferenceLoss, report_pair, smoothed_loss};
use crate::data::Supervision;
use crate::extensions::OptionProblem;
use crate::loss::batch::{LossNeeds, Reference};
use crate::loss::{Loss, LossError, LossFactory};

/// Options of `dpo`.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DpoOptions {
    /// How strongly the model is held to its reference.
    beta: f64,
    /// Share of the labels that are assumed to be wrong, below 0.5.
    label_smoothing: f64,
}

impl Default for DpoOptions {
    fn default() -> Self {
        Self { beta: 0.1, label_smoothing: 0.0 }
    }
}

/// Builds the DPO loss.
#[derive(Debug)]
pub(crate) struct DpoFactory;

impl LossFactory for DpoFactory {
    type Options = DpoOptions;

    fn name(&self) -> &'static str {
        "dpo"
    }

    fn summary(&self) -> &'static str {
        "Direct preference optimization: chosen completions become likelier than rejected ones, relative to \
         the initial model."
    }

    fn problems(&self, options: &DpoOptions) -> Vec<OptionProblem> {
        [positive("beta", options.beta), smoothing(options.label_smoothing)].into_iter().flatten().collect()
    }

    fn build(&self, options: DpoOptions) -> Result<Box<dyn Loss>, LossError> {
        Ok(Box::new(PreferenceLoss(options)))
    }
}

/// The problem of an option that is not a positive number.
pub(super) fn positive(option: &'static str, value: f64) -> Option<OptionProblem> {
    let fits = value.is_finite() && value > 0.0;
    (!fits).then(|| OptionProblem::new(option, format!("{value} is not a positive number")))
}

/// The problem of a share of wrong labels.
pub(super) fn smoothing(share: f64) -> Option<OptionProblem> {
    let fits = (0.0..0.5).contains(&share);
    (!fits).then(|| OptionProblem::new("label_smoothing", format!("{share} is not from 0 to below 0.5")))
}

const PAIR_METRICS: &[&str] = &[
    "rewards/chosen",
    "rewards/rejected",
    "rewards/margins",
    "rewards/accuracies",
    "logps/chosen",
    "logps/rejected",
];

impl Objective for DpoOptions {
    fn needs(&self) -> LossNeeds {
        LossNeeds {
            documents: Supervision::Preferences,
            reference: Reference::Initial,
            metrics: PAIR_METRICS,
            ..LossNeeds::default()
        }
    }

    /// `-log σ(β · (chosen log-ratio - rejected log-ratio))`.
    fn losses(&self, completions: &Completions<'_>) -> Result<Tensor> {
        let [chosen, rejected] = Completions::split_pairs(&completions.ratios()?)?;
        smoothed_loss(&chosen.sub(&rejected)?.scale(self.beta)?, self.label_smoothing)
    }

    fn report(&self, example: &Example, add: &mut dyn FnMut(&'static str, f64)) {
        let Example { first, second, .. } = example;
        report_pair([first, second].map(|it| self.beta * it.ratio()), [first.sum, second.sum], add);
    }
}
