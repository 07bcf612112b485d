//! Where a checkpoint is saved to: a folder that ranks write together, or an
//! object store to which each rank uploads a file of its own.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use shardloom_gang::Gang;
use shardloom_layout::{DType, Hint, Region, Shape};

use super::SaveOptions;
use crate::error::CheckpointError;
use crate::file_layout::{FileLayout, Place, PlannedFile};
use crate::manifest::Arrangement;
use crate::plan::{Metadata, SavePlan, WriteData};
use crate::state::Part;
use crate::storage::local::{sync_folder, write_all_at};
use crate::storage::{Storage, StorageError};
use crate::sums::{Sums, stretch_for};
use crate::together;

/// Where a checkpoint is saved to.
#[derive(Clone)]
pub enum Target {
    /// A folder that does not exist yet, on a filesystem that all ranks see.
    Folder(PathBuf),
    /// A place for objects.
    Objects(Arc<dyn Storage>),
}

/// Why a checkpoint cannot be saved to a place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// Something is there already.
    #[error("`{path}` exists already")]
    Exists {
        /// The path.
        path: String,
    },
    /// A path without a last part.
    #[error("`{path}` is not the name of a new folder")]
    NoName {
        /// The path.
        path: String,
    },
}

impl Hint for TargetError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Exists { .. } => Some("choose another name, or remove it first".to_owned()),
            Self::NoName { .. } => Some("give a path such as `runs/step_100`".to_owned()),
        }
    }
}

/// A tensor, or bytes, as it will be stored.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) part: Part,
    pub(super) kind: crate::manifest::Kind,
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    pub(super) layout: Option<String>,
}

/// A place that is ready to be written to.
pub(super) struct Opened {
    pub(super) place: Destination,
    pub(super) files: FileLayout,
    pub(super) stored: BTreeMap<String, Stored>,
    pub(super) stretch: u64,
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
    /// This rank's file in memory, until it is uploaded.
    buffer: Mutex<Vec<u8>>,
}

impl Opened {
    /// Makes the place ready. Every rank.
    pub(super) fn open(
        target: &Target,
        plan: &SavePlan,
        metadata: &Metadata,
        options: &SaveOptions,
        gang: &dyn Gang,
    ) -> Result<Self, CheckpointError> {
        let stored = stored(metadata);
        let total =
            stored.values().map(|stored| stored.shape.volume() as u64 * stored.dtype.size() as u64).sum();
        let stretch = stretch_for(total);
        let options = options.clone();
        match target {
            Target::Folder(path) => {
                let (files, index_file) = shared_files(&stored, options.shard_size);
                let made = match gang.rank() {
                    0 => create(path, &files.files).map(Some),
                    _ => Ok(None),
                };
                together(gang, made)?;
                let partial = partial_of(path)?;
                let folder = OpenFolder { partial, path: path.clone(), open: Mutex::default() };
                Ok(Self { place: Destination::Folder(folder), files, stored, stretch, options, index_file })
            }
            Target::Objects(storage) => {
                let ready = match storage.has(crate::manifest::MANIFEST_FILE) {
                    Ok(crate::storage::Presence::Absent) => Ok(()),
                    Ok(_) => Err(TargetError::Exists { path: storage.location() }.into()),
                    Err(error) => Err(error.into()),
                };
                together(gang, ready)?;
                let files = own_file(plan, gang.rank());
                let length = files.files.first().map_or(0, |file| file.length as usize);
                let mut buffer = files.files.first().map(|file| file.header.clone()).unwrap_or_default();
                buffer.resize(length, 0);
                let objects = OpenObjects { storage: Arc::clone(storage), buffer: Mutex::new(buffer) };
                let place = Destination::Objects(objects);
                Ok(Self { place, files, stored, stretch, options, index_file: None })
            }
        }
    }

    pub(super) fn arrangement(&self) -> Arrangement {
        match self.place {
            Destination::Folder(_) => Arrangement::Shared,
            Destination::Objects(_) => Arrangement::Chunks,
        }
    }

    /// Where a tensor begins.
    pub(super) fn place(&self, name: &str) -> Option<Place> {
        self.files.places.get(name).copied()
    }

    /// How far behind its tensor's beginning a byte lies: in shared files its
    /// place in the whole tensor counts, in a rank's own file the one in the
    /// rank's part.
    pub(super) fn ahead(&self, whole: u64, local: u64) -> u64 {
        match self.place {
            Destination::Folder(_) => whole,
            Destination::Objects(_) => local,
        }
    }

    pub(super) fn empty_sums(&self) -> Sums {
        let tensors = self.stored.iter();
        Sums::new(self.stretch, tensors.map(|(name, stored)| (name.as_str(), stored.dtype, &stored.shape)))
    }

