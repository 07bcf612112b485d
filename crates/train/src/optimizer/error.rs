//! Checks of optimizer settings.

use weightloom_errors::Hint;

use super::PatternError;
use crate::config::OptimizerConfig;
use crate::extensions::UnknownName;

/// An invalid optimizer setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum OptimizerError {
    #[error("invalid `train.optimizer.{key}`: {found}")]
    Number { key: &'static str, found: String, range: &'static str },
    #[error("`train.optimizer.kind`: {0}")]
    Unknown(#[from] UnknownName),
    #[error("invalid `train.optimizer.options` of `{optimizer}`: {problem}")]
    Options { optimizer: String, problem: String },
    #[error("cannot use the optimizer `{optimizer}`: {problem}")]
    Unusable { optimizer: String, problem: String },
    #[error(transparent)]
    Pattern(#[from] PatternError),
}

impl Hint for OptimizerError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Number { key, range, .. } => {
                Some(format!("set `train.optimizer.{key}` to a number {range}"))
            }
            Self::Unknown(error) => error.hint(),
            Self::Pattern(error) => error.hint(),
            Self::Options { .. } | Self::Unusable { .. } => None,
        }
    }
}

const NOT_NEGATIVE: &str = "of at least 0";
const BELOW_ONE: &str = "of at least 0 and below 1";

/// Checks all settings, also those that the selected optimizer does not use.
pub(super) fn check(config: &OptimizerConfig) -> Result<(), OptimizerError> {
    let [first, second] = config.betas;
    let numbers = [
        ("lr", config.lr, NOT_NEGATIVE),
        ("betas[0]", first, BELOW_ONE),
        ("betas[1]", second, BELOW_ONE),
        ("eps", config.eps, NOT_NEGATIVE),
        ("momentum", config.momentum, BELOW_ONE),
        ("weight_decay", config.weight_decay, NOT_NEGATIVE),
        ("max_grad_norm", config.max_grad_norm, NOT_NEGATIVE),
    ];
    for (key, value, range) in numbers {
        let limit = if range == BELOW_ONE { 1.0 } else { f64::INFINITY };
        // NaN is in no range.
        if !(0.0..limit).contains(&value) {
            return Err(OptimizerError::Number { key, found: value.to_string(), range });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    #[test]
    fn every_setting_has_a_range() {
        type Change = fn(&mut OptimizerConfig, f64);
        let keys: [(&str, f64, Change); 7] = [
            ("lr", f64::INFINITY, |config, x| config.lr = x),
            ("betas[0]", 1.0, |config, x| config.betas[0] = x),
            ("betas[1]", 1.0, |config, x| config.betas[1] = x),
            ("eps", f64::INFINITY, |config, x| config.eps = x),
            ("momentum", 1.0, |config, x| config.momentum = x),
            ("weight_decay", f64::INFINITY, |config, x| config.weight_decay = x),
            ("max_grad_norm", f64::INFINITY, |config, x| config.max_grad_norm = x),
        ];
        for (key, limit, change) in keys {
            for value in [-1e-9, limit, f64::NAN] {
                let mut config = OptimizerConfig::default();
                change(&mut config, value);
                let error = check(&config).unwrap_err();
                assert_eq!(error.to_string(), format!("invalid `train.optimizer.{key}`: {value}"));
                assert!(error.hint().unwrap().contains(key));
            }
            for value in [0.0, 0.5] {
                let mut config = OptimizerConfig::default();
                change(&mut config, value);
                assert_eq!(check(&config), Ok(()));
            }
        }
    }
}
