//! Learning rates by parameter.

use std::collections::BTreeMap;

use super::pattern::{PatternError, Patterns};

/// The factors of the learning rate for some parameters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LearningRateScale(Vec<(Patterns, f64)>);

/// The config key.
const KEY: &str = "train.optimizer.lr_scale";

impl LearningRateScale {
    /// The factors of a config. `names` are all trained parameters of the whole model,
    /// so that pipeline ranks agree on unmatched patterns.
    pub fn new<'a>(
        factors: &BTreeMap<String, f64>,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, PatternError> {
        let names: Vec<&str> = names.into_iter().collect();
        let mut all = Vec::with_capacity(factors.len());
        for (pattern, factor) in factors {
            let patterns = Patterns::anywhere(KEY, std::slice::from_ref(pattern))?;
            patterns.check(names.iter().copied())?;
            all.push((patterns, *factor));
        }
        Ok(Self(all))
    }

    /// The factor of a parameter: the product of all that match.
    pub fn of(&self, name: &str) -> f64 {
        self.0.iter().filter(|(patterns, _)| patterns.matches(name)).map(|(_, factor)| factor).product()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

    use weightloom_errors::Hint as _;

    use super::*;

    const NAMES: [&str; 3] = [
        "model.embed_tokens.weight",
        "model.layers.0.q_proj.lora_A.weight",
        "model.layers.0.q_proj.lora_B.weight",
    ];

    fn scale(factors: &[(&str, f64)]) -> Result<LearningRateScale, PatternError> {
        let factors = factors.iter().map(|(pattern, factor)| ((*pattern).to_owned(), *factor)).collect();
        LearningRateScale::new(&factors, NAMES)
    }

    #[test]
    fn factors_of_all_patterns_that_match_apply() {
        let found = scale(&[("lora_B", 16.0), ("layers.0", 0.5)]).unwrap();
        assert_eq!(NAMES.map(|name| found.of(name)), [1.0, 0.5, 8.0]);
        assert_eq!(LearningRateScale::default().of("x"), 1.0);
    }

    #[test]
    fn an_unmatched_pattern_is_an_error() {
        let error = scale(&[("lora_C", 2.0)]).unwrap_err();
        assert_eq!(error.to_string(), "`lora_C` in `train.optimizer.lr_scale` matches no parameter");
        assert!(error.hint().is_some());
        let error = scale(&[("layers..q", 2.0)]).unwrap_err();
        assert_eq!(error.to_string(), "`layers..q` in `train.optimizer.lr_scale` has an empty component");
    }
}
