//! Entries of state dicts, as the Python half lists them.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use weightloom::checkpoint::{DeviceBytes, DeviceReadError, Parts, Section, Sharding, TensorSpec};
use weightloom::layout::{Layout, Region, Shape};

use crate::checkpoint::dtype_of;
use crate::errors::wrong;
use crate::memory::PyMemory;

/// A rank's part of a tensor.
#[derive(FromPyObject)]
pub(crate) struct TensorShard<'py> {
    pub(crate) name: String,
    section: String,
    dtype: String,
    shape: Vec<usize>,
    local_shape: Vec<usize>,
    /// Offsets in the local tensor, starts in the whole one, sizes.
    parts: Vec<(Vec<usize>, Vec<usize>, Vec<usize>)>,
    layout: Option<String>,
    /// An object with the buffer protocol.
    pub(crate) memory: Option<Bound<'py, PyAny>>,
    /// An object with a length, `read(offset, length)` and `give_back(what was read)`.
    pub(crate) device: Option<Bound<'py, PyAny>>,
    /// Whether ranks compare what they hold.
    pub(crate) compared: bool,
}

/// An entry that is not a tensor.
#[derive(FromPyObject)]
pub(crate) struct Value {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

/// JSON as every format writes it: a DCP checkpoint holds values, not texts. `None` if this is
/// not JSON, as `NaN` is not.
#[pyfunction]
pub(crate) fn compact_json(text: &str) -> Option<String> {
    Some(serde_json::from_str::<serde_json::Value>(text).ok()?.to_string())
}

fn impossible(name: &str, problem: &dyn std::fmt::Display) -> PyErr {
    wrong(format!("cannot save or load `{name}`: {problem}"), "report this with the tensor's placements")
}

impl TensorShard<'_> {
    pub(crate) fn section(&self) -> Section {
        if self.section == "model" { Section::Model } else { Section::Training }
    }

    /// The tensor, and what this rank holds of it.
    pub(crate) fn spec(&self) -> PyResult<TensorSpec> {
        let fail = |problem: &dyn std::fmt::Display| impossible(&self.name, problem);
        let shape = Shape::new(&self.shape).map_err(|error| fail(&error))?;
        let dtype = dtype_of(&self.dtype)?;
        let sharding = match &self.layout {
            Some(layout) => {
                let layout: Layout = layout.parse().map_err(|error| fail(&error))?;
                Sharding::Layout(layout)
            }
            None => self.sharding()?,
        };
        Ok(TensorSpec { dtype, shape, sharding })
    }

    /// The regions of this rank, where no layout says them.
    fn sharding(&self) -> PyResult<Sharding> {
        let region = |start: &[usize], size: &[usize]| {
            Region::new(start, size).map_err(|error| impossible(&self.name, &error))
        };
        if let [(_, start, size)] = self.parts.as_slice()
            && *size == self.local_shape
        {
            return Ok(Sharding::Region(region(start, size)?));
        }
        let parts = self.parts.iter().map(|(local, start, size)| Ok((local.clone(), region(start, size)?)));
        let parts = parts.collect::<PyResult<Vec<_>>>()?;
        // A rank outside of the mesh, or without elements.
        let local = match parts.is_empty() {
            true => vec![0; self.shape.len()],
            false => self.local_shape.clone(),
        };
        let local = Shape::new(&local).map_err(|error| impossible(&self.name, &error))?;
        let parts = Parts::new(local, parts).map_err(|error| impossible(&self.name, &error))?;
        Ok(Sharding::Parts(parts))
    }
}

/// The most bytes of a device that are in pinned memory at once, for each thread that copies.
const STAGED: usize = 8 << 20;

/// Copies bytes through pinned memory, which is given back afterwards.
fn read_piece(object: &Bound<'_, PyAny>, start: usize, into: &mut [u8]) -> PyResult<()> {
    let staged = object.call_method1("read", (start, into.len()))?;
    let read = PyMemory::of(&staged).and_then(|bytes| {
        if bytes.bytes().len() != into.len() {
            let (found, wanted) = (bytes.bytes().len(), into.len());
            return Err(PyValueError::new_err(format!("read {found} bytes instead of {wanted}")));
        }
        into.copy_from_slice(bytes.bytes());
        Ok(())
    });
    object.call_method1("give_back", (staged,))?;
    read
}

/// A tensor in the memory of a device, which Python copies.
pub(crate) struct PyDeviceBytes {
    object: Py<PyAny>,
    length: usize,
}

impl PyDeviceBytes {
    pub(crate) fn shared(object: &Bound<'_, PyAny>) -> PyResult<Arc<dyn DeviceBytes>> {
        Ok(Arc::new(Self { length: object.len()?, object: object.clone().unbind() }))
    }
}

impl DeviceBytes for PyDeviceBytes {
    fn len(&self) -> usize {
        self.length
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), DeviceReadError> {
        let mut start = offset;
        for piece in into.chunks_mut(STAGED) {
            let read = Python::try_attach(|py| read_piece(self.object.bind(py), start, piece));
            let ended = || DeviceReadError { message: "the Python program is ending".to_owned() };
            let read = read.ok_or_else(ended)?;
            read.map_err(|error| DeviceReadError { message: error.to_string() })?;
            start += piece.len();
        }
        Ok(())
    }
}
