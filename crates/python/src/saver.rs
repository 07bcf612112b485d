//! Saves of state dicts, from one process or many.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use pyo3::prelude::*;
use weightloom::checkpoint::{self, Bytes, LocalTensor, PathSegment, SaveFormat, SaveOptions, State, Target};

use crate::errors::{Raise, wrong};
use crate::forked::is_of_this_process;
use crate::gang::Gang;
use crate::interruption::interruptible;
use crate::memory::PyMemory;
use crate::progress::Progress;
use crate::replicas::check_replicas;
use crate::state::{PyDeviceBytes, TensorShard, Value};

/// Saves state dicts, one at a time.
#[pyclass(frozen, module = "weightloom._weightloom")]
pub(crate) struct Saver {
    gang: Arc<dyn weightloom::gang::Gang>,
    saver: Arc<Mutex<checkpoint::Saver>>,
    /// The process that made it.
    process: u32,
}

impl Drop for Saver {
    fn drop(&mut self) {
        if !is_of_this_process(self.process) {
            std::mem::forget((Arc::clone(&self.gang), Arc::clone(&self.saver)));
        }
    }
}

/// How often a wait looks for its end.
const TICK: Duration = Duration::from_millis(2);

/// What is saved beside the entries, and how.
#[derive(FromPyObject)]
struct Request {
    target: String,
    format: String,
    step: Option<u64>,
    assets: BTreeMap<String, Vec<u8>>,
    /// The paths of nested entries: keys, indices, and `None` at the end of an empty one.
    paths: BTreeMap<String, Vec<Option<Segment>>>,
    shard_size: u64,
    /// The most memory for copies of a background save; chosen if it is absent.
    budget: Option<u64>,
}

#[derive(FromPyObject)]
enum Segment {
    Index(usize),
    Key(String),
}

/// What a save returns to Python: fingerprints, bytes of this rank, seconds of stall and in
/// all.
type Report = (String, String, u64, f64, f64);

fn report(report: &checkpoint::SaveReport) -> Report {
    let (stall, total) = (report.stall.as_secs_f64(), report.total.as_secs_f64());
    (report.fingerprint.to_string(), report.model.to_string(), report.bytes, stall, total)
}

impl Request {
    fn target(&self) -> PyResult<Target> {
        Ok(Target::parse(&self.target).map_err(Raise::from)?)
    }

    /// The options, for a saver that keeps this much memory for copies.
    fn options(&self, kept: u64) -> PyResult<SaveOptions> {
        let format = match self.format.as_str() {
            "native" => SaveFormat::Native,
            "hf" => SaveFormat::HuggingFace,
            "dcp" => SaveFormat::Dcp,
            "peft" => SaveFormat::Peft,
            other => {
                let message = format!("cannot save in the format `{other}`");
                return Err(wrong(message, "use `native`, `hf`, `dcp` or `peft`"));
            }
        };
        let segment = |segment: &Option<Segment>| match segment {
            Some(Segment::Index(index)) => PathSegment::Index(*index),
            Some(Segment::Key(key)) => PathSegment::Key(key.clone()),
            None => PathSegment::Empty,
        };
        let paths = self.paths.iter();
        let paths = paths.map(|(name, path)| (name.clone(), path.iter().map(segment).collect())).collect();
        let mut options = SaveOptions {
            format,
            step: self.step,
            assets: self.assets.clone(),
            shard_size: self.shard_size,
            paths,
            ..SaveOptions::default()
        };
        options.budget = self.budget.unwrap_or_else(|| background_budget(options.budget).max(kept));
        Ok(options)
    }
}

/// Half of the memory that is free: the training continues meanwhile. Ranks of one machine
/// share it, and as far as it does not suffice, a save writes before it returns.
fn background_budget(least: u64) -> u64 {
    weightloom::machine::memory().map_or(least, |memory| memory.available / 2)
}

/// The memory of entries, for as long as a save reads it.
struct Held<'py> {
    tensors: Vec<TensorShard<'py>>,
    memory: Vec<Option<PyMemory>>,
    values: Vec<Value>,
}

impl<'py> Held<'py> {
    fn new(tensors: Vec<TensorShard<'py>>, values: Vec<Value>) -> PyResult<Self> {
        let memory = tensors.iter().map(|tensor| tensor.memory.as_ref().map(PyMemory::of).transpose());
        let memory = memory.collect::<PyResult<_>>()?;
        Ok(Self { tensors, memory, values })
    }

