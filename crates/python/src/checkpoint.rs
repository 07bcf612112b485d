//! Checkpoints that are opened: their entries, and reads of parts of tensors.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use weightloom::checkpoint::{
    Fingerprints, LocalStorage, PathSegment, ReadOptions, ReadRequest, Source, TensorEntry, fingerprint, read,
};
use weightloom::cli::{CallError, CallErrorKind};
use weightloom::hub::ModelLocation;
use weightloom::hub::fetch::{FetchObserver, LockWait, TransferError};
use weightloom::layout::{DType, Region};
use weightloom::{Folders, Registry};

use crate::errors::{Raise, exception, wrong};
use crate::interruption::interruptible;
use crate::memory::{Buffer, OwnedBytes, PrivateMap, PyMemory};
use crate::progress::Progress;

/// An opened checkpoint: its entries are known, and no tensor has been read.
#[pyclass(frozen, module = "weightloom._weightloom")]
pub(crate) struct Checkpoint {
    pub(crate) source: Source,
    location: String,
    /// The files of a local folder, as they were when it was opened.
    identities: Vec<Option<FileIdentity>>,
    /// The process that opened it.
    process: u32,
}

/// What tells a file from one that replaces it, or from itself once it was rewritten: device,
/// inode, length, and the time of its last change.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileIdentity(u64, u64, u64, (i64, i64));

impl FileIdentity {
    fn of(file: &std::fs::Metadata) -> Self {
        Self(file.dev(), file.ino(), file.len(), (file.mtime(), file.mtime_nsec()))
    }
}

/// Opens a checkpoint: a file, folder, run, card, `org/name` or URL. What is on Hugging Face
/// is downloaded.
#[pyfunction]
#[pyo3(signature = (name, progress=None))]
pub(crate) fn open_checkpoint(
    py: Python<'_>,
    name: String,
    progress: Option<Py<PyAny>>,
) -> PyResult<Checkpoint> {
    let progress = Progress::new(progress);
    let located = interruptible(py, &progress.cancel, || {
        let variable = |name: &str| std::env::var(name).ok();
        let hub = Registry::standard().hub(&variable, &Folders::default());
        hub.locate_checkpoint(&name, &Downloads(&progress))
    })?
    .map_err(Raise::from)?;
    let location = match &located.location {
        // The working directory may change.
        ModelLocation::Path(path) => std::path::absolute(path).as_ref().unwrap_or(path).display().to_string(),
        ModelLocation::Url(url) => url.clone(),
    };
    let opened = interruptible(py, &progress.cancel, || -> Result<_, Raise> {
        let source = with_closed_files(located.open()?);
        let identities = identities(&source);
        Ok((source, identities))
    })?;
    let (source, identities) = opened?;
    Ok(Checkpoint { source, location, identities, process: std::process::id() })
}

/// The checkpoint without the files that reading its headers has opened, and independent of
/// the working directory.
fn with_closed_files(source: Source) -> Source {
    match source.storage.folder().and_then(|folder| std::path::absolute(folder).ok()) {
        Some(folder) => Source { storage: Arc::new(LocalStorage::new(folder)), ..source },
        None => source,
    }
}

/// The files of a local folder, in the order of the index.
fn identities(source: &Source) -> Vec<Option<FileIdentity>> {
    let Some(folder) = source.storage.folder() else { return Vec::new() };
    let identity = |name: &str| Some(FileIdentity::of(&folder.join(name).metadata().ok()?));
    source.index.files().iter().map(|file| identity(&file.name)).collect()
}

impl Drop for Checkpoint {
    fn drop(&mut self) {
        // Connections belong to threads of the process that made them. In a forked process, to close
        // them could wait for ever.
        if self.is_of_another_process() {
            std::mem::forget(Arc::clone(&self.source.storage));
        }
    }
}

/// Passes the progress of downloads on.
pub(crate) struct Downloads<'a>(pub(crate) &'a Progress);

