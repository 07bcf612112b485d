//! Where a checkpoint is saved to, and in which form: files that ranks write
//! together, or one of its own for each rank.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use weightloom_errors::Hint;
use weightloom_gang::Gang;
use weightloom_layout::{DType, Layout, Region, Shape};

use super::SaveOptions;
use super::stream::Stream;
use super::write::Batch;
use crate::chunk_sums::{ChunkSums, chunk_size_for};
use crate::collective_result;
use crate::error::CheckpointError;
use crate::file_layout::{FileLayout, PlannedFile, TensorLocation};
use crate::formats::dcp::{self, DcpItem, DcpRank, DcpValue, METADATA_FILE};
use crate::formats::native::{chunk_metadata, chunks_file};
use crate::manifest::{EntryKind, FileSharing, MANIFEST_FILE};
use crate::plan::{Metadata, WriteData, WriteItem};
use crate::state::Section;
use crate::storage::local::{sync_folder, write_all_at};
use crate::storage::{Storage, StorageError, check_name};

/// Where a checkpoint is saved to.
#[derive(Clone)]
pub enum Target {
    /// A folder that does not exist yet, on a filesystem that all ranks see.
    Folder(PathBuf),
    /// A place for objects.
    Objects(Arc<dyn Storage>),
}

/// The file that makes a folder an adapter's.
const ADAPTER_CONFIG: &str = "adapter_config.json";

/// The longest header that readers of safetensors accept.
const MAX_HEADER: usize = 100_000_000;

/// In which form a checkpoint is saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SaveFormat {
    /// A Hugging Face folder with a manifest: everything can be verified, and
    /// a training resumed. With an `adapter_config.json` among its assets it is
    /// an adapter folder, which PEFT reads too.
    #[default]
    Native,
    /// A Hugging Face folder and nothing else.
    HuggingFace,
    /// A folder that `torch.distributed.checkpoint.load` reads.
    Dcp,
    /// An adapter folder that PEFT reads. Its `adapter_config.json` is one of
    /// the assets.
    Peft,
}

/// Why a checkpoint cannot be saved to a place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum TargetError {
    /// Something is there already.
    #[error("`{path}` exists already")]
    Exists { path: String },
    /// A form that objects cannot have, since they cannot be written by
    /// several ranks.
    #[error("{location} cannot hold a folder of the kind {format:?}")]
    NotForObjects { location: String, format: SaveFormat },
    /// A file that would take the place of another.
    #[error("a file `{name}` cannot be saved beside the tensors")]
    AssetName { name: String },
    /// A name that files cannot hold.
    #[error("no tensor can be called `{name}`")]
    TensorName { name: String },
    /// Names that take up more than readers accept.
    #[error("the names of the tensors in `{file}` take {length} bytes, and readers accept {MAX_HEADER}")]
    Header { file: String, length: usize },
    /// A path without a last part.
    #[error("`{path}` is not the name of a new folder")]
    NoName { path: String },
}

impl Hint for TargetError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Exists { .. } => Some("choose another name, or remove it first".to_owned()),
            Self::NotForObjects { .. } => {
                Some("save as native or DCP, or convert to a local folder and upload it".to_owned())
            }
            Self::AssetName { .. } => Some("give it another name".to_owned()),
            Self::TensorName { .. } => Some("rename the tensor".to_owned()),
            Self::Header { .. } => Some("choose a smaller shard size".to_owned()),
            Self::NoName { .. } => Some("give a path such as `runs/step_100`".to_owned()),
        }
    }
}

/// A tensor, or bytes, as it will be stored.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) section: Section,
    pub(super) kind: EntryKind,
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    pub(super) layout: Option<Layout>,
}

/// A place that is ready to be written to.
pub(crate) struct OpenTarget {
    pub(super) place: Destination,
    pub(super) sharing: FileSharing,
    pub(super) files: FileLayout,
    /// What a DCP file of this rank holds.
    pub(super) dcp: Option<DcpRank>,
    pub(super) stored: BTreeMap<String, Stored>,
    pub(super) chunk_size: u64,
    pub(super) options: SaveOptions,
    pub(super) index_file: Option<(String, Vec<u8>)>,
}