    fn state(&self) -> PyResult<State<'_>> {
        let mut state = State::new();
        for (tensor, memory) in self.tensors.iter().zip(&self.memory) {
            let bytes = match (memory, &tensor.device) {
                (Some(memory), _) => Bytes::Borrowed(memory.bytes()),
                (None, Some(device)) => Bytes::Device(PyDeviceBytes::shared(device)?),
                (None, None) => Bytes::Borrowed(&[]),
            };
            let value = checkpoint::LeafValue::Tensor(LocalTensor { spec: tensor.spec()?, bytes });
            state.insert(&tensor.name, checkpoint::Leaf { section: tensor.section(), value });
        }
        for Value { name, bytes } in &self.values {
            state.bytes(name, bytes);
        }
        Ok(state)
    }

    /// Tensors that ranks compare, with their bytes.
    fn compared(&self) -> Vec<(&str, &[u8])> {
        let pairs = self.tensors.iter().zip(&self.memory);
        pairs
            .filter(|(tensor, _)| tensor.compared)
            .filter_map(|(tensor, memory)| Some((tensor.name.as_str(), memory.as_ref()?.bytes())))
            .collect()
    }
}

impl Saver {
    /// Locks the saver for one call; another thread of this process may be in one.
    fn lock(&self) -> PyResult<MutexGuard<'_, checkpoint::Saver>> {
        match self.saver.try_lock() {
            Ok(saver) => Ok(saver),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(wrong(
                "another thread is saving with the same process group",
                "save from one thread at a time, or give each its own process group",
            )),
        }
    }
}

#[pymethods]
impl Saver {
    /// Every rank of the gang calls this.
    #[new]
    fn new(py: Python<'_>, gang: &Bound<'_, Gang>) -> PyResult<Self> {
        let gang = Arc::clone(&gang.get().engine);
        let saver = py.detach(|| checkpoint::Saver::new(Arc::clone(&gang))).map_err(Raise::from)?;
        Ok(Self { gang, saver: Arc::new(Mutex::new(saver)), process: std::process::id() })
    }

    /// Saves, and waits. Every rank of the gang calls this.
    #[pyo3(signature = (tensors, values, request, progress=None))]
    fn save(
        &self,
        py: Python<'_>,
        tensors: Vec<TensorShard<'_>>,
        values: Vec<Value>,
        request: Request,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Report> {
        let held = Held::new(tensors, values)?;
        let (state, compared) = (held.state()?, held.compared());
        let progress = Progress::new(progress);
        let mut saver = self.lock()?;
        let (target, options) = (request.target()?, request.options(saver.kept_memory())?);
        let (gang, saver) = (&self.gang, &mut *saver);
        let saved = interruptible(py, &progress.cancel, || -> Result<_, Raise> {
            check_replicas(&compared, &**gang)?;
            Ok(saver.save(&state, &target, &options, &progress)?)
        })?;
        Ok(report(&saved?))
    }

    /// Copies what is saved, and writes it in the background. Returns the seconds that it
    /// took to copy. Every rank of the gang calls this.
    #[pyo3(signature = (tensors, values, request, progress=None))]
    fn save_async(
        &self,
        py: Python<'_>,
        tensors: Vec<TensorShard<'_>>,
        values: Vec<Value>,
        request: Request,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<f64> {
        let held = Held::new(tensors, values)?;
        let (state, compared) = (held.state()?, held.compared());
        let progress = Arc::new(Progress::new(progress));
        let mut saver = self.lock()?;
        let (target, options) = (request.target()?, request.options(saver.kept_memory())?);
        let (gang, saver) = (&self.gang, &mut *saver);
        let (cancel, observer) = (Arc::clone(&progress.cancel), Arc::clone(&progress));
        let stall = interruptible(py, &cancel, || -> Result<_, Raise> {
            check_replicas(&compared, &**gang)?;
            Ok(saver.save_async(&state, &target, &options, observer)?)
        })?;
        Ok(stall?.as_secs_f64())
    }

    /// Waits for the background save, if there is one. Every rank of the gang calls this.
    fn wait(&self, py: Python<'_>) -> PyResult<Option<Report>> {
        let mut saver = self.lock()?;
        let saver = &mut *saver;
        // Ctrl-C ends the wait and leaves the outcome for the next one.
        while saver.is_saving() {
            py.detach(|| std::thread::sleep(TICK));
            py.check_signals()?;
        }
        let waited = py.detach(|| saver.wait());
        Ok(waited.map_err(Raise::from)?.as_ref().map(report))
    }

    /// Whether a background save is running.
    fn is_saving(&self) -> PyResult<bool> {
        Ok(self.lock()?.is_saving())
    }
}
