//! Conversion from any format to any that can be written, chunk by chunk.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use weightloom_gang::{GangOptions, solo};
use weightloom_layout::{DType, Region};

use crate::cast::cast;
use crate::chunk_sums::ChunkSums;
use crate::error::CheckpointError;
use crate::file_layout::TensorLocation;
use crate::fingerprint::Fingerprint;
use crate::formats::{Scope, Source, peft};
use crate::index::Format;
use crate::manifest::{MANIFEST_FILE, Manifest, digest_of};
use crate::observer::Observer;
use crate::plan::{Metadata, MetadataIndex, PlanError, TensorMetadata, WriteData, WriteItem};
use crate::save::{
    FolderFiles, OpenTarget, SaveFormat, SaveOptions, SequentialWriter, Target, WriteAccess, WriteBatch,
    WriteOutcome,
};
use crate::scan::{ScanOrder, ScannedTensor, scan};
use crate::state::{Bytes, Section};
use crate::storage::StorageError;
use crate::tree::{PathSegment, Paths};
use crate::verify::{Damage, DamagedChunk};

/// The longest asset that is copied.
const MAX_ASSET: u64 = 64 << 20;

/// How to convert.
#[derive(Clone, Debug, Default)]
pub struct ConvertOptions {
    /// Format and file size of the result.
    pub save: SaveOptions,
    /// The dtype of floating-point tensors in the result.
    pub dtype: Option<DType>,
    /// The names to convert; all by default.
    pub only: Option<Vec<String>>,
}

/// Outcome of a conversion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvertReport {
    /// Number of tensors written.
    pub tensors: usize,
    /// Bytes of the tensors.
    pub bytes: u64,
    /// Entries of the source that the result lacks.
    pub left_out: Vec<String>,
    /// Files that were copied.
    pub assets: Vec<String>,
    /// The fingerprint of the result.
    pub fingerprint: Fingerprint,
}

/// Writes a checkpoint in another format.
pub fn convert(
    source: &Source,
    target: &Target,
    options: &ConvertOptions,
    observer: &dyn Observer,
) -> Result<ConvertReport, CheckpointError> {
    let mut save = options.save.clone();
    if let Some(manifest) = &source.manifest {
        save.step = save.step.or(manifest.step);
    }
    let adapter;
    let source = match save.format {
        SaveFormat::Peft => {
            let format = source.index.format();
            if !matches!(format, Format::Peft | Format::Mlx) {
                return Err(CheckpointError::NoAdapter { format });
            }
            let exported = peft::to_peft(&source.index, None)?;
            save.assets.insert(peft::CONFIG.to_owned(), exported.config.into_bytes());
            adapter = Source::new(exported.index, std::sync::Arc::clone(&source.storage));
            &adapter
        }
        _ => {
            for (name, bytes) in assets(source)? {
                save.assets.entry(name).or_insert(bytes);
            }
            source
        }
    };
    let selection = Selection::new(source, options, save.format)?;
    if save.paths.is_empty() {
        save.paths = nested_paths(source, &selection)?;
    }
    let gang = solo(GangOptions::default());
    let assets = save.assets.keys().cloned().collect();
    let opened = OpenTarget::open(target, &selection.batch, &selection.metadata, &save, &*gang)?;
    let written = write_all(source, &selection, &opened, observer);
    let (_, fingerprints) = opened.conclude(written, &*gang)?;
    let size = |tensor: &TensorMetadata| tensor.shape.volume() as u64 * tensor.dtype.size() as u64;
    Ok(ConvertReport {
        tensors: selection.metadata.tensors.len(),
        bytes: selection.metadata.tensors.values().map(size).sum(),
        left_out: selection.left_out,
        assets,
        fingerprint: fingerprints.whole,
    })
}