/// What an opened place is.
pub(super) enum Destination {
    Folder(OpenFolder),
    Objects(OpenObjects),
}

/// A folder being written.
pub(super) struct OpenFolder {
    pub(super) partial: PathBuf,
    pub(super) path: PathBuf,
    open: Mutex<BTreeMap<usize, Arc<File>>>,
}

/// Objects being written.
pub(super) struct OpenObjects {
    pub(super) storage: Arc<dyn Storage>,
    /// Bytes of this rank's file that are known beforehand.
    frame: Vec<(u64, Vec<u8>)>,
}

impl OpenTarget {
    /// Makes the place ready. Every rank.
    pub(crate) fn open(
        target: &Target,
        batch: &Batch<'_>,
        metadata: &Metadata,
        options: &SaveOptions,
        gang: &dyn Gang,
    ) -> Result<Self, CheckpointError> {
        let stored = stored(metadata);
        let plan = Planned::new(target, batch, &stored, options, gang.rank());
        let mut plan = collective_result(gang, plan)?;
        collective_result(gang, check_names(&plan, &stored, options))?;
        let place = match target {
            Target::Folder(path) => {
                let made = match gang.rank() {
                    0 => create_folder(path),
                    _ => Ok(()),
                };
                collective_result(gang, made)?;
                let folder =
                    OpenFolder { partial: partial_of(path)?, path: path.clone(), open: Mutex::default() };
                Destination::Folder(folder)
            }
            Target::Objects(storage) => {
                let last = if options.format == SaveFormat::Dcp { METADATA_FILE } else { MANIFEST_FILE };
                let ready = match storage.exists(last) {
                    Ok(false) => Ok(()),
                    Ok(true) => Err(TargetError::Exists { path: storage.location() }.into()),
                    Err(error) => Err(error.into()),
                };
                collective_result(gang, ready)?;
                let header = plan.files.files.first().map(|file| (0, file.header.clone()));
                let frame = header.into_iter().chain(std::mem::take(&mut plan.frame)).collect();
                Destination::Objects(OpenObjects { storage: Arc::clone(storage), frame })
            }
        };
        let bytes = |stored: &Stored| stored.shape.volume() as u64 * stored.dtype.size() as u64;
        let opened = Self {
            place,
            sharing: plan.sharing,
            files: plan.files,
            dcp: plan.dcp,
            chunk_size: chunk_size_for(stored.values().map(bytes).sum()),
            stored,
            options: options.clone(),
            index_file: plan.index_file,
        };
        let begun = opened.begin(&plan.frame, gang.rank());
        collective_result(gang, begun).inspect_err(|_| opened.discard(gang))?;
        Ok(opened)
    }

    /// Makes this rank's files and writes what is known already.
    fn begin(&self, frame: &[(u64, Vec<u8>)], rank: usize) -> Result<(), CheckpointError> {
        if let Destination::Folder(folder) = &self.place
            && (self.sharing == FileSharing::PerRank || rank == 0)
        {
            for (number, file) in self.files.files.iter().enumerate() {
                folder.create(number, file)?;
            }
        }
        frame.iter().try_for_each(|(offset, bytes)| self.write(0, *offset, bytes))
    }

    /// Whether an item was written when the place was made ready.
    pub(crate) fn has_written(&self, name: &str) -> bool {
        self.dcp.as_ref().is_some_and(|rank| rank.values.iter().any(|value| value.name == name))
    }

    /// Where a tensor begins.
    pub(crate) fn location(&self, name: &str) -> Option<TensorLocation> {
        self.files.locations.get(name).copied()
    }

    /// How far behind its tensor's beginning a byte lies: in shared files its
    /// place in the whole tensor counts, in a rank's own file the one in the
    /// rank's part.
    pub(super) fn ahead(&self, whole: u64, local: u64) -> u64 {
        match self.sharing {
            FileSharing::Shared => whole,
            FileSharing::PerRank => local,
        }
    }

    pub(crate) fn empty_sums(&self) -> ChunkSums {
        let tensors = self.stored.iter();
        ChunkSums::new(
            self.chunk_size,
            tensors.map(|(name, stored)| (name.as_str(), stored.dtype, &stored.shape)),
        )
    }

