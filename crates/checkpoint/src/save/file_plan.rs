//! The files of a save: names, headers, and the location of every tensor.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use weightloom_layout::{DType, Layout, Region, Shape};

use super::SaveOptions;
use super::batch::WriteBatch;
use super::target::{SaveFormat, Target, TargetError};
use crate::error::CheckpointError;
use crate::file_layout::{FileLayout, PlannedFile, TensorLocation, bytes_of};
use crate::formats::dcp::{self, DcpItem, DcpRank, DcpValue, METADATA_FILE};
use crate::formats::native::{chunk_metadata, chunks_file};
use crate::manifest::{EntryKind, FileSharing, MANIFEST_FILE};
use crate::plan::{Metadata, PlanContext, WriteData, WriteItem};
use crate::state::Section;
use crate::storage::check_name;

/// The asset that makes a folder an adapter's.
const ADAPTER_CONFIG: &str = "adapter_config.json";

/// The longest header that safetensors readers accept.
pub(super) const MAX_HEADER: usize = 100_000_000;

/// A tensor, or bytes stored as one.
#[derive(Clone, Debug)]
pub(super) struct StoredEntry {
    pub(super) section: Section,
    pub(super) kind: EntryKind,
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    pub(super) layout: Option<Layout>,
}

/// Everything that is stored, by name.
pub(super) type StoredEntries = BTreeMap<String, StoredEntry>;

/// The entries that the plans' metadata describe.
pub(super) fn stored_entries(metadata: &Metadata) -> StoredEntries {
    let tensors = metadata.tensors.iter().map(|(name, tensor)| {
        let entry = StoredEntry {
            section: tensor.section,
            kind: EntryKind::Tensor,
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            layout: tensor.layout,
        };
        (name.clone(), entry)
    });
    let bytes = metadata.bytes.iter().map(|(name, &length)| {
        let entry = StoredEntry {
            section: Section::Training,
            kind: EntryKind::Bytes,
            dtype: DType::U8,
            shape: bytes_shape(length),
            layout: None,
        };
        (name.clone(), entry)
    });
    tensors.chain(bytes).collect()
}

/// Locations of parts by name and offset. A rank usually has one part of a
/// tensor, but a planner may split it.
pub(super) type PartLocations = BTreeMap<(String, Vec<usize>), TensorLocation>;

/// The files that this rank writes, or that all ranks share.
pub(super) struct FilePlan {
    pub(super) sharing: FileSharing,
    pub(super) files: FileLayout,
    /// Where the second and further parts of a tensor are in this rank's own
    /// files.
    pub(super) parts: PartLocations,
    /// The contents of this rank's DCP file.
    pub(super) dcp: Option<DcpRank>,
    /// Bytes between the data of this rank's own file.
    pub(super) frame: Vec<(u64, Vec<u8>)>,
    pub(super) index_file: Option<(String, Vec<u8>)>,
}

impl FilePlan {
    pub(super) fn new(
        target: &Target,
        batch: &WriteBatch<'_>,
        stored: &StoredEntries,
        options: &SaveOptions,
        context: PlanContext,
    ) -> Result<Self, CheckpointError> {
        let plan = match (options.format, target) {
            (SaveFormat::Dcp, _) => Self::dcp(batch, stored, context.rank)?,
            (SaveFormat::Native, Target::Objects(_)) => Self::per_rank(batch, context),
            (SaveFormat::Native, Target::Folder(_)) if options.assets.contains_key(ADAPTER_CONFIG) => {
                Self::shared(stored, SaveFormat::Peft, options, context.world)
            }
            (format, _) => Self::shared(stored, format, options, context.world),
        };
        plan.check_names(stored, options)?;
        Ok(plan)
    }

    /// Files that all ranks share: first the model's, then the others.
    fn shared(stored: &StoredEntries, format: SaveFormat, options: &SaveOptions, world: usize) -> Self {
        let tensors_of = |section: Section| {
            let tensors = stored.iter().filter(move |(_, entry)| entry.section == section);
            tensors.map(|(name, entry)| (name.as_str(), entry.dtype, &entry.shape))
        };
        let files_of = |section: Section, stem: &str| {
            let bytes = tensors_of(section).map(|(_, dtype, shape)| bytes_of(dtype, shape)).sum();
            FileLayout::of_tensors(stem, tensors_of(section), options.file_size(bytes, world))
        };
        // PEFT reads a single file.
        let mut files = match format {
            SaveFormat::Peft => FileLayout::of_tensors("adapter_model", tensors_of(Section::Model), u64::MAX),
            _ => files_of(Section::Model, "model"),
        };
        let index_file = files.folder_index();
        files.join(files_of(Section::Training, "training"));
        let parts = PartLocations::new();
        Self { sharing: FileSharing::Shared, files, parts, dcp: None, frame: Vec::new(), index_file }
    }

