//! A target that is being written.

use std::sync::Arc;

use weightloom_files::{TargetLock, check_free_space};
use weightloom_gang::{Gang, GangExt};
use weightloom_layout::ReduceOp;

use super::SaveOptions;
use super::all_paths::gather_paths;
use super::batch::WriteBatch;
use super::file_plan::{FilePlan, PartLocations, StoredEntries, StoredEntry, stored_entries};
use super::partial_folder::PartialFolder;
use super::sequential::{FileUpload, SequentialWriter};
use super::target::{SaveFormat, Target, TargetError};
use crate::chunk_sums::{ChunkSums, chunk_size_for};
use crate::collective_result;
use crate::error::CheckpointError;
use crate::file_layout::{FileLayout, PlannedFile, TensorLocation};
use crate::formats::dcp::{DcpRank, METADATA_FILE};
use crate::manifest::{FileSharing, MANIFEST_FILE};
use crate::plan::{Metadata, MetadataIndex, PlanContext, PlanData, StorageData, WriteData, WriteItem};
use crate::storage::Storage;

/// A target that is ready to be written.
pub(crate) struct OpenTarget {
    pub(super) destination: Destination,
    pub(super) sharing: FileSharing,
    pub(super) files: FileLayout,
    /// Where further parts of a tensor are in this rank's own files.
    parts: PartLocations,
    /// The contents of this rank's DCP file.
    pub(super) dcp: Option<DcpRank>,
    /// Data of the planner, for the manifest.
    pub(super) planner_data: Option<PlanData>,
    pub(super) storage_data: StorageData,
    pub(super) stored: StoredEntries,
    pub(super) chunk_size: u64,
    pub(super) options: SaveOptions,
    pub(super) index_file: Option<(String, Vec<u8>)>,
}

/// Where the bytes of an open target go.
pub(super) enum Destination {
    Folder(PartialFolder),
    Objects {
        storage: Arc<dyn Storage>,
        /// Bytes between the data of this rank's own file; none in shared files.
        frame: Vec<(u64, Vec<u8>)>,
        /// The right to write, where the storage is a folder. Rank 0.
        _lock: Option<TargetLock>,
    },
}

/// How the files of an open target are written.
pub(crate) enum WriteAccess<'a> {
    /// Every rank writes at any offset of any file.
    Random(FolderFiles<'a>),
    /// Every rank writes its own file in order.
    OwnFile(ObjectFiles<'a>),
    /// Files are written in order, each by one rank, to which the others send
    /// their bytes.
    SharedFiles(ObjectFiles<'a>),
}

/// Files of a folder.
#[derive(Clone, Copy)]
pub(crate) struct FolderFiles<'a> {
    folder: &'a PartialFolder,
    files: &'a [PlannedFile],
}

impl FolderFiles<'_> {
    pub(crate) fn write_at(&self, file: usize, offset: u64, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.folder.write_at((file, &self.files[file]), offset, bytes)
    }
}

/// Files of an object store.
#[derive(Clone, Copy)]
pub(crate) struct ObjectFiles<'a> {
    storage: &'a dyn Storage,
    files: &'a [PlannedFile],
    frame: &'a [(u64, Vec<u8>)],
}

impl<'a> ObjectFiles<'a> {
    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    /// A writer of the files with these numbers.
    pub(super) fn writer(self, files: impl IntoIterator<Item = usize>) -> SequentialWriter<'a> {
        SequentialWriter::new(self, files)
    }

    /// A writer of all files.
    pub(crate) fn whole_writer(self) -> SequentialWriter<'a> {
        self.writer(0..self.files.len())
    }

    pub(super) fn begin_upload(&self, number: usize) -> Result<FileUpload<'a>, CheckpointError> {
        let file = &self.files[number];
        let mut known = vec![(0, file.header.clone())];
        known.extend(self.frame.iter().cloned());
        Ok(FileUpload::new(file, self.storage.create(&file.name)?, known))
    }

    pub(super) fn name(&self, number: usize) -> &'a str {
        self.files.get(number).map_or("", |file| &file.name)
    }
}