    pub(crate) fn write(&self, file: usize, offset: u64, bytes: &[u8]) -> Result<(), CheckpointError> {
        let planned = &self.files.files[file];
        match &self.place {
            Destination::Folder(folder) => {
                let handle = folder.handle(file, planned)?;
                write_all_at(&handle, bytes, offset)
                    .map_err(|error| folder.failed("write", &planned.name, &error))?;
            }
            // Objects are written in order; see `stream`.
            Destination::Objects(_) => {}
        }
        Ok(())
    }

    /// Whether files are written from their first byte to their last.
    pub(crate) fn is_streamed(&self) -> bool {
        matches!(self.place, Destination::Objects(_))
    }

    /// This rank's file, if it must be written from its first byte to its
    /// last.
    pub(crate) fn stream(&self) -> Result<Option<Stream>, CheckpointError> {
        match (&self.place, self.files.files.first()) {
            (Destination::Objects(objects), Some(file)) => {
                let upload = objects.storage.create(&file.name)?;
                Ok(Some(Stream::new(upload, objects.frame.clone(), file.length)))
            }
            _ => Ok(None),
        }
    }

    /// Makes what this rank wrote last.
    pub(crate) fn sync(&self) -> Result<(), CheckpointError> {
        match &self.place {
            Destination::Folder(folder) => {
                let open = folder.open.lock().unwrap_or_else(PoisonError::into_inner);
                for (&file, handle) in open.iter() {
                    let name = &self.files.files[file].name;
                    handle.sync_all().map_err(|error| folder.failed("sync", name, &error))?;
                }
            }
            // An object that is there is there to stay.
            Destination::Objects(_) => {}
        }
        Ok(())
    }
}

/// What stands for a file's first bytes until all of it is there: a header so
/// long that no reader of safetensors takes zeros for tensors.
const UNFINISHED: [u8; 8] = [0xff; 8];

impl OpenFolder {
    /// Makes a file, empty but for its header. It stays open, so that the
    /// header is synced by the rank that wrote it.
    fn create(&self, number: usize, file: &PlannedFile) -> Result<(), CheckpointError> {
        let made = File::create(self.partial.join(&file.name)).and_then(|handle| {
            let (first, rest) = file.header.split_at(file.header.len().min(UNFINISHED.len()));
            handle.set_len(file.length)?;
            write_all_at(&handle, &UNFINISHED[..first.len()], 0)?;
            write_all_at(&handle, rest, first.len() as u64)?;
            Ok(handle)
        });
        let handle = made.map_err(|error| self.failed("create", &file.name, &error))?;
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::new(handle));
        Ok(())
    }

    /// Makes a file that all ranks have written one that can be read.
    pub(super) fn complete(&self, file: &PlannedFile) -> Result<(), CheckpointError> {
        let first = &file.header[..file.header.len().min(UNFINISHED.len())];
        if first.is_empty() {
            return Ok(());
        }
        let completed = File::options().write(true).open(self.partial.join(&file.name)).and_then(|handle| {
            write_all_at(&handle, first, 0)?;
            handle.sync_all()
        });
        completed.map_err(|error| self.failed("complete", &file.name, &error))
    }

    fn handle(&self, number: usize, planned: &PlannedFile) -> Result<Arc<File>, CheckpointError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(&number) {
            return Ok(Arc::clone(file));
        }
        let file = File::options().write(true).open(self.partial.join(&planned.name));
        let file = Arc::new(file.map_err(|error| self.failed("open", &planned.name, &error))?);
        open.insert(number, Arc::clone(&file));
        Ok(file)
    }

    pub(super) fn failed(&self, action: &'static str, name: &str, error: &io::Error) -> CheckpointError {
        StorageError::io(action, self.partial.join(name).display().to_string(), error).into()
    }
}

/// What is stored, from what is planned.
fn stored(metadata: &Metadata) -> BTreeMap<String, Stored> {
    let tensors = metadata.tensors.iter().map(|(name, tensor)| {
        let stored = Stored {
            section: tensor.section,
            kind: EntryKind::Tensor,
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            layout: tensor.layout,
        };
        (name.clone(), stored)
    });
    let bytes = metadata.bytes.iter().map(|(name, &length)| {
        let shape = Shape::new(&[length as usize]).unwrap_or_default();
        let stored = Stored {
            section: Section::Training,
            kind: EntryKind::Bytes,
            dtype: DType::U8,
            shape,
            layout: None,
        };
        (name.clone(), stored)
    });
    tensors.chain(bytes).collect()
}

