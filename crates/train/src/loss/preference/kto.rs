//! Kahneman-Tversky optimization.

use schemars::JsonSchema;
use serde::Deserialize;
use weightloom_tensor::{Result, Tensor};

use super::dpo::positive;
use super::{Completions, Example, Objective, PreferenceLoss};
use crate::data::Supervision;
use crate::extensions::OptionProblem;
use crate::loss::batch::{LossNeeds, Reference};
use crate::loss::{Loss, LossError, LossFactory};

/// Options of `kto`.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct KtoOptions {
    /// How strongly the model is held to its reference.
    beta: f64,
    /// Weight of desirable completions.
    desirable_weight: f64,
    /// Weight of undesirable completions.
    undesirable_weight: f64,
}

impl Default for KtoOptions {
    fn default() -> Self {
        Self { beta: 0.1, desirable_weight: 1.0, undesirable_weight: 1.0 }
    }
}

/// Builds the KTO loss.
#[derive(Debug)]
pub(crate) struct KtoFactory;

impl LossFactory for KtoFactory {
    type Options = KtoOptions;

    fn name(&self) -> &'static str {
        "kto"
    }

    fn summary(&self) -> &'static str {
        "Kahneman-Tversky optimization: desirable completions become likelier and undesirable ones less \
         likely, relative to the initial model."
    }

    fn problems(&self, options: &KtoOptions) -> Vec<OptionProblem> {
        let all = [
            positive("beta", options.beta),
            positive("desirable_weight", options.desirable_weight),
            positive("undesirable_weight", options.undesirable_weight),
        ];
        all.into_iter().flatten().collect()
    }

    fn build(&self, options: KtoOptions) -> Result<Box<dyn Loss>, LossError> {
        Ok(Box::new(PreferenceLoss(options)))
    }
}

impl Objective for KtoOptions {
    fn needs(&self) -> LossNeeds {
        LossNeeds {
            documents: Supervision::Labels,
            reference: Reference::Initial,
            metrics: &[
                "rewards/chosen",
                "rewards/rejected",
                "rewards/margins",
                "logps/chosen",
                "logps/rejected",
                "kl",
            ],
            ..LossNeeds::default()
        }
    }

    /// `1 - σ(β · (log-ratio - divergence))` of desirable completions, and with the
    /// other sign of undesirable ones.
    fn losses(&self, completions: &Completions<'_>) -> Result<Tensor> {
        let ratios = completions.ratios()?;
        let divergence =
            Tensor::full(completions.divergence, ratios.dtype(), ratios.shape(), ratios.device())?;
        let desirable = |at: usize| completions.labels.get(at).copied().unwrap_or(false);
        let examples = 0..completions.lengths.len();
        let signs: Vec<f32> = examples.clone().map(|at| if desirable(at) { -1.0 } else { 1.0 }).collect();
        let weight = |at| if desirable(at) { self.desirable_weight } else { self.undesirable_weight };
        let weights: Vec<f32> = examples.map(|at| weight(at) as f32).collect();
        let gain = ratios.sub(&divergence)?.scale(self.beta)?.mul(&completions.constant(&signs)?)?;
        gain.sigmoid()?.mul(&completions.constant(&weights)?)
    }

    fn report(&self, example: &Example, add: &mut dyn FnMut(&'static str, f64)) {
        let Example { first, desirable, divergence, .. } = example;
        let (reward, logprob) = match desirable {
            true => ("rewards/chosen", "logps/chosen"),
            false => ("rewards/rejected", "logps/rejected"),
        };
        add(reward, self.beta * first.ratio());
        add(logprob, first.sum);
        add("kl", *divergence);
    }
}
