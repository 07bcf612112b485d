//! Going through all elements of tensors, a stretch at a time, on many
//! threads and in little memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use weightloom_layout::{DType, Region};

use crate::error::CheckpointError;
use crate::formats::Source;
use crate::index::TensorEntry;
use crate::observer::Observer;
use crate::read::{Order, ReadOptions, ReadRequest, order, read};

/// Bytes of a stretch, about.
const STRETCH: usize = 4 << 20;

/// A tensor to go through.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScannedTensor<'a> {
    pub(crate) name: &'a str,
    pub(crate) entry: &'a TensorEntry,
    /// As which type.
    pub(crate) dtype: DType,
}

/// A stretch of a tensor: elements that follow one another in it.
#[derive(Debug)]
pub(crate) struct Stretch<'a> {
    pub(crate) tensor: ScannedTensor<'a>,
    pub(crate) region: &'a Region,
    /// The number of the first element.
    pub(crate) position: u64,
    pub(crate) bytes: &'a [u8],
}

/// In which order stretches come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScanOrder {
    /// Any, from several threads at once.
    Any,
    /// Tensor by tensor, each from its first element to its last.
    Sequential,
}

/// Reads tensors and hands out their elements.
pub(crate) fn walk<'a>(
    source: &Source,
    tensors: impl IntoIterator<Item = ScannedTensor<'a>>,
    turns: ScanOrder,
    work: &str,
    observer: &dyn Observer,
    each: impl Fn(&Stretch<'_>) -> Result<(), CheckpointError> + Sync,
) -> Result<(), CheckpointError> {
    let tensors: Vec<ScannedTensor<'a>> = tensors.into_iter().collect();
    let bytes = |tensor: &ScannedTensor<'_>| tensor.entry.shape.volume() as u64 * tensor.dtype.size() as u64;
    observer.begin(work, tensors.iter().map(bytes).fold(0, u64::saturating_add));
    let threads = match (turns, source.storage.folder()) {
        (ScanOrder::Sequential, _) => 1,
        (ScanOrder::Any, Some(_)) => std::thread::available_parallelism().map_or(1, usize::from),
        (ScanOrder::Any, None) => 8,
    };
    let rest = Mutex::new(Stretches::new(tensors));
    let failed = AtomicBool::new(false);
    let failure = Mutex::new(None);
    let options = ReadOptions { threads: Some(1), ..ReadOptions::default() };
    let one = |(tensor, region): &(ScannedTensor<'a>, Region), buffer: &mut Vec<u8>| {
        buffer.resize(region.volume() * tensor.dtype.size(), 0);
        let (name, entry, dtype) = (tensor.name, tensor.entry, tensor.dtype);
        let want = ReadRequest { name, entry, dtype, region: region.clone(), into: buffer };
        read(source, vec![want], &options, &())?;
        let strides = entry.shape.strides();
        let position = region.start().iter().zip(strides).map(|(a, b)| (a * b) as u64).sum();
        each(&Stretch { tensor: *tensor, region, position, bytes: buffer })
    };
    let next = || rest.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        let mut buffer = Vec::new();
        while let (false, Some(stretch)) = (failed.load(Ordering::Relaxed), next()) {
            if let Err(error) = one(&stretch, &mut buffer) {
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

/// Boxes that are stretches of whole tensors, cut when they are asked for: a
/// few bytes of a file may claim to be very many elements.
struct Stretches<'a> {
    tensors: std::vec::IntoIter<ScannedTensor<'a>>,
    /// What is still to be cut, the next one last.
    open: Vec<(ScannedTensor<'a>, Region)>,
}

impl<'a> Stretches<'a> {
    fn new(tensors: Vec<ScannedTensor<'a>>) -> Self {
        Self { tensors: tensors.into_iter(), open: Vec::new() }
    }
}

impl<'a> Iterator for Stretches<'a> {
    type Item = (ScannedTensor<'a>, Region);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Some((tensor, region)) = self.open.pop() else {
                let tensor = self.tensors.next()?;
                self.open.push((tensor, Region::whole(&tensor.entry.shape)));
                continue;
            };
            // A tensor that lies in another order is read once, as a whole.
            let whole = tensor.entry.tiles.iter().any(|tile| order(tile) == Order::Other);
            let bytes = region.volume() * tensor.dtype.size();
            if bytes == 0 {
                continue;
            }
            let dim = region.size().iter().position(|&size| size > 1);
            let Some(dim) = dim.filter(|_| bytes > STRETCH && !whole) else {
                return Some((tensor, region));
            };
            let range = region.range(dim);
            let middle = range.start + range.len().div_ceil(2);
            self.open.push((tensor, region.with_range(dim, middle..range.end)));
            self.open.push((tensor, region.with_range(dim, range.start..middle)));
        }
    }
}
