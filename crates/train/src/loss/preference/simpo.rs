//! Simple preference optimization.

use schemars::JsonSchema;
use serde::Deserialize;
use weightloom_tensor::{Result, Tensor};

use super::dpo::{positive, smoothing};
use super::{Completions, Example, Likelihood, Objective, PreferenceLoss, report_pair, smoothed_loss};
use crate::data::Supervision;
use crate::extensions::OptionProblem;
use crate::loss::batch::LossNeeds;
use crate::loss::{Loss, LossError, LossFactory};

/// Options of `simpo`.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SimpoOptions {
    /// Scale of the rewards, which are mean log-probabilities of tokens.
    beta: f64,
    /// Margin by which the reward of a chosen completion should be greater.
    gamma: f64,
    /// Share of the labels that are assumed to be wrong, below 0.5.
    label_smoothing: f64,
    /// Weight of the cross-entropy of chosen completions; above 0 for CPO-SimPO.
    cpo_alpha: f64,
}

impl Default for SimpoOptions {
    fn default() -> Self {
        Self { beta: 0.1, gamma: 0.5, label_smoothing: 0.0, cpo_alpha: 0.0 }
    }
}

/// Builds the SimPO loss.
#[derive(Debug)]
pub(crate) struct SimpoFactory;

/// The problem of an option that is negative.
fn not_negative(option: &'static str, value: f64) -> Option<OptionProblem> {
    let fits = value.is_finite() && value >= 0.0;
    (!fits).then(|| OptionProblem::new(option, format!("{value} is not 0 or more")))
}

impl LossFactory for SimpoFactory {
    type Options = SimpoOptions;

    fn name(&self) -> &'static str {
        "simpo"
    }

    fn summary(&self) -> &'static str {
        "Simple preference optimization: the tokens of chosen completions become likelier than those of \
         rejected ones, by a margin. Needs no reference model."
    }

    fn problems(&self, options: &SimpoOptions) -> Vec<OptionProblem> {
        let all = [
            positive("beta", options.beta),
            not_negative("gamma", options.gamma),
            smoothing(options.label_smoothing),
            not_negative("cpo_alpha", options.cpo_alpha),
        ];
        all.into_iter().flatten().collect()
    }

    fn build(&self, options: SimpoOptions) -> Result<Box<dyn Loss>, LossError> {
        Ok(Box::new(PreferenceLoss(options)))
    }
}

const METRICS: &[&str] = &[
    "rewards/chosen",
    "rewards/rejected",
    "rewards/margins",
    "rewards/accuracies",
    "logps/chosen",
    "logps/rejected",
    "nll_loss",
];

impl Objective for SimpoOptions {
    fn needs(&self) -> LossNeeds {
        LossNeeds { documents: Supervision::Preferences, metrics: METRICS, ..LossNeeds::default() }
    }

    fn likelihood(&self) -> Likelihood {
        match self.cpo_alpha > 0.0 {
            true => Likelihood::Completions(self.cpo_alpha),
            false => Likelihood::Unused,
        }
    }

    /// `-log σ(β · (mean of chosen - mean of rejected) - γ)`.
    fn losses(&self, completions: &Completions<'_>) -> Result<Tensor> {
        let [chosen, rejected] = Completions::split_pairs(&completions.means()?)?;
        let margin = Tensor::full(self.gamma, chosen.dtype(), chosen.shape(), chosen.device())?;
        smoothed_loss(&chosen.sub(&rejected)?.scale(self.beta)?.sub(&margin)?, self.label_smoothing)
    }

    fn report(&self, example: &Example, add: &mut dyn FnMut(&'static str, f64)) {
        let means = [example.first, example.second].map(|it| it.mean());
        report_pair(means.map(|mean| self.beta * mean), means, add);
    }
}
