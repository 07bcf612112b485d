//! Weights of categories.

use std::collections::BTreeMap;

use thiserror::Error;
use weightloom_errors::{Hint, did_you_mean, nearest};

use crate::category::Category;
use crate::statistics::Statistics;

/// Weights of categories. A category without a weight does not count.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    by_name: BTreeMap<String, f64>,
}

/// Why weights cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum WeightError {
    #[error("cannot parse `{part}`: expected category=number")]
    Form { part: String },
    #[error("the weight of {category}, `{found}`, is not a number")]
    Number { category: String, found: String },
    #[error("unknown category `{found}`")]
    Category { found: String, near: Option<String> },
    #[error("the weight of {category}, {found}, is negative")]
    Negative { category: String, found: String },
    #[error("{category} has two weights")]
    Twice { category: String },
    #[error("the weights of all categories add up to 0")]
    Nothing,
}

impl Hint for WeightError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Form { .. } | Self::Number { .. } => "write adherence=0.5,ablation=0".to_owned(),
            Self::Category { near: Some(near), .. } => return did_you_mean(Some(near)),
            Self::Category { near: None, .. } => {
                format!("use {}", Category::ALL.map(Category::name).join(", "))
            }
            Self::Negative { .. } => "write 0 for a category that should not count".to_owned(),
            Self::Twice { .. } => "omit one of them".to_owned(),
            Self::Nothing => "give at least one category a weight above 0".to_owned(),
        })
    }
}

impl Weights {
    /// The default weights.
    pub fn defaults() -> Self {
        let pairs = Category::ALL.map(|category| (category.name().to_owned(), category.default_weight()));
        Self { by_name: pairs.into_iter().collect() }
    }

    /// The default weights, overridden by those of a suite.
    pub fn of_suite(given: Option<&BTreeMap<String, f64>>) -> Self {
        let mut weights = Self::defaults();
        for (category, weight) in given.into_iter().flatten() {
            weights.by_name.insert(category.clone(), *weight);
        }
        weights
    }

    /// Overrides weights by those of a command line, `adherence=0.5,ablation=0`.
    ///
    /// Under the reference statistics they replace all others, as in dlm-sway: a
    /// category that is not named does not count.
    pub fn over(self, given: &str, statistics: Statistics) -> Result<Self, WeightError> {
        let mut named: BTreeMap<String, f64> = BTreeMap::new();
        for part in given.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let form = || WeightError::Form { part: part.to_owned() };
            let (category, value) = part.split_once('=').ok_or_else(form)?;
            let (category, value) = (category.trim().to_owned(), value.trim());
            if category.is_empty() {
                return Err(form());
            }
            let weight = value.parse::<f64>().ok().filter(|weight| weight.is_finite());
            let weight = weight
                .ok_or_else(|| WeightError::Number { category: category.clone(), found: value.to_owned() })?;
            if statistics == Statistics::Paired {
                if Category::from_name(&category).is_none() {
                    let near = nearest(&category, Category::ALL.map(Category::name)).map(str::to_owned);
                    return Err(WeightError::Category { found: category, near });
                }
                if weight < 0.0 {
                    return Err(WeightError::Negative { category, found: value.to_owned() });
                }
                if named.contains_key(&category) {
                    return Err(WeightError::Twice { category });
                }
            }
            named.insert(category, weight);
        }
        match statistics {
            Statistics::Reference if named.is_empty() => Ok(self),
            Statistics::Reference => Ok(Self { by_name: named }),
            Statistics::Paired => {
                let mut by_name = self.by_name;
                by_name.extend(named);
                let whole: f64 = by_name.values().sum();
                if whole > 0.0 { Ok(Self { by_name }) } else { Err(WeightError::Nothing) }
            }
        }
    }

    /// The weight of a category.
    pub fn of(&self, category: Category) -> Option<f64> {
        self.by_name.get(category.name()).copied()
    }

    /// All weights, by name of the category.
    pub fn by_name(&self) -> &BTreeMap<String, f64> {
        &self.by_name
    }
}
