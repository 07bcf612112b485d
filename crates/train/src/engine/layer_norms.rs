//! Norms of weights, gradients and updates by layer.

use std::collections::{BTreeMap, BTreeSet};

use weightloom_dtensor::DTensor;
use weightloom_gang::GangExt;
use weightloom_layout::ReduceOp;
use weightloom_tensor::{Tensor, sums_of_squares};

use super::{Engine, StageModel};
use crate::error::TrainError;

/// Norms over the trained parameters of a layer, or of a module outside of layers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerNorms {
    /// Of the weights after the step.
    pub weights: f64,
    /// Of the gradients before clipping.
    pub gradients: f64,
    /// Of the change of the weights.
    pub updates: f64,
}

/// Norms by the name of a layer, such as `layers.3`, or of a module, such as
/// `embed_tokens`.
pub type NormsByLayer = BTreeMap<String, LayerNorms>;

/// Sums of squares of this rank's parts.
#[derive(Default)]
pub(super) struct LayerSums(BTreeMap<String, [f64; 3]>);

/// The layer or module of a parameter, whatever an adapter adds to its name.
fn group_of(stage: &StageModel, name: &str) -> String {
    let base = name.split(".lora_").next().unwrap_or(name);
    let base = base.strip_suffix(".weight").or_else(|| base.strip_suffix(".bias")).unwrap_or(base);
    match stage.model.definition().layer_of(&format!("{base}.weight")) {
        Some(layer) => format!("layers.{layer}"),
        None => base.strip_prefix("model.").unwrap_or(base).to_owned(),
    }
}

impl LayerSums {
    /// Adds a parameter after its update.
    pub(super) fn add(
        &mut self,
        rank: usize,
        group: &str,
        value: &DTensor,
        [old, gradient]: [&Tensor; 2],
    ) -> Result<(), TrainError> {
        let sums = self.0.entry(group.to_owned()).or_default();
        if !is_counted(value, rank)? {
            return Ok(());
        }
        let new = value.to_local().detach();
        let update = new.sub(old)?;
        for (sum, squares) in sums.iter_mut().zip(sums_of_squares(&[&new, gradient, &update])?) {
            *sum += squares;
        }
        Ok(())
    }
}

/// Whether this rank is the first of those that hold the same part of a parameter.
fn is_counted(value: &DTensor, rank: usize) -> Result<bool, TrainError> {
    let layout = value.layout();
    let mesh = layout.mesh();
    let sharded: BTreeSet<usize> = layout.splits().iter().flat_map(|split| split.axes.to_vec()).collect();
    for axis in (0..mesh.ndim()).filter(|axis| !sharded.contains(axis)) {
        let peers = mesh.peers(rank, axis).map_err(weightloom_dtensor::DTensorError::from)?;
        if peers.first() != Some(&rank) {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Engine {
    /// For each stage, the layers or modules of the trained parameters that it counts;
    /// none if nothing is measured.
    pub(super) fn layer_groups(&self, sums: Option<&LayerSums>) -> Vec<BTreeMap<String, String>> {
        let of_stage = |stage: &StageModel| {
            let names = stage.trained().into_iter().map(|(name, _)| name);
            let own = names.filter(|name| sums.is_some() && !self.is_duplicate(stage, name));
            own.map(|name| (name.clone(), group_of(stage, &name))).collect()
        };
        self.stages.iter().map(of_stage).collect()
    }

    /// The norms over all ranks. Called by every rank.
    pub(super) fn layer_norms(&self, sums: &LayerSums) -> Result<NormsByLayer, TrainError> {
        let own: Vec<String> = sums.0.keys().cloned().collect();
        let all: Vec<Vec<String>> = self.gangs.root.all_gather_objects(&own)?;
        let groups: BTreeSet<String> = all.into_iter().flatten().collect();
        let mut squares: Vec<f64> =
            groups.iter().flat_map(|group| sums.0.get(group).copied().unwrap_or_default()).collect();
        self.gangs.root.all_reduce(&mut squares, ReduceOp::Sum)?;
        let norms = groups.into_iter().zip(squares.chunks_exact(3)).map(|(group, squares)| {
            let norms = LayerNorms {
                weights: squares[0].sqrt(),
                gradients: squares[1].sqrt(),
                updates: squares[2].sqrt(),
            };
            (group, norms)
        });
        Ok(norms.collect())
    }
}
