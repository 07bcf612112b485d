//! Run folders and adapters in place of models in a suite.

use std::path::Path;

use weightloom_hub::{Hub, HubError, LocateStep, ModelLocation};

use crate::suite::{ModelSpec, Suite, SuiteOverrides, TunedSide};

/// What the models of a suite refer to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocatedModels {
    /// Overrides with which to read the suite again; empty if it names models and
    /// adapters directly.
    pub overrides: SuiteOverrides,
    /// How the names were resolved.
    pub steps: Vec<LocateStep>,
}

impl LocatedModels {
    /// Resolves run folders to their newest checkpoints, and a fine-tuned model
    /// that is an adapter to the base with that adapter. Looks at local folders
    /// only. The `key` of an error is that of the suite file.
    pub fn of(suite: &Suite, hub: &Hub) -> Result<Self, LocateModelError> {
        let mut located = Self::default();
        let (base, tuned) = (&suite.base, &suite.tuned);
        if base.kind.is_local()
            && let Some(found) = Found::at(hub, &base.base, "models.base.base")?
            && !found.is_adapter
            && !found.steps.is_empty()
        {
            located.overrides.base = Some(found.path);
            located.steps.extend(found.steps);
        }
        if tuned.kind.is_local() {
            located.overrides.tuned = located.tuned_side(hub, base, tuned)?;
            let same = tuned.base == base.base;
            if located.overrides.tuned.is_none() && located.overrides.base.is_some() && !same {
                // An override of the base replaces both sides.
                located.overrides.tuned = Some(match &tuned.adapter {
                    Some(adapter) => TunedSide::Adapter(adapter.clone()),
                    None => TunedSide::Model(tuned.base.clone()),
                });
            }
        }
        Ok(located)
    }

    fn tuned_side(
        &mut self,
        hub: &Hub,
        base: &ModelSpec,
        tuned: &ModelSpec,
    ) -> Result<Option<TunedSide>, LocateModelError> {
        let (path, key) = match &tuned.adapter {
            Some(adapter) => (adapter, "models.ft.adapter"),
            None => (&tuned.base, "models.ft.base"),
        };
        let Some(found) = Found::at(hub, path, key)? else { return Ok(None) };
        let is_new = !found.steps.is_empty();
        self.steps.extend(found.steps);
        Ok(match (&tuned.adapter, found.is_adapter) {
            (Some(_), _) if is_new => Some(TunedSide::Adapter(found.path)),
            (None, true) => {
                let (adapter, base) = (found.path.clone().into(), base.base.clone());
                self.steps.push(LocateStep::Base { adapter, base });
                Some(TunedSide::Adapter(found.path))
            }
            (None, false) if is_new => Some(TunedSide::Model(found.path)),
            _ => None,
        })
    }
}

/// A name in a suite that refers to nothing usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{key}`: {source}")]
pub struct LocateModelError {
    /// The key of the suite file.
    pub key: &'static str,
    /// Why it cannot be resolved.
    pub source: Box<HubError>,
}

impl weightloom_errors::Hint for LocateModelError {
    fn hint(&self) -> Option<String> {
        self.source.hint()
    }
}

/// A local checkpoint.
struct Found {
    path: String,
    is_adapter: bool,
    steps: Vec<LocateStep>,
}

impl Found {
    /// What a local folder holds; `None` for other names.
    fn at(hub: &Hub, name: &str, key: &'static str) -> Result<Option<Self>, LocateModelError> {
        if !Path::new(name).is_dir() || hub.cards.knows(name) {
            return Ok(None);
        }
        let located = hub.locate_checkpoint(name, &());
        let located = located.map_err(|source| LocateModelError { key, source: Box::new(source) })?;
        let is_adapter = located.is_adapter();
        let ModelLocation::Path(path) = located.location else { return Ok(None) };
        Ok(Some(Self { path: path.display().to_string(), is_adapter, steps: located.steps }))
    }
}