    pub(super) fn write(&self, file: usize, offset: u64, bytes: &[u8]) -> Result<(), CheckpointError> {
        let planned = &self.files.files[file];
        match &self.place {
            Destination::Folder(folder) => {
                let handle = folder.handle(file, planned)?;
                write_all_at(&handle, bytes, offset)
                    .map_err(|error| folder.failed("write", &planned.name, &error))?;
            }
            Destination::Objects(objects) => {
                let mut buffer = objects.buffer.lock().unwrap_or_else(PoisonError::into_inner);
                buffer[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    /// Makes what this rank wrote last.
    pub(super) fn sync(&self) -> Result<(), CheckpointError> {
        match &self.place {
            Destination::Folder(folder) => {
                let open = folder.open.lock().unwrap_or_else(PoisonError::into_inner);
                for (&file, handle) in open.iter() {
                    let name = &self.files.files[file].name;
                    handle.sync_all().map_err(|error| folder.failed("sync", name, &error))?;
                }
            }
            Destination::Objects(objects) => {
                if let Some(file) = self.files.files.first() {
                    let buffer = objects.buffer.lock().unwrap_or_else(PoisonError::into_inner);
                    objects.storage.put(&file.name, &buffer)?;
                }
            }
        }
        Ok(())
    }
}

/// What stands for a file's first bytes until all of it is there: a header so
/// long that no reader of safetensors takes zeros for tensors.
const UNFINISHED: [u8; 8] = [0xff; 8];

impl OpenFolder {
    /// Makes a file that all ranks have written one that can be read.
    pub(super) fn complete(&self, file: &PlannedFile) -> Result<(), CheckpointError> {
        let first = &file.header[..file.header.len().min(UNFINISHED.len())];
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
    use crate::manifest::Kind;
    let tensors = metadata.tensors.iter().map(|(name, tensor)| {
        let stored = Stored {
            part: tensor.part,
            kind: Kind::Tensor,
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            layout: tensor.layout.clone(),
        };
        (name.clone(), stored)
    });
    let bytes = metadata.bytes.iter().map(|(name, &length)| {
        let shape = Shape::new(&[length as usize]).unwrap_or_default();
        let stored =
            Stored { part: Part::Training, kind: Kind::Bytes, dtype: DType::U8, shape, layout: None };
        (name.clone(), stored)
    });
    tensors.chain(bytes).collect()
}

/// The files that ranks write together: those of the model, and the others.
fn shared_files(
    stored: &BTreeMap<String, Stored>,
    shard_size: u64,
) -> (FileLayout, Option<(String, Vec<u8>)>) {
    let of = |part: Part, stem: &str| {
        let tensors = stored.iter().filter(|(_, stored)| stored.part == part);
        let tensors = tensors.map(|(name, stored)| (name.as_str(), stored.dtype, &stored.shape));
        FileLayout::of_tensors(stem, tensors, shard_size)
    };
    let mut files = of(Part::Model, "model");
    let index = files.folder_index();
    files.join(of(Part::Training, "training"));
    (files, index)
}

/// The file that a rank writes alone.
fn own_file(plan: &SavePlan, rank: usize) -> FileLayout {
    let whole = Region::whole(&Shape::default());
    let mut parts: Vec<(String, DType, Shape, Region)> = Vec::new();
    for item in &plan.items {
        let name = item.index.name.clone();
        match &item.data {
            WriteData::Tensor { dtype, region, .. } => {
                parts.push((name, *dtype, region.shape(), region.clone()));
            }
            WriteData::Bytes { length, .. } => {
                let shape = Shape::new(&[*length as usize]).unwrap_or_default();
                let start = Region::new(&[0], &[*length as usize]).unwrap_or_else(|_| whole.clone());
                parts.push((name, DType::U8, shape, start));
            }
        }
    }
    let starts = crate::formats::native::chunk_metadata(
        parts.iter().map(|(name, .., region)| (name.as_str(), region)),
    );
    let tensors = parts.iter().map(|(name, dtype, shape, _)| (name.as_str(), *dtype, shape));
    FileLayout::one_file(&crate::formats::native::chunks_file(rank), tensors, starts)
}

/// The folder that is written before it gets its name.
pub(super) fn partial_of(path: &Path) -> Result<PathBuf, TargetError> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| TargetError::NoName { path: path.display().to_string() })?;
    Ok(path.with_file_name(format!(".{name}.partial")))
}

/// Makes the folder and its files, empty but for their headers. Rank 0.
fn create(path: &Path, files: &[PlannedFile]) -> Result<(), CheckpointError> {
    let partial = partial_of(path)?;
    let failed = |action, path: &Path, error: &io::Error| {
        CheckpointError::from(StorageError::io(action, path.display().to_string(), error))
    };
    if fs::symlink_metadata(path).is_ok() {
        return Err(TargetError::Exists { path: path.display().to_string() }.into());
    }
    // What an earlier save that was cut short left behind.
    match fs::remove_dir_all(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("remove", &partial, &error));
        }
        _ => {}
    }
    make_files(&partial, files).inspect_err(|_| {
        // The error is the one to tell; what is left only takes up room.
        let _ = fs::remove_dir_all(&partial);
    })
}

/// Makes a folder with files of the right length and their headers.
fn make_files(partial: &Path, files: &[PlannedFile]) -> Result<(), CheckpointError> {
    let failed = |action, path: &Path, error: &io::Error| {
        CheckpointError::from(StorageError::io(action, path.display().to_string(), error))
    };
    fs::create_dir_all(partial).map_err(|error| failed("create", partial, &error))?;
    for file in files {
        let path = partial.join(&file.name);
        let made = File::create(&path).and_then(|handle| {
            let (first, rest) = file.header.split_at(file.header.len().min(UNFINISHED.len()));
            handle.set_len(file.length)?;
            write_all_at(&handle, &UNFINISHED[..first.len()], 0)?;
            write_all_at(&handle, rest, first.len() as u64)?;
            handle.sync_all()
        });
        made.map_err(|error| failed("create", &path, &error))?;
    }
    sync_folder(partial).map_err(|error| failed("sync", partial, &error))?;
    Ok(())
}
