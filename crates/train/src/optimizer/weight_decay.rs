//! Weight decay by parameter.

use super::pattern::{PatternError, Patterns};
use crate::config::OptimizerConfig;

/// The weight decay of each parameter. One-dimensional parameters (norms and
/// biases) and those in `no_decay` have none.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightDecay {
    amount: f64,
    no_decay: Patterns,
    one_dim: OneDim,
}

/// Whether parameters with at most one dim decay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OneDim {
    Decays,
    Stays,
}

impl WeightDecay {
    /// The weight decay of a config. `names` are all parameters of the whole
    /// model, so that pipeline ranks agree on unmatched patterns.
    pub fn new<'a>(
        config: &OptimizerConfig,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, PatternError> {
        let no_decay = Patterns::new("train.optimizer.no_decay", &config.no_decay)?;
        no_decay.check(names)?;
        let one_dim = if config.decay_all { OneDim::Decays } else { OneDim::Stays };
        Ok(Self { amount: config.weight_decay, no_decay, one_dim })
    }

    /// The weight decay of a parameter.
    pub fn of(&self, name: &str, dims: usize) -> f64 {
        let stays = dims <= 1 && self.one_dim == OneDim::Stays || self.no_decay.matches(name);
        if stays { 0.0 } else { self.amount }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use super::*;

    const NAMES: [&str; 4] =
        ["embed.weight", "layers.0.norm.weight", "layers.0.proj.weight", "layers.0.proj.bias"];

    fn decays(config: &OptimizerConfig) -> [f64; 4] {
        let decay = WeightDecay::new(config, NAMES).unwrap();
        [2, 1, 2, 1].into_iter().zip(NAMES).map(|(dims, name)| decay.of(name, dims)).collect::<Vec<_>>()[..]
            .try_into()
            .unwrap()
    }

    #[test]
    fn one_dim_and_listed_parameters_do_not_decay() {
        let config = OptimizerConfig { weight_decay: 0.5, ..OptimizerConfig::default() };
        assert_eq!(decays(&config), [0.5, 0.0, 0.5, 0.0]);
        let config = OptimizerConfig { no_decay: vec!["embed".to_owned()], ..config };
        assert_eq!(decays(&config), [0.0, 0.0, 0.5, 0.0]);
        let config = OptimizerConfig { decay_all: true, ..config };
        assert_eq!(decays(&config), [0.0, 0.5, 0.5, 0.5]);
        let decay = WeightDecay::new(&config, NAMES).unwrap();
        assert_eq!(decay.of("temperature", 0), 0.5);
    }

    #[test]
    fn an_unmatched_pattern_is_an_error() {
        let config = OptimizerConfig { no_decay: vec!["embde".to_owned()], ..OptimizerConfig::default() };
        let error = WeightDecay::new(&config, NAMES).unwrap_err();
        let expected = "`embde` in `train.optimizer.no_decay` matches no parameter";
        assert_eq!(error.to_string(), expected);
    }
}