impl OpenTarget {
    /// Plans the files and creates them where they can be created up front.
    /// Every rank.
    pub(crate) fn open(
        target: &Target,
        batch: &WriteBatch<'_>,
        metadata: &Metadata,
        options: &SaveOptions,
        gang: &dyn Gang,
    ) -> Result<Self, CheckpointError> {
        let stored = stored_entries(metadata);
        let context = PlanContext { rank: gang.rank(), world: gang.size() };
        let plan = check_data(metadata, options.format)
            .map_err(CheckpointError::from)
            .and_then(|()| FilePlan::new(target, batch, &stored, options, context));
        let FilePlan { sharing, files, parts, dcp, frame, index_file } = collective_result(gang, plan)?;
        let (needed, nesting) = space_needed(sharing, &files, options, gang)?;
        let mut options = options.clone();
        if nesting == Nesting::Nested {
            options.paths = gather_paths(&options.paths, gang)?;
        }
        let (destination, frame) = match target {
            Target::Folder(path) => (Destination::Folder(PartialFolder::create(path, needed, gang)?), frame),
            Target::Objects(storage) => {
                let locked = if gang.rank() == 0 { lock_folder(&**storage, needed) } else { Ok(None) };
                let lock = collective_result(gang, locked)?;
                let free = check_is_free(&**storage, options.format, &files, index_file.as_ref());
                collective_result(gang, free)?;
                (Destination::Objects { storage: Arc::clone(storage), frame, _lock: lock }, Vec::new())
            }
        };
        let bytes = |entry: &StoredEntry| entry.shape.volume() as u64 * entry.dtype.size() as u64;
        let opened = Self {
            destination,
            sharing,
            files,
            parts,
            dcp,
            planner_data: metadata.planner_data.clone(),
            storage_data: metadata.storage_data.clone(),
            chunk_size: chunk_size_for(stored.values().map(bytes).sum()),
            stored,
            options,
            index_file,
        };
        let created = opened.create_files(&frame, gang.rank());
        collective_result(gang, created).inspect_err(|_| opened.discard(gang))?;
        Ok(opened)
    }

    /// Creates this rank's files in a folder and writes the bytes between
    /// their data.
    fn create_files(&self, frame: &[(u64, Vec<u8>)], rank: usize) -> Result<(), CheckpointError> {
        let Destination::Folder(folder) = &self.destination else { return Ok(()) };
        if self.sharing == FileSharing::PerRank || rank == 0 {
            for (number, file) in self.files.files.iter().enumerate() {
                folder.create_file(number, file)?;
            }
        }
        frame
            .iter()
            .try_for_each(|(offset, bytes)| folder.write_at((0, &self.files.files[0]), *offset, bytes))
    }

    /// Whether an item is a value that was written with the file's frame.
    pub(crate) fn is_in_frame(&self, name: &str) -> bool {
        self.dcp.as_ref().is_some_and(|rank| rank.values.iter().any(|value| value.name == name))
    }

    /// Where a tensor, or this rank's part of it, begins.
    pub(crate) fn location(&self, index: &MetadataIndex) -> Option<TensorLocation> {
        if let (false, Some(offset)) = (self.parts.is_empty(), &index.offset)
            && let Some(location) = self.parts.get(&(index.name.clone(), offset.clone()))
        {
            return Some(*location);
        }
        self.files.locations.get(&index.name).copied()
    }

    /// Adds an item of bytes to the proof that each is written once.
    pub(crate) fn add_entry(&self, item: &WriteItem, sums: &ChunkSums) {
        let WriteData::Bytes { .. } = item.data else { return };
        let name = &item.index.name;
        match self.is_in_frame(name) {
            true => sums.add_unsummed_entry(name),
            false => sums.add_entry(name),
        }
    }

    /// The distance of a byte from the beginning of its tensor in the file:
    /// shared files hold the whole tensor, a rank's own file holds its shard.
    pub(super) fn offset_in_tensor(&self, in_whole: u64, in_shard: u64) -> u64 {
        match self.sharing {
            FileSharing::Shared => in_whole,
            FileSharing::PerRank => in_shard,
        }
    }

    pub(crate) fn empty_sums(&self) -> ChunkSums {
        let tensors = self.stored.iter();
        ChunkSums::new(
            self.chunk_size,
            tensors.map(|(name, entry)| (name.as_str(), entry.dtype, &entry.shape)),
        )
    }

