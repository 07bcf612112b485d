//! Going through all elements of tensors, a stretch at a time, on many
//! threads and in little memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use shardloom_layout::{DType, Region};

use crate::error::CheckpointError;
use crate::formats::Source;
use crate::index::TensorEntry;
use crate::observer::Observer;
use crate::read::{Order, ReadOptions, Want, order, read};

/// Bytes of a stretch, about.
const STRETCH: usize = 4 << 20;

/// A tensor to go through.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walked<'a> {
    pub(crate) name: &'a str,
    pub(crate) entry: &'a TensorEntry,
    /// As which type.
    pub(crate) dtype: DType,
}

/// A stretch of a tensor: elements that follow one another in it.
#[derive(Debug)]
pub(crate) struct Stretch<'a> {
    pub(crate) tensor: Walked<'a>,
    pub(crate) region: &'a Region,
    /// The number of the first element.
    pub(crate) position: u64,
    pub(crate) bytes: &'a [u8],
}

/// Reads tensors and hands out their elements. Stretches come in any order.
pub(crate) fn walk<'a>(
    source: &Source,
    tensors: impl IntoIterator<Item = Walked<'a>>,
    work: &str,
    observer: &dyn Observer,
    each: impl Fn(&Stretch<'_>) -> Result<(), CheckpointError> + Sync,
) -> Result<(), CheckpointError> {
    let mut stretches = Vec::new();
    let mut total = 0;
    for tensor in tensors {
        total += tensor.entry.shape.volume() as u64 * tensor.dtype.size() as u64;
        // A tensor that lies in another order is read once, as a whole.
        let whole = tensor.entry.tiles.iter().any(|tile| order(tile) == Order::Other);
        let most = if whole { usize::MAX } else { STRETCH };
        split(tensor, Region::whole(&tensor.entry.shape), most, &mut stretches);
    }
    observer.begin(work, total);
    let threads = match source.storage.folder() {
        Some(_) => std::thread::available_parallelism().map_or(1, usize::from),
        None => 8,
    };
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    let options = ReadOptions { threads: Some(1), ..ReadOptions::default() };
    let one = |(tensor, region): &(Walked<'a>, Region), buffer: &mut Vec<u8>| {
        buffer.resize(region.volume() * tensor.dtype.size(), 0);
        let (name, entry, dtype) = (tensor.name, tensor.entry, tensor.dtype);
        let want = Want { name, entry, dtype, region: region.clone(), into: buffer };
        read(source, vec![want], &options, &())?;
        let strides = entry.shape.strides();
        let position = region.start().iter().zip(strides).map(|(a, b)| (a * b) as u64).sum();
        each(&Stretch { tensor: *tensor, region, position, bytes: buffer })
    };
    let work = || {
        let mut buffer = Vec::new();
        while let Some(stretch) = stretches.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = one(stretch, &mut buffer) {
                next.store(stretches.len(), Ordering::Relaxed);
                failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                return;
            }
            observer.advance(buffer.len() as u64);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(stretches.len()) {
            scope.spawn(work);
        }
        work();
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}

/// Cuts a region into boxes that are stretches of the whole tensor.
fn split<'a>(tensor: Walked<'a>, region: Region, most: usize, into: &mut Vec<(Walked<'a>, Region)>) {
    let bytes = region.volume() * tensor.dtype.size();
    let dim = region.size().iter().position(|&size| size > 1);
    let (Some(dim), true) = (dim, bytes > most) else {
        if bytes > 0 {
            into.push((tensor, region));
        }
        return;
    };
    let range = region.range(dim);
    let steps = (most / (bytes / range.len())).max(1);
    for start in range.clone().step_by(steps) {
        let part = region.with_range(dim, start..(start + steps).min(range.end));
        split(tensor, part, most, into);
    }
}
