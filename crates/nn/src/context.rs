//! Parameters and adapters as the modules of one forward pass see them.

use weightloom_dtensor::{DTensor, GradientReduction};
use weightloom_layout::DType;

use crate::adapter::LowRank;
use crate::batch_adapters::BatchAdapters;
use crate::config::DecoderConfig;
use crate::decoder::{Dropout, Structure};
use crate::error::NnError;
use crate::plan::Plan;

/// State that every module of a forward pass needs.
#[derive(Clone, Copy)]
pub(crate) struct ForwardContext<'a> {
    pub(crate) structure: &'a Structure,
    /// Parameters from index `first_parameter` on.
    pub(crate) parameters: &'a [(String, DTensor)],
    pub(crate) first_parameter: usize,
    pub(crate) adapters: BatchAdapters<'a>,
    pub(crate) dropout: Option<Dropout>,
    pub(crate) gradient_reduction: GradientReduction,
}

impl<'a> ForwardContext<'a> {
    pub(crate) fn config(&self) -> &'a DecoderConfig {
        &self.structure.config
    }

    pub(crate) fn plan(&self) -> &'a Plan {
        &self.structure.plan
    }

    /// Dropout of the inputs of LoRA updates.
    pub(crate) fn dropout(&self) -> Option<Dropout> {
        self.dropout
    }

    pub(crate) fn adapters(&self) -> BatchAdapters<'a> {
        self.adapters
    }

    pub(crate) fn with_adapters(&self, adapters: BatchAdapters<'a>) -> Self {
        Self { adapters, ..*self }
    }

    /// The name of the parameter at `index`.
    pub(crate) fn name(&self, index: usize) -> &'a str {
        &self.parameters[index - self.first_parameter].0
    }

    /// The dtype that the parameter at `index` is computed in.
    pub(crate) fn compute_dtype(&self, index: usize) -> DType {
        let held = self.parameters[index - self.first_parameter].1.dtype();
        self.structure.plan.usage().dtype.unwrap_or(held)
    }

    /// Gathers and casts the parameter at `index`, or its replacement by the
    /// batch's uniform adapter. Groups with other replacements are
    /// separated by [`by_group`](Self::by_group) first.
    pub(crate) fn parameter(&self, index: usize) -> Result<DTensor, NnError> {
        let (name, value) = &self.parameters[index - self.first_parameter];
        let value = self.structure.plan.gather_as(self.structure.layouts[index], value)?;
        let BatchAdapters::Uniform(Some((adapter, strength))) = self.adapters else { return Ok(value) };
        match adapter.replacement(name) {
            None => Ok(value),
            Some(new) => new.interpolate(&value, strength),
        }
    }

    /// The LoRA update of a module by the batch's uniform adapter.
    pub(crate) fn low_rank(&self, module: &str) -> Option<(&'a LowRank, f64)> {
        let BatchAdapters::Uniform(Some((adapter, strength))) = self.adapters else { return None };
        Some((adapter.low_rank(module)?, strength))
    }
}