    /// Safetensors files of this rank's shards: one, unless a tensor has several
    /// parts, since names are unique in a file.
    fn per_rank(batch: &WriteBatch<'_>, context: PlanContext) -> Self {
        let mut groups: Vec<Vec<(&str, DType, Shape, Region)>> = vec![Vec::new()];
        let mut seen: FxHashMap<&str, usize> = FxHashMap::default();
        for (item, _) in batch.items() {
            let (dtype, region) = dtype_and_region(item);
            let number = seen.entry(&item.index.name).or_default();
            if groups.len() == *number {
                groups.push(Vec::new());
            }
            groups[*number].push((&item.index.name, dtype, region.shape(), region));
            *number += 1;
        }
        let (mut files, mut parts) = (FileLayout::default(), PartLocations::new());
        for (number, shards) in groups.iter().enumerate() {
            let starts = chunk_metadata(shards.iter().map(|(name, .., region)| (*name, region)));
            let tensors = shards.iter().map(|(name, dtype, shape, _)| (*name, *dtype, shape));
            let name = chunks_file(context.rank + number * context.world);
            let mut file = FileLayout::one_file(&name, tensors, starts);
            for (name, .., region) in shards.iter().filter(|_| number > 0) {
                if let Some(location) = file.locations.remove(*name) {
                    let location = TensorLocation { file: number, ..location };
                    parts.insert(((*name).to_owned(), region.start().to_vec()), location);
                }
            }
            files.join(file);
        }
        Self { sharing: FileSharing::PerRank, files, parts, dcp: None, frame: Vec::new(), index_file: None }
    }

    /// A DCP file of this rank's shards. Bytes that are JSON become values
    /// that Python reads as such.
    fn dcp(batch: &WriteBatch<'_>, stored: &StoredEntries, rank: usize) -> Result<Self, CheckpointError> {
        let name = dcp::file_name(rank);
        let mut contents = DcpRank::default();
        for (item, bytes) in batch.items() {
            let json = match &item.data {
                // Only if it serialises to the same bytes again, so that
                // reading gives back what was saved.
                WriteData::Bytes { .. } => {
                    let bytes = bytes.to_host()?;
                    let value: Option<serde_json::Value> = serde_json::from_slice(&bytes).ok();
                    value.filter(|value| value.to_string().as_bytes() == &*bytes)
                }
                WriteData::Tensor { .. } => None,
            };
            if let Some(value) = json {
                contents.values.push(DcpValue { name: item.index.name.clone(), value });
                continue;
            }
            let (dtype, region) = dtype_and_region(item);
            let shape = match &item.data {
                WriteData::Tensor { shape, .. } => shape.clone(),
                WriteData::Bytes { .. } => region.shape(),
            };
            contents.items.push(DcpItem { name: item.index.name.clone(), dtype, shape, region });
        }
        // No rank holds a shard of an empty tensor, but torch must find its name.
        let planned = |name: &str| batch.items().any(|(item, _)| item.index.name == name);
        for (name, entry) in stored.iter().filter(|_| rank == 0) {
            if entry.kind == EntryKind::Tensor && entry.shape.volume() == 0 && !planned(name) {
                let (shape, region) = (entry.shape.clone(), Region::whole(&entry.shape));
                contents.items.push(DcpItem { name: name.clone(), dtype: entry.dtype, shape, region });
            }
        }
        let file = contents.lay_out().map_err(|error| CheckpointError::format(&name, error))?;
        let mut frame = file.values;
        let (mut files, mut parts) = (FileLayout::default(), PartLocations::new());
        for (item, layout) in contents.items.iter().zip(&file.items) {
            frame.push((layout.offset, layout.prefix.clone()));
            frame.push((layout.data.end, layout.suffix(0)));
            let location = TensorLocation { file: 0, offset: layout.data.start };
            if files.locations.contains_key(&item.name) {
                parts.insert((item.name.clone(), item.region.start().to_vec()), location);
            } else {
                files.locations.insert(item.name.clone(), location);
            }
        }
        files.files.push(PlannedFile { name, header: Vec::new(), length: file.length });
        Ok(Self { sharing: FileSharing::PerRank, files, parts, dcp: Some(contents), frame, index_file: None })
    }

    /// Refuses names that would make the checkpoint unreadable.
    fn check_names(&self, stored: &StoredEntries, options: &SaveOptions) -> Result<(), TargetError> {
        let is_taken = |name: &str| {
            let planned = self.files.files.iter().any(|file| file.name == name);
            let index = self.index_file.as_ref().is_some_and(|(index, _)| index == name);
            planned || index || [MANIFEST_FILE, METADATA_FILE].contains(&name)
        };
        for name in options.assets.keys() {
            if is_taken(name) || name.contains('/') || check_name(name).is_err() {
                return Err(TargetError::AssetName { name: name.clone() });
            }
        }
        if let Some(name) = stored.keys().find(|name| *name == "__metadata__") {
            return Err(TargetError::TensorName { name: name.clone() });
        }
        match self.files.files.iter().find(|file| file.header.len() > MAX_HEADER) {
            Some(file) => Err(TargetError::Header { file: file.name.clone(), length: file.header.len() }),
            None => Ok(()),
        }
    }
}

/// The dtype and the region that an item writes; bytes have one dim.
fn dtype_and_region(item: &WriteItem) -> (DType, Region) {
    match &item.data {
        WriteData::Tensor { dtype, region, .. } => (*dtype, region.clone()),
        WriteData::Bytes { length, .. } => (DType::U8, Region::whole(&bytes_shape(*length))),
    }
}

fn bytes_shape(length: u64) -> Shape {
    Shape::new(&[length as usize]).expect("one dim of bytes that are in memory")
}
