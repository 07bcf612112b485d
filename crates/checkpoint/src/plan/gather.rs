//! The plan computed from the gathered local plans, for state whose shards do
//! not follow from layouts.

use std::collections::BTreeMap;

use weightloom_layout::{DType, Region, Shape, check_tiling};

use super::balance::WriteLoad;
use super::items::{Metadata, Redistribution, SavePlan, TensorMetadata, WriteData, WriteItem};
use super::save::{PlanError, Version};
use crate::fingerprint::Fingerprint;
use crate::state::Section;

/// What the local plans contain about one name.
#[derive(Default)]
struct Gathered {
    /// Ranks by the description of the entry.
    versions: BTreeMap<String, Vec<usize>>,
    /// Ranks by the region that they hold.
    holders: BTreeMap<Option<Region>, Vec<u32>>,
    kind: Option<Kind>,
}

#[derive(Clone)]
enum Kind {
    Tensor { section: Section, dtype: DType, shape: Shape },
    Bytes { section: Section, length: u64, digest: Fingerprint },
}

/// The plans of all ranks, from their local plans.
pub(super) fn global_plan(plans: Vec<SavePlan>) -> Result<(Vec<SavePlan>, Metadata), PlanError> {
    let world = plans.len();
    let mut gathered: BTreeMap<String, Gathered> = BTreeMap::new();
    let mut redistributions: BTreeMap<String, Redistribution> = BTreeMap::new();
    for (rank, plan) in plans.iter().enumerate() {
        for exchange in &plan.redistributions {
            let name = exchange.name.clone();
            // Ranks outside a tensor's mesh need not know of it.
            match redistributions.get(&name) {
                Some(known) if known != exchange => return Err(PlanError::Redistributions { name, rank }),
                _ => drop(redistributions.insert(name, exchange.clone())),
            }
        }
        for item in &plan.items {
            gathered.entry(item.index.name.clone()).or_default().add(rank, item);
        }
    }
    let mut metadata = Metadata::default();
    let mut items: Vec<Vec<WriteItem>> = vec![Vec::new(); world];
    let mut load = WriteLoad::new(world);
    let mut shared = Vec::new();
    for (name, entry) in &gathered {
        let (kind, regions) = entry.agreed(name)?;
        match kind {
            Kind::Bytes { length, .. } => {
                metadata.bytes.insert(name.clone(), length);
            }
            Kind::Tensor { section, dtype, ref shape } => {
                check_tiling(shape, &regions)
                    .map_err(|problem| PlanError::Tiling { name: name.clone(), problem })?;
                let entry =
                    TensorMetadata { section, dtype, shape: shape.clone(), layout: None, chunks: regions };
                metadata.tensors.insert(name.clone(), entry);
            }
        }
        for (region, holders) in &entry.holders {
            if region.as_ref().is_some_and(Region::is_empty) {
                continue;
            }
            let item = kind.item(name, region.as_ref());
            match holders.as_slice() {
                [holder] if matches!(kind, Kind::Tensor { .. }) => {
                    load.add(*holder as usize, item.bytes());
                    items[*holder as usize].push(item);
                }
                _ => shared.push((item, holders)),
            }
        }
    }
    // A stable sort: ties stay in the order of names and regions.
    shared.sort_by_key(|(item, _)| std::cmp::Reverse(item.bytes()));
    for (item, holders) in shared {
        let chosen = load.assign(holders, item.bytes());
        items[chosen].push(item);
    }
    let redistributions: Vec<Redistribution> = redistributions.into_values().collect();
    let plans = items.into_iter().zip(plans).map(|(mut items, local)| {
        items.sort_by(|a, b| a.index.cmp(&b.index));
        SavePlan { redistributions: redistributions.clone(), items, ..local }
    });
    Ok((plans.collect(), metadata))
}

/// Refuses items of one name that differ between ranks.
pub(super) fn check_agreement(ranks: &[Vec<WriteItem>]) -> Result<(), PlanError> {
    let mut gathered: BTreeMap<&str, Gathered> = BTreeMap::new();
    for (rank, items) in ranks.iter().enumerate() {
        for item in items {
            gathered.entry(&item.index.name).or_default().add(rank, item);
        }
    }
    gathered.iter().try_for_each(|(name, entry)| entry.agreed(name).map(drop))
}

impl Gathered {
    fn add(&mut self, rank: usize, item: &WriteItem) {
        let (version, region, kind) = match &item.data {
            WriteData::Tensor { dtype, shape, region } => (
                format!("{dtype} of shape {shape}"),
                Some(region.clone()),
                Kind::Tensor { section: item.section, dtype: *dtype, shape: shape.clone() },
            ),
            WriteData::Bytes { length, digest } => (
                format!("{length} bytes with digest {digest}"),
                None,
                Kind::Bytes { section: item.section, length: *length, digest: *digest },
            ),
        };
        self.versions.entry(version).or_default().push(rank);
        self.holders.entry(region).or_default().push(rank as u32);
        self.kind.get_or_insert(kind);
    }

    /// The kind that all ranks agree on, and the distinct regions.
    fn agreed(&self, name: &str) -> Result<(Kind, Vec<Region>), PlanError> {
        match (&self.kind, self.versions.len()) {
            (Some(kind), 1) => Ok((kind.clone(), self.holders.keys().flatten().cloned().collect())),
            _ => {
                let version = |(what, ranks): (&String, &Vec<usize>)| Version {
                    what: what.clone(),
                    ranks: ranks.clone(),
                };
                Err(PlanError::Disagreement {
                    name: name.to_owned(),
                    versions: self.versions.iter().map(version).collect(),
                })
            }
        }
    }
}

impl Kind {
    fn item(&self, name: &str, region: Option<&Region>) -> WriteItem {
        use super::items::MetadataIndex;
        match self {
            Self::Bytes { section, length, digest } => WriteItem {
                index: MetadataIndex::whole(name),
                section: *section,
                data: WriteData::Bytes { length: *length, digest: *digest },
            },
            Self::Tensor { section, dtype, shape } => {
                let region = region.cloned().unwrap_or_else(|| Region::whole(shape));
                WriteItem {
                    index: MetadataIndex::part(name, &region),
                    section: *section,
                    data: WriteData::Tensor { dtype: *dtype, shape: shape.clone(), region },
                }
            }
        }
    }
}
