//! From what a suite compares to what answers for it.

use shardloom::hub::Hub;
use shardloom::hub::fetch::FetchObserver;
use shardloom::layout::{DType, Hint};
use shardloom::sway::backend::local::{LocalBackend, LocalOptions, Tuned};
use shardloom::sway::backend::two_model::TwoModel;
use shardloom::sway::suite::{LocalModel, Plan, PlannedModel, Precision};
use shardloom::sway::{Backend, SwayError};
use thiserror::Error;

use super::super::failure::Failure;

/// Why nothing can answer for a suite.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub(super) enum BuildError {
    /// A side that this build cannot ask.
    #[error("{side} is {what}, which cannot be asked here")]
    NotHere { side: &'static str, what: &'static str },
    /// A device that is not there.
    #[error("`{device}` is no device of this program")]
    Device { device: String },
}

impl Hint for BuildError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NotHere { .. } => "name a folder or a model: `kind: hf`".to_owned(),
            Self::Device { .. } => "write auto or cpu".to_owned(),
        })
    }
}

/// What answers for a suite. Files are looked at; weights are read when
/// something is asked.
pub(super) fn build(
    plan: &Plan,
    hub: &Hub,
    fetching: &dyn FetchObserver,
) -> Result<Box<dyn Backend>, Failure> {
    let workshop = Workshop { hub, fetching };
    match plan {
        Plan::Adapter { model } => workshop.local(model),
        Plan::Two { base: PlannedModel::Local(base), tuned: PlannedModel::Local(tuned) } => {
            workshop.two(base, tuned)
        }
        Plan::Two { base, tuned } => {
            let is_local = |model: &PlannedModel| matches!(model, PlannedModel::Local(_));
            let (side, other) = if is_local(base) { ("models.ft", tuned) } else { ("models.base", base) };
            Err(Failure::user(&BuildError::NotHere { side, what: kind_of(other) }))
        }
        Plan::Custom { .. } => {
            Err(Failure::user(&BuildError::NotHere { side: "models.ft", what: "a backend of your own" }))
        }
    }
}

fn kind_of(model: &PlannedModel) -> &'static str {
    match model {
        PlannedModel::Local(_) => "a local model",
        PlannedModel::Server(_) => "a server",
        PlannedModel::Custom(_) => "a backend of your own",
    }
}

struct Workshop<'a> {
    hub: &'a Hub,
    fetching: &'a dyn FetchObserver,
}

impl Workshop<'_> {
    fn local(&self, model: &LocalModel) -> Result<Box<dyn Backend>, Failure> {
        let tuned = model.adapter.clone().map_or(Tuned::Nothing, Tuned::Adapter);
        self.made(model, tuned)
    }

    fn two(&self, base: &LocalModel, tuned: &LocalModel) -> Result<Box<dyn Backend>, Failure> {
        match (&base.adapter, &tuned.adapter) {
            (None, None) if base.dtype == tuned.dtype => {
                let other = self.hub.open(&tuned.base, self.fetching)?;
                self.made(base, Tuned::Model(Box::new(other)))
            }
            (None, Some(_)) => Ok(Box::new(TwoModel::new(self.local(base)?, self.local(tuned)?))),
            _ => Err(Failure::user(&BuildError::NotHere {
                side: "models.base",
                what: "a model with an adapter or a precision of its own",
            })),
        }
    }

    fn made(&self, model: &LocalModel, tuned: Tuned) -> Result<Box<dyn Backend>, Failure> {
        if !matches!(model.device.as_str(), "auto" | "cpu") {
            return Err(Failure::user(&BuildError::Device { device: model.device.clone() }));
        }
        let options = LocalOptions { dtype: dtype(model.dtype), ..LocalOptions::default() };
        let base = self.hub.open(&model.base, self.fetching)?;
        let made = LocalBackend::new("hf", base, tuned, options);
        Ok(Box::new(made.map_err(|error: SwayError| Failure::user(&error))?))
    }
}

fn dtype(precision: Precision) -> DType {
    match precision {
        Precision::Auto | Precision::Fp32 => DType::F32,
        Precision::Fp16 => DType::F16,
        Precision::Bf16 => DType::Bf16,
    }
}
