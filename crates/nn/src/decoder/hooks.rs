//! Communication that overlaps with computation: parameters gathered ahead of
//! their use, and gradients reduced while the backward pass runs.

use std::ops::Range;
use std::sync::Arc;

use weightloom_dtensor::{DTensor, GradientReduction, Release};

use super::Decoder;
use crate::context::ForwardContext;
use crate::error::NnError;

impl Decoder {
    /// Starts to gather the parameters of some layers.
    pub(super) fn prefetch_layers(&self, layers: Range<usize>) -> Result<(), NnError> {
        for layer in self.structure.layers.iter().skip(layers.start).take(layers.len()) {
            for index in layer.parameters.clone() {
                self.structure.plan.prefetch(self.structure.layouts[index], &self.parameters()[index].1)?;
            }
        }
        Ok(())
    }

    /// Hooks the output of a layer: its gradient starts gathering the
    /// parameters of an earlier layer for the backward pass.
    pub(super) fn hook_output(&self, index: usize, x: DTensor) -> Result<DTensor, NnError> {
        let usage = self.structure.plan.usage();
        let x = match x.nan_check().cloned() {
            Some(check) => {
                let number = self.structure.stage.layers.start + index;
                x.register_hook(move || {
                    check.enter_module(&format!("model.layers.{number}"));
                    Ok(())
                })?
            }
            None => x,
        };
        if usage.prefetch == 0 || usage.release == Release::Keep || !x.tracks_gradient() {
            return Ok(x);
        }
        let Some(earlier) = index.checked_sub(usage.prefetch) else { return Ok(x) };
        let structure = Arc::clone(&self.structure);
        let indices = self.structure.layers[earlier].parameters.clone();
        let values: Vec<DTensor> =
            self.parameters()[indices.clone()].iter().map(|(_, value)| value.clone()).collect();
        Ok(x.register_hook(move || {
            let mut all = values.iter().zip(&structure.layouts[indices.clone()]);
            all.try_for_each(|(value, layout)| structure.plan.prefetch(*layout, value))
        })?)
    }

    /// Hooks the input of a layer: when its gradient arrives, the gradients of
    /// the layer's parameters are complete, and the last backward pass of a step
    /// reduces them while it continues.
    pub(super) fn hook_input(
        &self,
        index: usize,
        x: DTensor,
        context: &ForwardContext<'_>,
    ) -> Result<DTensor, NnError> {
        let deferred = context.gradient_reduction == GradientReduction::Deferred;
        if deferred || !self.structure.dist.overlaps() || !x.tracks_gradient() {
            return Ok(x);
        }
        let number = self.structure.stage.layers.start + index;
        let adapters = context.adapters().to_owned_below(&format!("model.layers.{number}."));
        let values: Vec<DTensor> = self.parameters()[self.structure.layers[index].parameters.clone()]
            .iter()
            .map(|(_, value)| value)
            .chain(adapters.tensors())
            .filter(|value| value.tracks_gradient())
            .cloned()
            .collect();
        Ok(x.register_hook(move || values.iter().try_for_each(DTensor::reduce_gradient))?)
    }
}
