//! The loss: cross-entropy that keeps the normalizer of the logits small.

use schemars::JsonSchema;
use serde::Deserialize;
use weightloom::dtensor::DTensor;
use weightloom::layout::{DType, Layout};
use weightloom::nn::{IGNORED, NnError};
use weightloom::tensor::{CrossEntropy, Tensor};
use weightloom::train::extensions::OptionProblem;
use weightloom::train::loss::{Loss, LossArgs, LossError, LossFactory};

/// Cross-entropy plus `z_weight · log(Z)²`, where `Z` normalizes the probabilities of
/// a position (the z-loss of ST-MoE and PaLM).
#[derive(Debug)]
pub struct ZLoss;

/// Keys under `train.loss.options`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ZLossOptions {
    /// Weight of the squared logarithm of the normalizer.
    z_weight: f64,
}

impl Default for ZLossOptions {
    fn default() -> Self {
        Self { z_weight: 1e-3 }
    }
}

impl LossFactory for ZLoss {
    type Options = ZLossOptions;

    fn name(&self) -> &'static str {
        "z_loss"
    }

    fn summary(&self) -> &'static str {
        "Cross-entropy plus the squared logarithm of the normalizer."
    }

    fn problems(&self, options: &ZLossOptions) -> Vec<OptionProblem> {
        match options.z_weight >= 0.0 {
            true => Vec::new(),
            false => vec![OptionProblem::new("z_weight", "must be at least 0")],
        }
    }

    fn build(&self, options: ZLossOptions) -> Result<Box<dyn Loss>, LossError> {
        Ok(Box::new(options))
    }
}

impl Loss for ZLossOptions {
    fn compute(&self, args: &LossArgs<'_>) -> Result<DTensor, NnError> {
        let (logits, targets) = (args.logits()?, args.row_targets()?);
        let options =
            CrossEntropy { ignore_index: Some(IGNORED), label_smoothing: 0.0, divisor: Some(args.divisor) };
        let entropy = logits.cross_entropy(&targets, options)?;
        let ignored = Tensor::full(IGNORED as f64, DType::I64, &[], targets.device())?;
        let replicated = Layout::replicated(targets.layout().mesh());
        let ignored = DTensor::distribute(targets.dist(), &ignored, replicated)?;
        let counted = targets.ne(&ignored)?.cast(DType::F32)?;
        let normalizer = logits.logsumexp(&[1])?;
        let sum = normalizer.mul(&normalizer)?.mul(&counted)?.sum_all()?;
        let penalty = sum.scale(self.z_weight / args.divisor)?;
        Ok(entropy.add(&penalty.redistribute(entropy.layout())?)?)
    }
}