impl FetchObserver for Downloads<'_> {
    fn started(&self, file: &str, bytes: Option<u64>, already: u64) {
        self.0.tell("begin", (format!("downloading {file}"), bytes.unwrap_or(0)));
        self.0.tell("advance", (already,));
    }

    fn progress(&self, _file: &str, bytes: u64) {
        self.0.tell("advance", (bytes,));
    }

    fn waiting(&self, wait: &LockWait<'_>) {
        let who = wait.holder.as_deref().unwrap_or("another process");
        self.0.tell("status", (format!("waiting for {who} to download {}", wait.file),));
    }

    fn retrying(&self, file: &str, reason: &TransferError, delay: Duration) {
        let line = format!("{file}: {reason}; retrying in {:.1} s", delay.as_secs_f64());
        self.0.tell("status", (line,));
    }

    fn cancelled(&self) -> bool {
        self.0.cancel.load(Ordering::Relaxed)
    }
}

/// Name, dtype, shape, bytes once decoded, stored bytes, number of stored parts,
/// quantisation.
type TensorInfo = (String, &'static str, Vec<usize>, u64, u64, usize, Option<String>);

/// A key, the index of a list, or the end of the path to an empty dict or list.
#[derive(IntoPyObject)]
enum Segment {
    Key(String),
    Index(usize),
    Empty(Option<()>),
}

impl Checkpoint {
    fn entry(&self, py: Python<'_>, name: &str) -> PyResult<&TensorEntry> {
        self.source.index.tensors().get(name).ok_or_else(|| {
            let names = self.source.index.tensors().keys().map(String::as_str);
            let near = weightloom::errors::nearest(name, names);
            let hint = match near {
                Some(near) => format!("did you mean `{near}`?"),
                None => "`list(checkpoint)` lists the names".to_owned(),
            };
            let message = format!("{} has no tensor `{name}`", self.location);
            exception(py, "MissingTensor", &message, Some(&hint))
        })
    }
}

pub(crate) fn dtype_of(name: &str) -> PyResult<DType> {
    name.parse().map_err(|_| {
        let names: Vec<&str> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
        wrong(format!("unknown dtype `{name}`"), format!("use one of {}", names.join(", ")))
    })
}

fn region_of(entry: &TensorEntry, name: &str, start: &[usize], size: &[usize]) -> PyResult<Region> {
    let fits = start.len() == entry.shape.ndim() && size.len() == entry.shape.ndim();
    let region = fits.then(|| Region::new(start, size).ok()).flatten();
    let region = region.filter(|region| region.check_inside(&entry.shape).is_ok());
    region.ok_or_else(|| {
        let message =
            format!("{start:?} with sizes {size:?} is not inside of `{name}`, of shape {}", entry.shape);
        wrong(message, "check the slice")
    })
}

#[pymethods]
impl Checkpoint {
    /// Where it is: a path or URL.
    #[getter]
    fn location(&self) -> &str {
        &self.location
    }

    /// The format.
    #[getter]
    fn format(&self) -> String {
        self.source.index.format().to_string()
    }

    /// Files and their lengths.
    #[getter]
    fn files(&self) -> Vec<(String, u64)> {
        self.source.index.files().iter().map(|file| (file.name.clone(), file.length)).collect()
    }

    /// The format's metadata.
    #[getter]
    fn metadata(&self) -> std::collections::BTreeMap<String, String> {
        self.source.index.metadata().clone()
    }

    /// The step that a native checkpoint was saved at.
    #[getter]
    fn step(&self) -> Option<u64> {
        self.source.manifest.as_ref()?.step
    }

    /// The fingerprint that a native checkpoint states.
    #[getter]
    fn stated_fingerprint(&self) -> Option<String> {
        self.source.manifest.as_ref().map(|manifest| manifest.fingerprint.to_string())
    }

    /// All tensors, in the order of their names.
    fn tensors(&self) -> Vec<TensorInfo> {
        let info = |(name, entry): (&String, &TensorEntry)| {
            let quantisation = entry.tiles.first().and_then(|tile| tile.codec.name());
            let (dtype, shape) = (entry.dtype.name(), entry.shape.to_vec());
            (name.clone(), dtype, shape, entry.bytes(), entry.stored_bytes(), entry.tiles.len(), quantisation)
        };
        self.source.index.tensors().iter().map(info).collect()
    }

    /// Fails with the nearest name unless there is a tensor of this name.
    fn check_name(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.entry(py, name).map(drop)
    }

    /// The names of entries that are not tensors.
    fn values(&self) -> Vec<String> {
        self.source.index.values().cloned().collect()
    }

    /// An entry that is not a tensor; values that torch pickled are JSON.
    fn value<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let source = self.source(py)?;
        let cancel = Progress::new(None).cancel;
        let bytes = interruptible(py, &cancel, || source.read_bytes(name))?.map_err(Raise::from)?;
        Ok(bytes.map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// The paths of the entries of nested state, by name. Others are children of the root.
    fn paths(&self, py: Python<'_>) -> PyResult<BTreeMap<String, Vec<Segment>>> {
        let paths = py.detach(|| self.source.paths()).map_err(Raise::from)?;
        let segment = |segment: PathSegment| match segment {
            PathSegment::Key(key) => Segment::Key(key),
            PathSegment::Index(index) => Segment::Index(index),
            PathSegment::Empty => Segment::Empty(None),
        };
        let mut all: BTreeMap<String, Vec<Segment>> = BTreeMap::new();
        for (name, path) in paths {
            all.insert(name, path.into_iter().map(segment).collect());
        }
        let index = &self.source.index;
        let names = index.tensors().keys().chain(index.values());
        for name in names.filter(|_| !index.dicts().is_empty()) {
            let path = || nested_path(name, index.dicts(), index.lists());
            all.entry(name.clone()).or_insert_with(path);
        }
        Ok(all)
    }

    /// Reads a part of a tensor, as its own dtype or another one. What is stored as it is,
    /// in a local file, is mapped.
    #[pyo3(signature = (name, start, size, dtype=None))]
    fn read(
        &self,
        py: Python<'_>,
        name: &str,
        start: Vec<usize>,
        size: Vec<usize>,
        dtype: Option<&str>,
    ) -> PyResult<Buffer> {
        let entry = self.entry(py, name)?;
        self.check_readable(py, entry)?;
        let region = region_of(entry, name, &start, &size)?;
        let part = Part { name, entry, dtype: dtype.map_or(Ok(entry.dtype), dtype_of)?, region };
        if let Some((file, offset, length)) = self.in_file(&part)
            && let Some(buffer) = py.detach(|| Buffer::of_map(self.map(file, offset, length)?, 0, length))
        {
            return Ok(buffer);
        }
        let mut bytes = part.memory()?;
        self.read_parts(py, vec![part.read_into(bytes.bytes_mut())], &Progress::new(None))?;
        Ok(bytes.into())
    }

    /// Reads all tensors, as their own dtypes; those of floating point as another one, if it
    /// is given. What is stored as it is, in local files, is mapped: one map for each file, as
    /// systems limit their number.
    #[pyo3(signature = (dtype=None, progress=None))]
    fn read_all(
        &self,
        py: Python<'_>,
        dtype: Option<&str>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Vec<(String, Buffer)>> {
        self.source(py)?;
        let dtype = dtype.map(dtype_of).transpose()?;
        let parts = self.source.index.tensors().iter().map(|(name, entry)| {
            let dtype = dtype.filter(|_| entry.dtype.is_float()).unwrap_or(entry.dtype);
            Part { name, entry, dtype, region: Region::whole(&entry.shape) }
        });
        let parts: Vec<Part<'_>> = parts.collect();
        let mut mapped = py.detach(|| self.map_parts(&parts));
        let mut rest = Vec::new();
        for part in &parts {
            if !mapped.contains_key(part.name) {
                rest.push((part.name, part.memory()?));
            }
        }
        let unmapped = parts.iter().filter(|part| !mapped.contains_key(part.name));
        let requests = unmapped.zip(&mut rest).map(|(part, (_, bytes))| part.read_into(bytes.bytes_mut()));
        self.read_parts(py, requests.collect(), &Progress::new(progress))?;
        mapped.extend(rest.into_iter().map(|(name, bytes)| (name, bytes.into())));
        Ok(mapped.into_iter().map(|(name, buffer)| (name.to_owned(), buffer)).collect())
    }

    /// Reads a part of a tensor into memory of Python.
    fn read_into(
        &self,
        py: Python<'_>,
        name: &str,
        start: Vec<usize>,
        size: Vec<usize>,
        dtype: &str,
        into: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let entry = self.entry(py, name)?;
        self.check_readable(py, entry)?;
        let region = region_of(entry, name, &start, &size)?;
        let part = Part { name, entry, dtype: dtype_of(dtype)?, region };
        let mut into = PyMemory::writable(into)?;
        self.read_parts(py, vec![part.read_into(into.bytes_mut())], &Progress::new(None))
    }

    /// The fingerprint of the checkpoint, and those of its tensors. Reads every byte.
    #[pyo3(signature = (progress=None))]
    fn fingerprint(
        &self,
        py: Python<'_>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<(String, BTreeMap<String, String>)> {
        let source = self.source(py)?;
        let progress = Progress::new(progress);
        let found = interruptible(py, &progress.cancel, || fingerprint(source, &progress))?;
        let Fingerprints { fingerprint, tensors, .. } = found.map_err(Raise::from)?;
        let tensors = tensors.into_iter().map(|(name, print)| (name, print.to_string())).collect();
        Ok((fingerprint.to_string(), tensors))
    }
}

/// The path of a dotted name, where `dicts` are the dotted names of dicts and lists.
fn nested_path(name: &str, dicts: &BTreeSet<String>, lists: &BTreeSet<String>) -> Vec<Segment> {
    let mut path = Vec::new();
    let mut start = 0;
    let dots = name.match_indices('.').map(|(at, _)| at).filter(|&at| dicts.contains(&name[..at]));
    for end in dots.chain([name.len()]) {
        let key = &name[start..end];
        let is_in_list = start > 0 && lists.contains(&name[..start - 1]);
        let index = key.parse().ok().filter(|_| is_in_list);
        path.push(index.map_or_else(|| Segment::Key(key.to_owned()), Segment::Index));
        start = end + 1;
    }
    path
}

/// A part of a tensor to read.
struct Part<'a> {
    name: &'a str,
    entry: &'a TensorEntry,
    region: Region,
    /// The dtype to read it as.
    dtype: DType,
}

impl Part<'_> {
    fn length(&self) -> usize {
        self.region.volume() * self.dtype.size()
    }

    fn memory(&self) -> PyResult<OwnedBytes> {
        let no_memory = || format!("cannot allocate {} bytes for `{}`", self.length(), self.name);
        OwnedBytes::try_zeroed(self.length()).ok_or_else(|| PyMemoryError::new_err(no_memory()))
    }

    fn read_into<'a>(&'a self, into: &'a mut [u8]) -> ReadRequest<'a> {
        let (name, entry, dtype) = (self.name, self.entry, self.dtype);
        ReadRequest { entry, name, region: self.region.clone(), dtype, into }
    }
}

/// Bytes of a part below which it is read: maps are more work.
const MAPPED_FROM: usize = 64 << 10;

/// Bytes below which one thread reads.
const SMALL: usize = 1 << 20;

impl Checkpoint {
    /// The checkpoint, to read from: in the process that opened it, and with files that are
    /// those that its headers describe.
    pub(crate) fn source(&self, py: Python<'_>) -> PyResult<&Source> {
        self.check_process()?;
        py.detach(|| self.check_files(0..self.identities.len()))?;
        Ok(&self.source)
    }

    /// As [`source`](Self::source), for one tensor.
    fn check_readable(&self, py: Python<'_>, entry: &TensorEntry) -> PyResult<()> {
        // Scales of quantised elements may be in any file.
        if entry.tiles.iter().any(|tile| tile.codec.name().is_some()) {
            return self.source(py).map(drop);
        }
        self.check_process()?;
        let mut files: Vec<usize> = entry.tiles.iter().map(|tile| tile.file.0 as usize).collect();
        files.sort_unstable();
        files.dedup();
        py.detach(|| self.check_files(files))
    }

    /// Whether its connections are another process's: threads that would answer do not survive
    /// a fork, and the wait would not end.
    fn is_of_another_process(&self) -> bool {
        self.process != std::process::id() && self.source.storage.folder().is_none()
    }

    fn check_process(&self) -> PyResult<()> {
        if self.is_of_another_process() {
            let message = format!(
                "cannot read `{}` in a forked process: connections do not survive a fork",
                self.location
            );
            return Err(wrong(message, "open it in the new process"));
        }
        Ok(())
    }

    /// Refuses files that took the place of those that were there when it was opened. Those
    /// that are gone are reported by who reads them.
    fn check_files(&self, files: impl IntoIterator<Item = usize>) -> PyResult<()> {
        let Some(folder) = self.source.storage.folder() else { return Ok(()) };
        for file in files {
            let (Some(was), Some(name)) = (self.identities.get(file), self.source.index.files().get(file))
            else {
                continue;
            };
            let Ok(metadata) = folder.join(&name.name).metadata() else { continue };
            if *was != Some(FileIdentity::of(&metadata)) {
                let message = format!(
                    "cannot read `{}`: it changed after the checkpoint was opened",
                    folder.join(&name.name).display()
                );
                let hint = Some("open the checkpoint again".to_owned());
                return Err(Raise::from(CallError { kind: CallErrorKind::Operational, message, hint }).into());
            }
        }
        Ok(())
    }

    fn read_parts(
        &self,
        py: Python<'_>,
        requests: Vec<ReadRequest<'_>>,
        progress: &Progress,
    ) -> PyResult<()> {
        let total: usize = requests.iter().map(|request| request.into.len()).sum();
        let is_local = self.source.storage.folder().is_some();
        let options = ReadOptions { threads: (is_local && total < SMALL).then_some(1), ..Default::default() };
        let work = || read(&self.source, requests, &options, progress).map(drop).map_err(Raise::from);
        match is_local && total < SMALL {
            // Not worth a thread.
            true => py.detach(work)?,
            false => interruptible(py, &progress.cancel, work)??,
        }
        Ok(())
    }

    /// The file, offset and length of a part of a local file that holds exactly its elements,
    /// aligned for their dtype.
    fn in_file(&self, part: &Part<'_>) -> Option<(usize, u64, usize)> {
        let length = part.length();
        if part.dtype != part.entry.dtype || length < MAPPED_FROM || self.identities.is_empty() {
            return None;
        }
        let (file, offset) = part.entry.contiguous_location(&part.region)?;
        offset.is_multiple_of(part.dtype.size() as u64).then_some((file.0 as usize, offset, length))
    }

    /// Maps bytes of a file, unless another one has taken its place: that one is not what the
    /// headers described.
    fn map(&self, file: usize, offset: u64, length: usize) -> Option<Arc<PrivateMap>> {
        let name: &Path = self.source.index.files().get(file)?.name.as_ref();
        let opened = File::open(self.source.storage.folder()?.join(name)).ok()?;
        let identity = FileIdentity::of(&opened.metadata().ok()?);
        if self.identities.get(file).copied().flatten() != Some(identity) {
            return None;
        }
        PrivateMap::new(&opened, offset, length).ok().map(Arc::new)
    }

    /// Maps parts that have no byte in common. Who writes to one must not change another.
    fn map_parts<'a>(&self, parts: &[Part<'a>]) -> BTreeMap<&'a str, Buffer> {
        let mut by_file: BTreeMap<usize, Vec<(u64, usize, &'a str)>> = BTreeMap::new();
        for part in parts {
            if let Some((file, offset, length)) = self.in_file(part) {
                by_file.entry(file).or_default().push((offset, length, part.name));
            }
        }
        let mut buffers = BTreeMap::new();
        for (file, mut places) in by_file {
            places.sort_unstable();
            let mut end = 0;
            places.retain(|&(offset, length, _)| {
                let is_apart = offset >= end;
                end = end.max(offset + length as u64);
                is_apart
            });
            let Some(&(first, ..)) = places.first() else { continue };
            let end = places.last().map_or(first, |&(offset, length, _)| offset + length as u64);
            let Some(map) = self.map(file, first, (end - first) as usize) else { continue };
            for (offset, length, name) in places {
                if let Some(buffer) = Buffer::of_map(Arc::clone(&map), (offset - first) as usize, length) {
                    buffers.insert(name, buffer);
                }
            }
        }
        buffers
    }
}
