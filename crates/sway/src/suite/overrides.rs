//! Settings that override a suite file.

use super::file::{File, ModelKind};
use crate::statistics::Statistics;

/// Settings that override a suite file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SuiteOverrides {
    /// How verdicts are reached.
    pub statistics: Option<Statistics>,
    /// The base model, on both sides.
    pub base: Option<String>,
    /// The fine-tuned model.
    pub tuned: Option<TunedSide>,
}

/// What the base is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TunedSide {
    /// The base with the adapter in this folder.
    Adapter(String),
    /// Another model.
    Model(String),
}

impl SuiteOverrides {
    /// Replaces the models. Paths are relative to the caller, and not resolved
    /// again.
    pub(super) fn apply(&self, file: &mut File) {
        let models = &mut file.models;
        if let Some(base) = &self.base {
            for side in [&mut models.base, &mut models.ft] {
                side.base.clone_from(base);
                local(&mut side.kind);
            }
            models.base.adapter = None;
        }
        match &self.tuned {
            None => {}
            Some(TunedSide::Adapter(adapter)) => {
                models.ft.adapter = Some(adapter.clone());
                // The adapter was trained on this base.
                if models.base.kind.is_local() {
                    models.ft.base.clone_from(&models.base.base);
                }
                local(&mut models.ft.kind);
            }
            Some(TunedSide::Model(model)) => {
                models.ft.base.clone_from(model);
                models.ft.adapter = None;
                local(&mut models.ft.kind);
            }
        }
    }
}

/// Overridden models are loaded by this program.
fn local(kind: &mut ModelKind) {
    if !kind.is_local() {
        *kind = ModelKind::Hf;
    }
}
