//! Which parameters decay.

use super::pattern::{PatternError, Patterns};
use crate::config::OptimizerConfig;

/// The weight decay of each parameter. Norms and biases have none, since what
/// they scale and shift has no natural size; nor have those that the
/// configuration names.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightDecay {
    amount: f64,
    without: Patterns,
    one_dim: OneDim,
}

/// What happens to parameters with one dim or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OneDim {
    Decays,
    Stays,
}

impl WeightDecay {
    /// As a configuration says. `names` are those of all parameters of the
    /// whole model, so that every rank of a pipeline comes to the same verdict
    /// on patterns.
    pub fn new<'a>(
        config: &OptimizerConfig,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, PatternError> {
        let without = Patterns::new("train.optimizer.no_decay", &config.no_decay)?;
        without.check(names)?;
        let one_dim = if config.decay_all { OneDim::Decays } else { OneDim::Stays };
        Ok(Self { amount: config.weight_decay, without, one_dim })
    }

    /// The weight decay of a parameter with so many dims.
    pub fn of(&self, name: &str, dims: usize) -> f64 {
        let stays = dims <= 1 && self.one_dim == OneDim::Stays || self.without.matches(name);
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
    fn what_has_one_dim_and_what_is_named_does_not_decay() {
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
    fn a_name_that_is_none_is_an_error() {
        let config = OptimizerConfig { no_decay: vec!["embde".to_owned()], ..OptimizerConfig::default() };
        let error = WeightDecay::new(&config, NAMES).unwrap_err();
        let expected = "the pattern `embde` in `train.optimizer.no_decay` matches no parameter";
        assert_eq!(error.to_string(), expected);
    }
}
