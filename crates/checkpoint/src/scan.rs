//! Scans of whole tensors, chunk by chunk, on many threads and in little memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use weightloom_layout::{DType, Region};

use crate::error::CheckpointError;
use crate::formats::Source;
use crate::index::TensorEntry;
use crate::observer::Observer;
use crate::read::{Order, ReadOptions, ReadRequest, order, read};

/// Bytes of a chunk, about.
const CHUNK: usize = 4 << 20;

/// A tensor to scan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScannedTensor<'a> {
    pub(crate) name: &'a str,
    pub(crate) entry: &'a TensorEntry,
    /// The dtype to read it as.
    pub(crate) dtype: DType,
}

/// Contiguous elements of a tensor.
#[derive(Debug)]
pub(crate) struct TensorChunk<'a> {
    pub(crate) tensor: ScannedTensor<'a>,
    pub(crate) region: &'a Region,
    /// The number of its first element.
    pub(crate) position: u64,
    pub(crate) bytes: &'a [u8],
}

/// The order of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScanOrder {
    /// Any order, from several threads at once.
    Any,
    /// Tensor by tensor, each from its first element to its last.
    Sequential,
}

/// Reads tensors and calls `each` with their chunks.
pub(crate) fn scan<'a>(
    source: &Source,
    tensors: impl IntoIterator<Item = ScannedTensor<'a>>,
    turns: ScanOrder,
    work: &str,
    observer: &dyn Observer,
    each: impl Fn(&TensorChunk<'_>) -> Result<(), CheckpointError> + Sync,
) -> Result<(), CheckpointError> {
    let tensors: Vec<ScannedTensor<'a>> = tensors.into_iter().collect();
    let bytes = |tensor: &ScannedTensor<'_>| tensor.entry.shape.volume() as u64 * tensor.dtype.size() as u64;
    observer.begin(work, tensors.iter().map(bytes).fold(0, u64::saturating_add));
    let threads = match (turns, source.storage.folder()) {
        (ScanOrder::Sequential, _) => 1,
        (ScanOrder::Any, Some(_)) => std::thread::available_parallelism().map_or(1, usize::from),
        (ScanOrder::Any, None) => 8,
    };
    let rest = Mutex::new(TensorChunks::new(tensors));
    let failed = AtomicBool::new(false);
    let failure = Mutex::new(None);
    let options = ReadOptions { threads: Some(1), ..ReadOptions::default() };
    let one = |(tensor, region): &(ScannedTensor<'a>, Region), buffer: &mut Vec<u8>| {
        if observer.is_cancelled() {
            return Err(CheckpointError::Cancelled);
        }
        buffer.resize(region.volume() * tensor.dtype.size(), 0);
        let (name, entry, dtype) = (tensor.name, tensor.entry, tensor.dtype);
        let want = ReadRequest { name, entry, dtype, region: region.clone(), into: buffer };
        read(source, vec![want], &options, &())?;
        let strides = entry.shape.strides();
        let position = region.start().iter().zip(strides).map(|(a, b)| (a * b) as u64).sum();
        each(&TensorChunk { tensor: *tensor, region, position, bytes: buffer })
    };
    let next = || rest.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        let mut buffer = Vec::new();
        while let (false, Some(chunk)) = (failed.load(Ordering::Relaxed), next()) {
            if let Err(error) = one(&chunk, &mut buffer) {
                failed.store(true, Ordering::Relaxed);
                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                return;
            }
            observer.advance(buffer.len() as u64);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// The chunks of tensors, split lazily: a few bytes of a file may claim to be
/// very many elements.
struct TensorChunks<'a> {
    tensors: std::vec::IntoIter<ScannedTensor<'a>>,
    /// Regions still to be split, the next one last.
    open: Vec<(ScannedTensor<'a>, Region)>,
}

impl<'a> TensorChunks<'a> {
    fn new(tensors: Vec<ScannedTensor<'a>>) -> Self {
        Self { tensors: tensors.into_iter(), open: Vec::new() }
    }
}

impl<'a> Iterator for TensorChunks<'a> {
    type Item = (ScannedTensor<'a>, Region);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Some((tensor, region)) = self.open.pop() else {
                let tensor = self.tensors.next()?;
                self.open.push((tensor, Region::whole(&tensor.entry.shape)));
                continue;
            };
            // A tensor stored in another order is read once, as a whole.
            let whole = tensor.entry.tiles.iter().any(|tile| order(tile) == Order::Other);
            let bytes = region.volume() * tensor.dtype.size();
            if bytes == 0 {
                continue;
            }
            let dim = region.size().iter().position(|&size| size > 1);
            let Some(dim) = dim.filter(|_| bytes > CHUNK && !whole) else {
                return Some((tensor, region));
            };
            let range = region.range(dim);
            let middle = range.start + range.len().div_ceil(2);
            self.open.push((tensor, region.with_range(dim, middle..range.end)));
            self.open.push((tensor, region.with_range(dim, range.start..middle)));
        }
    }
}