/// Writes all entries and compares the tensors with the source's fingerprints,
/// if it has any.
fn write_all(
    source: &Source,
    selection: &Selection,
    opened: &OpenTarget,
    observer: &dyn Observer,
) -> Result<WriteOutcome, CheckpointError> {
    let output = Output::new(opened);
    let missing = |name: &str| PlanError::NoSuchItem { name: name.to_owned() };
    let location_of = |name: &str| opened.location(&MetadataIndex::whole(name)).ok_or_else(|| missing(name));
    let mut tensors = Vec::new();
    for (name, tensor) in &selection.metadata.tensors {
        let entry = source.index.tensors().get(name).ok_or_else(|| missing(name))?;
        tensors.push((location_of(name)?, ScannedTensor { name, entry, dtype: entry.dtype }, tensor.dtype));
    }
    tensors.sort_by_key(|(place, ..)| (place.file, place.offset));
    let targets: BTreeMap<&str, DType> =
        tensors.iter().map(|(_, tensor, dtype)| (tensor.name, *dtype)).collect();
    let sums = opened.empty_sums();
    // Tensors that keep their dtype are hashed once, for both sides.
    let turned = tensors.iter().filter(|(_, tensor, target)| tensor.dtype != *target);
    let before = source.manifest.as_ref().map(|manifest| {
        let tensors = turned.map(|(_, tensor, _)| (tensor.name, tensor.dtype, &tensor.entry.shape));
        ChunkSums::new(manifest.chunk_size, tensors)
    });
    let scanned = tensors.iter().map(|(_, tensor, _)| *tensor);
    scan(source, scanned, output.scan_order(), "converting", observer, |chunk| {
        let ScannedTensor { name, dtype, .. } = chunk.tensor;
        if let Some(before) = &before {
            before.add_run(name, chunk.position, chunk.bytes);
        }
        let target = targets.get(name).copied().unwrap_or(dtype);
        let mut turned = Vec::new();
        let bytes = match target == dtype {
            true => chunk.bytes,
            false => {
                turned.resize(chunk.bytes.len() / dtype.size() * target.size(), 0);
                cast(dtype, chunk.bytes, target, &mut turned);
                &turned
            }
        };
        sums.add_run(name, chunk.position, bytes);
        output.write(location_of(name)?, chunk.position * target.size() as u64, bytes)
    })?;
    if let (Some(manifest), Some(before)) = (&source.manifest, before) {
        let mut found = sums.totals();
        found.extend(before.totals());
        // Other entries were checked when they were read.
        found.retain(|name, _| targets.contains_key(name.as_str()));
        let damaged = found.into_iter().filter(|(name, found)| {
            manifest.tensors.get(name).is_some_and(|said| said.fingerprint != found.fingerprint)
        });
        let chunk = |(tensor, _): (String, _)| {
            let end = volume(manifest, &tensor);
            DamagedChunk { tensor, start: 0, end }
        };
        let chunks: Vec<DamagedChunk> = damaged.map(chunk).collect();
        if !chunks.is_empty() {
            return Err(CheckpointError::Damaged(Damage { chunks }));
        }
    }
    for (item, bytes) in &selection.bytes {
        let name = &item.index.name;
        opened.add_entry(item, &sums);
        if !opened.is_in_frame(name) {
            let bytes = bytes.to_host()?;
            sums.add_run(name, 0, &bytes);
            output.write(location_of(name)?, 0, &bytes)?;
        }
    }
    output.finish()?;
    opened.sync()?;
    Ok(WriteOutcome { bytes: 0, sums })
}

