//! A checkpoint on other ranks than those that saved it, and the proof that it
//! is the same.
//!
//! The ranks that saved it hashed what they held. The ranks that load it hash
//! what they hold. Both add up to one fingerprint if and only if every element
//! is in its place.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use weightloom::checkpoint::{CheckpointError, ElementSum, Fingerprint, Section};
use weightloom::gang::{Gang, GangError, GangExt, GangOptions, GangSizes, Gangs};
use weightloom::hub::{Hub, HubError, LoadOptions, Model};
use weightloom::launch::Launch;
use weightloom::layout::{DType, Region, Shape, check_tiling};
use weightloom::nn::NnError;

use crate::cli::failure::Failure;

/// That a checkpoint is on these ranks what it was on others.
#[derive(Serialize)]
pub(super) struct Certificate {
    pub(super) ranks: usize,
    pub(super) mesh: String,
    pub(super) tensors: usize,
    /// Of what was saved.
    pub(super) saved: String,
    /// Of what the ranks hold now.
    pub(super) loaded: String,
    pub(super) equal: bool,
    pub(super) seconds: f64,
}

/// Loads a checkpoint on so many tensor-parallel ranks, and compares.
pub(super) fn certify(hub: &Hub, checkpoint: &Path, ranks: usize) -> Result<Certificate, Failure> {
    let begun = Instant::now();
    let model = hub.open(&checkpoint.display().to_string(), &())?;
    let saved = saved(&model)?;
    let loaded = Launch::Threads { ranks }
        .run(GangOptions::default(), |root| loaded(&model, root), |_: &Failure| ())?
        .unwrap_or_default();
    let whole = |tensors: &BTreeMap<String, Fingerprint>| {
        Fingerprint::of_whole(tensors.iter().map(|(name, &fingerprint)| (name.as_str(), fingerprint)))
    };
    if let Some(name) = first_difference(&saved, &loaded) {
        let message = format!("{}: `{name}` is on {ranks} ranks not what was saved", checkpoint.display());
        return Err(Failure::check(message));
    }
    Ok(Certificate {
        ranks,
        mesh: format!("tp={ranks}"),
        tensors: saved.len(),
        saved: whole(&saved).to_string(),
        loaded: whole(&loaded).to_string(),
        equal: whole(&saved) == whole(&loaded),
        seconds: begun.elapsed().as_secs_f64(),
    })
}

/// The first tensor that is not the same in both.
fn first_difference<'a>(
    one: &'a BTreeMap<String, Fingerprint>,
    other: &'a BTreeMap<String, Fingerprint>,
) -> Option<&'a str> {
    one.keys().chain(other.keys()).find(|name| one.get(*name) != other.get(*name)).map(String::as_str)
}

/// What the ranks that saved the model have found.
fn saved(model: &Model) -> Result<BTreeMap<String, Fingerprint>, Failure> {
    let manifest = model
        .source()
        .manifest
        .as_ref()
        .ok_or_else(|| Failure::check(format!("{}: there is no manifest", model.name())))?;
    let tensors = manifest.tensors.iter().filter(|(_, tensor)| tensor.section == Section::Model);
    Ok(tensors.map(|(name, tensor)| (name.clone(), tensor.fingerprint)).collect())
}

/// What one rank holds of a tensor, and its sum.
type Sharding = (String, Region, u64, u64);

/// What ranks hold after loading, hashed where they hold it.
fn loaded(model: &Model, root: Arc<dyn Gang>) -> Result<BTreeMap<String, Fingerprint>, Failure> {
    let sizes = GangSizes { tp: root.size(), ..GangSizes::default() };
    let gangs = Gangs::new(Arc::clone(&root), &sizes).map_err(HubError::from)?;
    let options = LoadOptions { gangs: Some(gangs), ..LoadOptions::default() };
    let decoder = model.load(&options, &())?.decoder;
    let mut own: Vec<Sharding> = Vec::new();
    let mut kinds: BTreeMap<String, (DType, Shape)> = BTreeMap::new();
    for (name, value) in decoder.parameters() {
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
    let mut parts: BTreeMap<String, Vec<(Region, ElementSum)>> = BTreeMap::new();
    for (name, region, low, high) in all.into_iter().flatten() {
        let held = parts.entry(name).or_default();
        // What several ranks hold counts once.
        if held.iter().all(|(other, _)| *other != region) {
            held.push((region, ElementSum { low, high }));
        }
    }
    let mut fingerprints = BTreeMap::new();
    for (name, (dtype, shape)) in kinds {
        let held = parts.remove(&name).unwrap_or_default();
        let regions: Vec<Region> = held.iter().map(|(region, _)| region.clone()).collect();
        check_tiling(&shape, &regions).map_err(|error| Failure::check(error.to_string()).about(&name))?;
        let sum = held.into_iter().fold(ElementSum::default(), |sum, (_, part)| sum + part);
        fingerprints.insert(name, Fingerprint::of_tensor(dtype, &shape, sum));
    }
    Ok(fingerprints)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_that_is_another_missing_or_more_is_named() {
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
