//! Loads a checkpoint on another number of ranks and checks that it is the same.
//!
//! The ranks that saved it hashed their shards. The ranks that load it hash
//! theirs. Both sum to the same fingerprint only if every element is at its
//! position.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use weightloom::checkpoint::{CheckpointError, ElementSum, Fingerprint, Section};
use weightloom::gang::{Gang, GangError, GangExt, GangOptions, GangSizes, Gangs};
use weightloom::hub::{Hub, HubError, Model, ModelLoadOptions};
use weightloom::launch::Launch;
use weightloom::layout::{DType, Region, Shape, check_tiling};
use weightloom::nn::NnError;
use weightloom::tensor::Device;

use crate::cli::failure::Failure;

/// Fingerprints of a checkpoint, as saved and as loaded on other ranks.
#[derive(Serialize)]
pub(super) struct ReshardCheck {
    pub(super) ranks: usize,
    pub(super) mesh: String,
    pub(super) tensors: usize,
    /// Fingerprint in the checkpoint.
    pub(super) saved: String,
    /// Fingerprint of the loaded shards.
    pub(super) loaded: String,
    pub(super) equal: bool,
    pub(super) seconds: f64,
}

/// Loads a checkpoint on tensor-parallel ranks and compares fingerprints.
pub(super) fn check_reshard(
    hub: &Hub,
    checkpoint: &Path,
    ranks: usize,
    device: Device,
) -> Result<ReshardCheck, Failure> {
    let begun = Instant::now();
    let model = hub.open(&checkpoint.display().to_string(), &())?;
    let saved = saved_fingerprints(&model)?;
    let loaded = Launch::Threads { ranks }
        .run(GangOptions::default(), |root| loaded_fingerprints(&model, root, device), |_: &Failure| ())?
        .unwrap_or_default();
    let whole = |tensors: &BTreeMap<String, Fingerprint>| {
        Fingerprint::of_whole(tensors.iter().map(|(name, &fingerprint)| (name.as_str(), fingerprint)))
    };
    if let Some(name) = first_difference(&saved, &loaded) {
        let message = format!("{}: `{name}` differs after loading on {ranks} ranks", checkpoint.display());
        return Err(Failure::check(message));
    }
    Ok(ReshardCheck {
        ranks,
        mesh: format!("tp={ranks}"),
        tensors: saved.len(),
        saved: whole(&saved).to_string(),
        loaded: whole(&loaded).to_string(),
        equal: whole(&saved) == whole(&loaded),
        seconds: begun.elapsed().as_secs_f64(),
    })
}

/// The first tensor that differs.
fn first_difference<'a>(
    one: &'a BTreeMap<String, Fingerprint>,
    other: &'a BTreeMap<String, Fingerprint>,
) -> Option<&'a str> {
    one.keys().chain(other.keys()).find(|name| one.get(*name) != other.get(*name)).map(String::as_str)
}

/// Fingerprints in the manifest.
fn saved_fingerprints(model: &Model) -> Result<BTreeMap<String, Fingerprint>, Failure> {
    let manifest = model
        .source()
        .manifest
        .as_ref()
        .ok_or_else(|| Failure::check(format!("{}: the checkpoint has no manifest", model.name())))?;
    let tensors = manifest.tensors.iter().filter(|(_, tensor)| tensor.section == Section::Model);
    Ok(tensors.map(|(name, tensor)| (name.clone(), tensor.fingerprint)).collect())
}

/// Name, region and sum of a shard.
type ShardSum = (String, Region, u64, u64);

/// Fingerprints of the loaded shards, hashed on the ranks that hold them.
fn loaded_fingerprints(
    model: &Model,
    root: Arc<dyn Gang>,
    device: Device,
) -> Result<BTreeMap<String, Fingerprint>, Failure> {
    let sizes = GangSizes { tp: root.size(), ..GangSizes::default() };
    let gangs = Gangs::new(Arc::clone(&root), &sizes).map_err(HubError::from)?;
    let options = ModelLoadOptions { gangs: Some(gangs), device, ..ModelLoadOptions::default() };
    let loaded = model.load(&options, &())?.model;
    let mut own: Vec<ShardSum> = Vec::new();
    let mut kinds: BTreeMap<String, (DType, Shape)> = BTreeMap::new();
    for (name, value) in loaded.parameters() {
        let (dtype, shape) = (value.dtype(), value.shape());
        let nn = |error: NnError| Failure::from(HubError::Nn(error));
        let region = value.layout().region_of(shape, root.rank()).map_err(|error| nn(error.into()))?;
        let sum = value
            .to_local()
            .read_host(|bytes| ElementSum::of_region(dtype, shape, &region, bytes))
            .map_err(|error| nn(error.into()))?
            .map_err(|error| Failure::check(error.to_string()).about(name))?;
        own.push((name.clone(), region, sum.low, sum.high));
        kinds.insert(name.clone(), (dtype, shape.clone()));
    }
    let all = root
        .all_gather_objects(&own)
        .map_err(|error: GangError| Failure::from(CheckpointError::from(error)))?;
    let mut shards: BTreeMap<String, Vec<(Region, ElementSum)>> = BTreeMap::new();
    for (name, region, low, high) in all.into_iter().flatten() {
        let held = shards.entry(name).or_default();
        // Replicated shards count once.
        if held.iter().all(|(other, _)| *other != region) {
            held.push((region, ElementSum { low, high }));
        }
    }
    let mut fingerprints = BTreeMap::new();
    for (name, (dtype, shape)) in kinds {
        let held = shards.remove(&name).unwrap_or_default();
        let regions: Vec<Region> = held.iter().map(|(region, _)| region.clone()).collect();
        check_tiling(&shape, &regions).map_err(|error| Failure::check(error.to_string()).about(&name))?;
        let sum = held.into_iter().fold(ElementSum::default(), |sum, (_, shard)| sum + shard);
        fingerprints.insert(name, Fingerprint::of_tensor(dtype, &shape, sum));
    }
    Ok(fingerprints)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_missing_and_additional_tensors_are_named() {
        let tensors = |all: &[(&str, u128)]| -> BTreeMap<String, Fingerprint> {
            all.iter().map(|&(name, number)| (name.to_owned(), Fingerprint(number))).collect()
        };
        let saved = tensors(&[("a", 1), ("b", 2)]);
        assert_eq!(first_difference(&saved, &saved.clone()), None);
        assert_eq!(first_difference(&saved, &tensors(&[("a", 1), ("b", 3)])), Some("b"));
        assert_eq!(first_difference(&saved, &tensors(&[("b", 2)])), Some("a"));
        assert_eq!(first_difference(&saved, &tensors(&[("a", 1), ("b", 2), ("c", 3)])), Some("c"));
    }
}