/// Refuses names that would make a checkpoint that cannot be opened.
fn check_names(
    plan: &Planned,
    stored: &BTreeMap<String, Stored>,
    options: &SaveOptions,
) -> Result<(), CheckpointError> {
    let taken = |name: &str| {
        let planned = plan.files.files.iter().any(|file| file.name == name);
        let index = plan.index_file.as_ref().is_some_and(|(index, _)| index == name);
        planned || index || [MANIFEST_FILE, METADATA_FILE].contains(&name)
    };
    for name in options.assets.keys() {
        if taken(name) || name.contains('/') || check_name(name).is_err() {
            return Err(TargetError::AssetName { name: name.clone() }.into());
        }
    }
    if let Some(name) = stored.keys().find(|name| *name == "__metadata__") {
        return Err(TargetError::TensorName { name: name.clone() }.into());
    }
    match plan.files.files.iter().find(|file| file.header.len() > MAX_HEADER) {
        Some(file) => Err(TargetError::Header { file: file.name.clone(), length: file.header.len() }.into()),
        None => Ok(()),
    }
}

/// Where everything will go.
struct Planned {
    sharing: FileSharing,
    files: FileLayout,
    dcp: Option<DcpRank>,
    /// Bytes around the data of a rank's own file.
    frame: Vec<(u64, Vec<u8>)>,
    index_file: Option<(String, Vec<u8>)>,
}

impl Planned {
    fn new(
        target: &Target,
        batch: &Batch<'_>,
        stored: &BTreeMap<String, Stored>,
        options: &SaveOptions,
        rank: usize,
    ) -> Result<Self, CheckpointError> {
        match (options.format, target) {
            (SaveFormat::Dcp, _) => Self::dcp(batch, stored, rank),
            (SaveFormat::Native, Target::Objects(_)) => Ok(Self::chunks(batch, rank)),
            (format, Target::Objects(storage)) => {
                Err(TargetError::NotForObjects { location: storage.location(), format }.into())
            }
            (SaveFormat::Native, Target::Folder(_)) if options.assets.contains_key(ADAPTER_CONFIG) => {
                Ok(Self::collective_result(stored, SaveFormat::Peft, options.shard_size))
            }
            (format, Target::Folder(_)) => Ok(Self::collective_result(stored, format, options.shard_size)),
        }
    }

    /// Files that ranks write together: those of the model, and the others.
    fn collective_result(stored: &BTreeMap<String, Stored>, format: SaveFormat, shard_size: u64) -> Self {
        let of = |section: Section, stem: &str, shard_size: u64| {
            let tensors = stored.iter().filter(|(_, stored)| stored.section == section);
            let tensors = tensors.map(|(name, stored)| (name.as_str(), stored.dtype, &stored.shape));
            FileLayout::of_tensors(stem, tensors, shard_size)
        };
        // PEFT knows no adapters in several files.
        let mut files = match format {
            SaveFormat::Peft => of(Section::Model, "adapter_model", u64::MAX),
            _ => of(Section::Model, "model", shard_size),
        };
        let index_file = files.folder_index();
        files.join(of(Section::Training, "training", shard_size));
        Self { sharing: FileSharing::Shared, files, dcp: None, frame: Vec::new(), index_file }
    }

    /// A safetensors file of this rank's parts.
    fn chunks(batch: &Batch<'_>, rank: usize) -> Self {
        let mut parts: Vec<(&str, DType, Shape, Region)> = Vec::new();
        for (item, _) in batch.items() {
            let (dtype, region) = part_of(item);
            parts.push((&item.index.name, dtype, region.shape(), region));
        }
        let starts = chunk_metadata(parts.iter().map(|(name, .., region)| (*name, region)));
        let tensors = parts.iter().map(|(name, dtype, shape, _)| (*name, *dtype, shape));
        let files = FileLayout::one_file(&chunks_file(rank), tensors, starts);
        Self { sharing: FileSharing::PerRank, files, dcp: None, frame: Vec::new(), index_file: None }
    }