    pub(crate) fn access(&self) -> WriteAccess<'_> {
        let files = self.files.files.as_slice();
        match &self.destination {
            Destination::Folder(folder) => WriteAccess::Random(FolderFiles { folder, files }),
            Destination::Objects { storage, frame, .. } => {
                let objects = ObjectFiles { storage: &**storage, files, frame };
                match self.sharing {
                    FileSharing::PerRank => WriteAccess::OwnFile(objects),
                    FileSharing::Shared => WriteAccess::SharedFiles(objects),
                }
            }
        }
    }

    /// Makes this rank's writes durable.
    pub(crate) fn sync(&self) -> Result<(), CheckpointError> {
        match &self.destination {
            Destination::Folder(folder) => folder.sync(&self.files.files),
            // A finished object is durable.
            Destination::Objects { .. } => Ok(()),
        }
    }

    /// Removes the files of a failed save. Every rank, after all have stopped
    /// writing.
    pub(super) fn discard(&self, gang: &dyn Gang) {
        if gang.rank() != 0 {
            return;
        }
        match &self.destination {
            Destination::Folder(folder) => folder.discard(),
            // Without a manifest, single files would look like a checkpoint.
            Destination::Objects { storage, .. } if self.sharing == FileSharing::Shared => {
                for file in &self.files.files {
                    // The error of the save is the one to report.
                    let _ = storage.remove(&file.name);
                }
            }
            Destination::Objects { .. } => {}
        }
    }
}

/// Whether a state has paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nesting {
    Flat,
    Nested,
}

/// Refuses planner data that a format has no place for.
fn check_data(metadata: &Metadata, format: SaveFormat) -> Result<(), TargetError> {
    let has_data = metadata.planner_data.is_some() || !metadata.storage_data.is_empty();
    if has_data && format != SaveFormat::Native { Err(TargetError::PlannerData { format }) } else { Ok(()) }
}

/// Bytes that all ranks together will write, and whether any rank's state is
/// nested. Every rank.
fn space_needed(
    sharing: FileSharing,
    files: &FileLayout,
    options: &SaveOptions,
    gang: &dyn Gang,
) -> Result<(u64, Nesting), CheckpointError> {
    let own = match (sharing, gang.rank()) {
        // All ranks have the same files.
        (FileSharing::Shared, 1..) => 0,
        _ => files.files.iter().fold(0u64, |sum, file| sum.saturating_add(file.length)),
    };
    let mut needed = [own, u64::from(!options.paths.is_empty())];
    gang.all_reduce(&mut needed, ReduceOp::Sum)?;
    let [needed, nested] = needed;
    let assets: u64 = options.assets.values().map(|asset| asset.len() as u64).sum();
    let nesting = if nested > 0 { Nesting::Nested } else { Nesting::Flat };
    Ok((needed.saturating_add(assets), nesting))
}

/// Takes the right to write into a storage that is a folder. Object stores have
/// no locks.
fn lock_folder(storage: &dyn Storage, needed: u64) -> Result<Option<TargetLock>, CheckpointError> {
    let Some(folder) = storage.folder().filter(|folder| folder.is_dir()) else { return Ok(None) };
    check_free_space(&folder.join(MANIFEST_FILE), needed)?;
    Ok(Some(TargetLock::try_take_inside(folder)?))
}

/// Refuses a prefix that holds a checkpoint already.
fn check_is_free(
    storage: &dyn Storage,
    format: SaveFormat,
    files: &FileLayout,
    index_file: Option<&(String, Vec<u8>)>,
) -> Result<(), CheckpointError> {
    let names: Vec<&str> = match format {
        SaveFormat::Native => vec![MANIFEST_FILE],
        SaveFormat::Dcp => vec![METADATA_FILE],
        SaveFormat::HuggingFace | SaveFormat::Peft => {
            let files = files.files.iter().map(|file| file.name.as_str());
            files.chain(index_file.map(|(name, _)| name.as_str())).collect()
        }
    };
    for name in names {
        if storage.exists(name)? {
            return Err(TargetError::Exists { path: storage.location() }.into());
        }
    }
    Ok(())
}
