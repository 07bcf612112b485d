//! Loads into state dicts, on one process or many.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;

use pyo3::prelude::*;
use weightloom::checkpoint::plan::{LoadState, UnexpectedKeys};
use weightloom::checkpoint::{LoadOptions, Section, Source, load};
use weightloom::gang::GangExt;
use weightloom::layout::ReduceOp;

use crate::checkpoint::Checkpoint;
use crate::errors::Raise;
use crate::gang::Gang;
use crate::interruption::interruptible;
use crate::memory::PyMemory;
use crate::progress::Progress;
use crate::state::TensorShard;

/// Bytes read, received from other ranks, and compared with checksums; stored values by
/// name.
type Loaded = (u64, u64, u64, BTreeMap<String, Vec<u8>>);

/// Loads parts of tensors into memory of Python, and returns the values. Every rank of the
/// gang calls this.
#[pyfunction]
#[pyo3(signature = (gang, checkpoint, tensors, values, progress=None))]
pub(crate) fn load_state(
    py: Python<'_>,
    gang: &Bound<'_, Gang>,
    checkpoint: &Bound<'_, Checkpoint>,
    tensors: Vec<TensorShard<'_>>,
    values: Vec<String>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Loaded> {
    let (gang, source) = (&*gang.get().engine, checkpoint.get().source(py)?);
    let specs = tensors.iter().map(TensorShard::spec).collect::<PyResult<Vec<_>>>()?;
    let mut memory = tensors
        .iter()
        .map(|tensor| tensor.memory.as_ref().map(PyMemory::writable).transpose())
        .collect::<PyResult<Vec<_>>>()?;
    let mut bytes: Vec<Vec<u8>> = vec![Vec::new(); values.len()];
    let mut state = LoadState::new();
    for ((tensor, spec), memory) in tensors.iter().zip(specs).zip(&mut memory) {
        let into = memory.as_mut().map_or(&mut [][..], PyMemory::bytes_mut);
        state.tensor(&tensor.name, spec, into);
    }
    for (name, into) in values.iter().zip(&mut bytes) {
        state.bytes(name, into);
    }
    let options = LoadOptions { unexpected: UnexpectedKeys::Ignore, ..LoadOptions::default() };
    let progress = Progress::new(progress);
    let loaded = interruptible(py, &progress.cancel, || load(source, state, gang, &options, &progress))?;
    let report = loaded.map_err(Raise::from)?;
    let found = values.into_iter().zip(bytes);
    // Values are JSON, which is never empty: what is has not been found.
    let found = found.filter(|(_, bytes)| !bytes.is_empty()).collect();
    Ok((report.read.delivered, report.received, report.verified, found))
}

/// The tensors of the stored model that no rank has among its names. Every rank of the gang
/// calls this.
#[pyfunction]
pub(crate) fn unread_tensors(
    py: Python<'_>,
    gang: &Bound<'_, Gang>,
    checkpoint: &Bound<'_, Checkpoint>,
    names: Vec<String>,
) -> PyResult<Vec<String>> {
    let (gang, source) = (&*gang.get().engine, checkpoint.get().source(py)?);
    let wanted: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let found = interruptible(py, &AtomicBool::new(false), || unread(source, &wanted, gang))?;
    found.map_err(|error| Raise::from(error).into())
}

fn unread(
    source: &Source,
    wanted: &BTreeSet<&str>,
    gang: &dyn weightloom::gang::Gang,
) -> Result<Vec<String>, weightloom::gang::GangError> {
    let is_model = |name: &str| match &source.manifest {
        Some(manifest) => manifest.tensors.get(name).is_some_and(|tensor| tensor.section == Section::Model),
        None => true,
    };
    let stored: Vec<&String> = source.index.tensors().keys().filter(|name| is_model(name)).collect();
    let mut is_wanted: Vec<u8> = stored.iter().map(|name| wanted.contains(name.as_str()).into()).collect();
    gang.all_reduce(&mut is_wanted, ReduceOp::Max)?;
    let unread = stored.into_iter().zip(is_wanted).filter(|(_, is_wanted)| *is_wanted == 0);
    Ok(unread.map(|(name, _)| name.clone()).collect())
}
