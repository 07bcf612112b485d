//! Checkpoints that are opened: their entries, and reads of parts of tensors.

use std::sync::atomic::AtomicBool;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use weightloom::checkpoint::{
    Fingerprints, ReadOptions, ReadRequest, Source, TensorEntry, fingerprint, read,
};
use weightloom::layout::{DType, Region};
use weightloom::{Folders, Registry};

use crate::errors::{Raise, exception, wrong};
use crate::interruption::interruptible;
use crate::memory::{Buffer, OwnedBytes, PyMemory, map_privately};

/// An opened checkpoint: its entries are known, and no tensor has been read.
#[pyclass(frozen, module = "weightloom._weightloom")]
pub(crate) struct Checkpoint {
    pub(crate) source: Source,
    location: String,
}

/// Opens a checkpoint: a file, folder, run, card, `org/name` or URL.
#[pyfunction]
pub(crate) fn open_checkpoint(py: Python<'_>, name: String) -> PyResult<Checkpoint> {
    let opened = interruptible(py, &AtomicBool::new(false), || -> Result<Source, Raise> {
        let variable = |name: &str| std::env::var(name).ok();
        let hub = Registry::standard().hub(&variable, &Folders::default());
        Ok(hub.locate_checkpoint(&name, &())?.open()?)
    })?;
    Ok(Checkpoint { source: opened?, location: name })
}

/// Name, dtype, shape, bytes once decoded, stored bytes, number of stored parts,
/// quantisation.
type TensorInfo = (String, &'static str, Vec<usize>, u64, u64, usize, Option<String>);

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

fn dtype_of(name: &str) -> PyResult<DType> {
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
    /// Where it is, as it was asked for.
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

    /// The names of entries that are not tensors.
    fn values(&self) -> Vec<String> {
        self.source.index.values().cloned().collect()
    }

    /// An entry that is not a tensor; values that torch pickled are JSON.
    fn value<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let bytes = py.detach(|| self.source.read_bytes(name)).map_err(Raise::from)?;
        Ok(bytes.map(|bytes| PyBytes::new(py, &bytes)))
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
        let region = region_of(entry, name, &start, &size)?;
        let dtype = dtype.map_or(Ok(entry.dtype), dtype_of)?;
        let cancel = AtomicBool::new(false);
        if dtype == entry.dtype
            && let Some(buffer) = py.detach(|| self.mapped(entry, &region))
        {
            return Ok(buffer);
        }
        let mut bytes = OwnedBytes::zeroed(region.volume() * dtype.size());
        interruptible(py, &cancel, || {
            let want = ReadRequest { entry, name, region, dtype, into: bytes.bytes_mut() };
            read(&self.source, vec![want], &ReadOptions::default(), &())
        })?
        .map_err(Raise::from)?;
        Ok(bytes.into())
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
        let region = region_of(entry, name, &start, &size)?;
        let (dtype, mut into) = (dtype_of(dtype)?, PyMemory::writable(into)?);
        interruptible(py, &AtomicBool::new(false), || {
            let want = ReadRequest { entry, name, region, dtype, into: into.bytes_mut() };
            read(&self.source, vec![want], &ReadOptions::default(), &()).map(drop)
        })?
        .map_err(|error| Raise::from(error).into())
    }

    /// The fingerprint of the checkpoint, and those of its tensors. Reads every byte.
    fn fingerprint(&self, py: Python<'_>) -> PyResult<(String, std::collections::BTreeMap<String, String>)> {
        let found = interruptible(py, &AtomicBool::new(false), || fingerprint(&self.source, &()))?;
        let Fingerprints { fingerprint, tensors, .. } = found.map_err(Raise::from)?;
        let tensors = tensors.into_iter().map(|(name, print)| (name, print.to_string())).collect();
        Ok((fingerprint.to_string(), tensors))
    }
}

impl Checkpoint {
    /// A part of a local file that holds exactly the elements, aligned for their dtype.
    fn mapped(&self, entry: &TensorEntry, region: &Region) -> Option<Buffer> {
        let (file, offset) = entry.contiguous_location(region)?;
        let folder = self.source.storage.folder()?;
        let length = region.volume() * entry.dtype.size();
        // A map of nothing is an error, and small reads are cheaper than maps.
        if length < MAPPED_FROM || !offset.is_multiple_of(entry.dtype.size() as u64) {
            return None;
        }
        let map = map_privately(&folder.join(&self.source.index.file(file).name)).ok()?;
        Buffer::of_map(map, usize::try_from(offset).ok()?, length)
    }
}

/// Bytes of a part below which it is read.
const MAPPED_FROM: usize = 64 << 10;