/// Where converted bytes go.
enum Output<'a> {
    Random(FolderFiles<'a>),
    InOrder(Mutex<SequentialWriter<'a>>),
}

impl<'a> Output<'a> {
    fn new(target: &'a OpenTarget) -> Self {
        match target.access() {
            WriteAccess::Random(files) => Self::Random(files),
            WriteAccess::OwnFile(files) | WriteAccess::SharedFiles(files) => {
                Self::InOrder(Mutex::new(files.whole_writer()))
            }
        }
    }

    fn scan_order(&self) -> ScanOrder {
        match self {
            Self::Random(_) => ScanOrder::Any,
            Self::InOrder(_) => ScanOrder::Sequential,
        }
    }

    /// Writes bytes at a distance from the beginning of their tensor.
    fn write(&self, start: TensorLocation, distance: u64, bytes: &[u8]) -> Result<(), CheckpointError> {
        let offset = start.offset + distance;
        match self {
            Self::Random(files) => files.write_at(start.file, offset, bytes),
            Self::InOrder(writer) => {
                writer.lock().unwrap_or_else(PoisonError::into_inner).write(start.file, offset, bytes)
            }
        }
    }

    fn finish(self) -> Result<(), CheckpointError> {
        match self {
            Self::Random(_) => Ok(()),
            Self::InOrder(writer) => writer.into_inner().unwrap_or_else(PoisonError::into_inner).finish(),
        }
    }
}

fn volume(manifest: &Manifest, tensor: &str) -> u64 {
    manifest.tensors.get(tensor).map_or(0, |said| said.shape.volume() as u64)
}

/// The entries to convert.
struct Selection {
    metadata: Metadata,
    /// All entries, without the tensors' bytes.
    batch: WriteBatch<'static>,
    /// Entries that are not tensors.
    bytes: Vec<(WriteItem, Bytes<'static>)>,
    left_out: Vec<String>,
}

/// The paths of the selected entries, but for those that are just the name.
fn nested_paths(source: &Source, selection: &Selection) -> Result<Paths, CheckpointError> {
    let mut paths = source.paths()?;
    for (item, bytes) in &selection.bytes {
        source.mark_empty(&mut paths, &item.index.name, &bytes.to_host()?);
    }
    paths.retain(|name, path| {
        let Metadata { tensors, bytes, .. } = &selection.metadata;
        let is_flat = matches!(path.as_slice(), [PathSegment::Key(key)] if key == name);
        !is_flat && (tensors.contains_key(name) || bytes.contains_key(name))
    });
    Ok(paths)
}

impl Selection {
    fn new(source: &Source, options: &ConvertOptions, format: SaveFormat) -> Result<Self, CheckpointError> {
        let wanted =
            |name: &str| options.only.as_ref().is_none_or(|only| only.iter().any(|chosen| chosen == name));
        let mut metadata = Metadata::default();
        let (mut items, mut bytes, mut left_out) = (Vec::new(), Vec::new(), Vec::new());
        for (name, entry) in source.index.tensors() {
            let section = section_of(source, name);
            // A plain model holds nothing else.
            let plain = matches!(format, SaveFormat::HuggingFace | SaveFormat::Peft);
            if !wanted(name) || plain && section == Section::Training {
                left_out.push(name.clone());
                continue;
            }
            let dtype = options.dtype.filter(|_| entry.dtype.is_float()).unwrap_or(entry.dtype);
            let (shape, region) = (entry.shape.clone(), Region::whole(&entry.shape));
            let index = MetadataIndex::part(name, &region);
            let data = WriteData::Tensor { dtype, shape: shape.clone(), region };
            items.push((WriteItem { index, section, data }, Bytes::Borrowed(&[])));
            let entry = TensorMetadata { section, dtype, shape, layout: None, chunks: Vec::new() };
            metadata.tensors.insert(name.clone(), entry);
        }
        for name in source.index.values() {
            if !wanted(name) || !matches!(format, SaveFormat::Native | SaveFormat::Dcp) {
                left_out.push(name.clone());
                continue;
            }
            let content = source.read_bytes(name)?.unwrap_or_default();
            let (length, digest) = (content.len() as u64, digest_of(&content));
            let index = MetadataIndex::whole(name);
            let item =
                WriteItem { index, section: Section::Training, data: WriteData::Bytes { length, digest } };
            metadata.bytes.insert(name.clone(), length);
            items.push((item.clone(), Bytes::Owned(content.clone())));
            bytes.push((item, Bytes::Owned(content)));
        }
        Ok(Self { metadata, batch: WriteBatch::from_items(items), bytes, left_out })
    }
}

fn section_of(source: &Source, name: &str) -> Section {
    let said = source.manifest.as_ref().and_then(|manifest| manifest.tensors.get(name));
    said.map_or(Section::Model, |tensor| tensor.section)
}

/// Small files of the model: its config, its tokenizer.
fn assets(source: &Source) -> Result<BTreeMap<String, Vec<u8>>, CheckpointError> {
    let known = |name: &str| {
        let kinds = [".json", ".jsonl", ".txt", ".model", ".jinja", ".tiktoken", ".py", ".md"];
        kinds.iter().any(|kind| name.ends_with(kind))
            && !name.ends_with(".index.json")
            && name != MANIFEST_FILE
            && !name.starts_with("adapter")
    };
    if let Some(manifest) = &source.manifest {
        let index = |name: &str| name.ends_with(".safetensors.index.json");
        let names = manifest.assets.keys().filter(|name| !index(name));
        let read = names.map(|name| {
            source.storage.check_inside(name)?;
            Ok((name.clone(), source.read_asset(name)?.unwrap_or_default()))
        });
        return read.collect();
    }
    if source.scope == Scope::File {
        return Ok(BTreeMap::new());
    }
    let files = match source.storage.list() {
        Ok(files) => files,
        // Web servers do not list files.
        Err(StorageError::Unsupported { .. }) => return Ok(BTreeMap::new()),
        Err(error) => return Err(error.into()),
    };
    let mut assets = BTreeMap::new();
    for file in files.into_iter().filter(|file| known(&file.name) && file.length <= MAX_ASSET) {
        source.storage.check_inside(&file.name)?;
        let bytes = source.storage.read_all(&file.name, MAX_ASSET)?;
        assets.insert(file.name, bytes);
    }
    Ok(assets)
}
