//! Odds ratio preference optimization.

use schemars::JsonSchema;
use serde::Deserialize;
use weightloom_tensor::{Result, Tensor};

use super::dpo::positive;
use super::{Completions, Example, Likelihood, Objective, PreferenceLoss, log_sigmoid, report_pair};
use crate::data::Supervision;
use crate::extensions::OptionProblem;
use crate::loss::batch::LossNeeds;
use crate::loss::{Loss, LossError, LossFactory};

/// Options of `orpo`.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct OrpoOptions {
    /// Weight of the odds ratio.
    beta: f64,
}

impl Default for OrpoOptions {
    fn default() -> Self {
        Self { beta: 0.1 }
    }
}

/// Builds the ORPO loss.
#[derive(Debug)]
pub(crate) struct OrpoFactory;

impl LossFactory for OrpoFactory {
    type Options = OrpoOptions;

    fn name(&self) -> &'static str {
        "orpo"
    }

    fn summary(&self) -> &'static str {
        "Odds ratio preference optimization: the cross-entropy of prompts with chosen completions, and the log \
         odds ratio of chosen and rejected ones. Needs no reference model."
    }

    fn problems(&self, options: &OrpoOptions) -> Vec<OptionProblem> {
        positive("beta", options.beta).into_iter().collect()
    }

    fn build(&self, options: OrpoOptions) -> Result<Box<dyn Loss>, LossError> {
        Ok(Box::new(PreferenceLoss(options)))
    }
}

/// The greatest mean log-probability: at 0 the odds are infinite.
const MOST: f64 = -1e-7;

/// `log(1 - eˣ)` for negative `x`. Written as `log(-tanh(x/2)) + log(1 + eˣ)`, which
/// does not cancel near 0.
fn log_complement(x: &Tensor) -> Result<Tensor> {
    let x = x.clamp(f64::MIN, MOST)?;
    x.scale(0.5)?.tanh()?.neg()?.log()?.sub(&log_sigmoid(&x.neg()?)?)
}

/// The same of a number.
fn log_complement_of(x: f64) -> f64 {
    (-x.min(MOST).exp_m1()).ln()
}

impl Objective for OrpoOptions {
    fn needs(&self) -> LossNeeds {
        LossNeeds {
            documents: Supervision::Preferences,
            metrics: &[
                "rewards/chosen",
                "rewards/rejected",
                "rewards/margins",
                "rewards/accuracies",
                "logps/chosen",
                "logps/rejected",
                "log_odds_ratio",
                "log_odds_chosen",
                "nll_loss",
            ],
            ..LossNeeds::default()
        }
    }

    fn likelihood(&self) -> Likelihood {
        Likelihood::Sequences(1.0)
    }

    /// `-β · log σ(log odds of chosen - log odds of rejected)`, with odds of mean
    /// log-probabilities.
    fn losses(&self, completions: &Completions<'_>) -> Result<Tensor> {
        let means = completions.means()?;
        let [chosen, rejected] = Completions::split_pairs(&means.sub(&log_complement(&means)?)?)?;
        log_sigmoid(&chosen.sub(&rejected)?)?.scale(-self.beta)
    }

    fn report(&self, example: &Example, add: &mut dyn FnMut(&'static str, f64)) {
        let means = [example.first, example.second].map(|it| it.mean());
        report_pair(means.map(|mean| self.beta * mean), means, add);
        let [chosen, rejected] = means.map(|mean| mean - log_complement_of(mean));
        let log_odds = chosen - rejected;
        add("log_odds_chosen", log_odds);
        add("log_odds_ratio", -((-log_odds).exp().ln_1p()));
    }
}
