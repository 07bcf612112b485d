//! What each category counts.

use std::collections::BTreeMap;

use thiserror::Error;
use weightloom_errors::{Hint, nearest};

use crate::category::Category;
use crate::statistics::Statistics;

/// What each category counts. A category that is not there does not count.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    by_name: BTreeMap<String, f64>,
}

/// Why weights are none.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum WeightError {
    /// A part without a value.
    #[error("`{part}` is not of the form category=number")]
    Form { part: String },
    /// A value that is no number.
    #[error("the weight of {category} is `{found}`, not a number")]
    Number { category: String, found: String },
    /// A weight for something that is no category.
    #[error("there is no category `{found}`")]
    Category { found: String, near: Option<String> },
    /// A weight below 0.
    #[error("the weight of {category} is {found}, which is less than 0")]
    Negative { category: String, found: String },
    /// One category twice.
    #[error("{category} stands there twice")]
    Twice { category: String },
    /// Weights that leave nothing to be weighed.
    #[error("all categories together weigh nothing")]
    Nothing,
}

impl Hint for WeightError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Form { .. } | Self::Number { .. } => "write adherence=0.5,ablation=0".to_owned(),
            Self::Category { near: Some(near), .. } => format!("write {near}"),
            Self::Category { near: None, .. } => {
                format!("categories: {}", Category::ALL.map(Category::name).join(", "))
            }
            Self::Negative { .. } => "write 0 for a category that should not count".to_owned(),
            Self::Twice { .. } => "leave one of them out".to_owned(),
            Self::Nothing => "give at least one category a weight above 0".to_owned(),
        })
    }
}

impl Weights {
    /// The usual weights.
    pub fn usual() -> Self {
        let pairs = Category::ALL.map(|category| (category.name().to_owned(), category.default_weight()));
        Self { by_name: pairs.into_iter().collect() }
    }

    /// The usual weights with those of a suite over them.
    pub fn of_suite(given: Option<&BTreeMap<String, f64>>) -> Self {
        let mut weights = Self::usual();
        for (category, weight) in given.into_iter().flatten() {
            weights.by_name.insert(category.clone(), *weight);
        }
        weights
    }

    /// The weights of a command line, `adherence=0.5,ablation=0`, over others.
    ///
    /// In reference mode they take the place of all others, whatever they say,
    /// as dlm-sway does: a category that is not named does not count.
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

    /// What a category counts.
    pub fn of(&self, category: Category) -> Option<f64> {
        self.by_name.get(category.name()).copied()
    }

    /// All of them.
    pub fn by_name(&self) -> &BTreeMap<String, f64> {
        &self.by_name
    }
}