    /// A DCP file of this rank's parts. Bytes that are JSON become values
    /// that Python sees as such.
    fn dcp(
        batch: &Batch<'_>,
        stored: &BTreeMap<String, Stored>,
        rank: usize,
    ) -> Result<Self, CheckpointError> {
        let name = dcp::file_name(rank);
        let mut written = DcpRank::default();
        for (item, bytes) in batch.items() {
            let json = match &item.data {
                // Only if that is how it would be written again: bytes come back
                // as they were.
                WriteData::Bytes { .. } => serde_json::from_slice(bytes)
                    .ok()
                    .filter(|value: &serde_json::Value| value.to_string().as_bytes() == bytes),
                WriteData::Tensor { .. } => None,
            };
            if let Some(value) = json {
                written.values.push(DcpValue { name: item.index.name.clone(), value });
                continue;
            }
            let (dtype, region) = part_of(item);
            let shape = match &item.data {
                WriteData::Tensor { shape, .. } => shape.clone(),
                WriteData::Bytes { .. } => region.shape(),
            };
            written.items.push(DcpItem { name: item.index.name.clone(), dtype, shape, region });
        }
        // Of a tensor without elements nobody holds a part, but torch must find its name.
        let planned = |name: &str| batch.items().any(|(item, _)| item.index.name == name);
        for (name, stored) in stored.iter().filter(|_| rank == 0) {
            if stored.kind == EntryKind::Tensor && stored.shape.volume() == 0 && !planned(name) {
                let (shape, region) = (stored.shape.clone(), Region::whole(&stored.shape));
                written.items.push(DcpItem { name: name.clone(), dtype: stored.dtype, shape, region });
            }
        }
        let file = written.lay_out().map_err(|error| CheckpointError::format(&name, error))?;
        let mut frame = file.values;
        let mut files = FileLayout::default();
        for (item, placed) in written.items.iter().zip(&file.items) {
            frame.push((placed.offset, placed.prefix.clone()));
            frame.push((placed.data.end, placed.suffix(0)));
            files.locations.insert(item.name.clone(), TensorLocation { file: 0, offset: placed.data.start });
        }
        files.files.push(PlannedFile { name, header: Vec::new(), length: file.length });
        Ok(Self { sharing: FileSharing::PerRank, files, dcp: Some(written), frame, index_file: None })
    }
}

/// The type and the region of what an item writes; bytes are one dim.
fn part_of(item: &WriteItem) -> (DType, Region) {
    match &item.data {
        WriteData::Tensor { dtype, region, .. } => (*dtype, region.clone()),
        WriteData::Bytes { length, .. } => {
            let shape = Shape::new(&[*length as usize]).unwrap_or_default();
            (DType::U8, Region::whole(&shape))
        }
    }
}

/// The folder that is written before it gets its name.
pub(super) fn partial_of(path: &Path) -> Result<PathBuf, TargetError> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| TargetError::NoName { path: path.display().to_string() })?;
    Ok(path.with_file_name(format!(".{name}.partial")))
}

/// Makes the folder that is written first. Rank 0.
fn create_folder(path: &Path) -> Result<(), CheckpointError> {
    let partial = partial_of(path)?;
    let failed = |action, error: &io::Error| StorageError::io(action, partial.display().to_string(), error);
    if fs::symlink_metadata(path).is_ok() {
        return Err(TargetError::Exists { path: path.display().to_string() }.into());
    }
    // What an earlier save that was cut short left behind.
    match fs::remove_dir_all(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("remove", &error).into()),
        _ => {}
    }
    // Folders that are new must last as well, not only what is in them.
    let known = partial.ancestors().skip(1).find(|folder| folder.as_os_str().is_empty() || folder.is_dir());
    let known = known.map(Path::to_owned).unwrap_or_default();
    fs::create_dir_all(&partial).map_err(|error| failed("create", &error))?;
    for folder in partial.ancestors().skip(1) {
        let here = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        sync_folder(here).map_err(|error| failed("sync", &error))?;
        if folder == known {
            break;
        }
    }
    Ok(())
}
