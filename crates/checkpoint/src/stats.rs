//! Statistics and fingerprints of tensors.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use crate::cast::for_each_f64;
use crate::chunk_sums::{ChunkSums, TensorChecksums, chunk_size_for};
use crate::error::CheckpointError;
use crate::fingerprint::Fingerprint;
use crate::formats::Source;
use crate::observer::Observer;
use crate::scan::{ScanOrder, ScannedTensor, scan};

/// Statistics of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TensorStats {
    /// The minimum, ignoring NaN; `None` if there is no other element.
    pub min: Option<f64>,
    /// The maximum, ignoring NaN.
    pub max: Option<f64>,
    /// The mean of the finite elements.
    pub mean: Option<f64>,
    /// Number of NaN elements.
    pub nan: u64,
    /// Number of infinite elements.
    pub infinite: u64,
    /// Number of zeros.
    pub zero: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    min: Option<f64>,
    max: Option<f64>,
    sum: f64,
    finite: u64,
    nan: u64,
    infinite: u64,
    zero: u64,
}

impl Tally {
    fn add(&mut self, x: f64) {
        if x.is_nan() {
            self.nan += 1;
            return;
        }
        self.min = Some(self.min.map_or(x, |min| min.min(x)));
        self.max = Some(self.max.map_or(x, |max| max.max(x)));
        self.infinite += u64::from(x.is_infinite());
        self.zero += u64::from(x == 0.0);
        if x.is_finite() {
            self.sum += x;
            self.finite += 1;
        }
    }

    fn join(&mut self, other: Self) {
        let pick = |a: Option<f64>, b: Option<f64>, choose: fn(f64, f64) -> f64| match (a, b) {
            (Some(a), Some(b)) => Some(choose(a, b)),
            (a, b) => a.or(b),
        };
        self.min = pick(self.min, other.min, f64::min);
        self.max = pick(self.max, other.max, f64::max);
        self.sum += other.sum;
        self.finite += other.finite;
        self.nan += other.nan;
        self.infinite += other.infinite;
        self.zero += other.zero;
    }

    fn finish(self) -> TensorStats {
        TensorStats {
            min: self.min,
            max: self.max,
            mean: (self.finite > 0).then(|| self.sum / self.finite as f64),
            nan: self.nan,
            infinite: self.infinite,
            zero: self.zero,
        }
    }
}

fn scanned(source: &Source) -> impl Iterator<Item = ScannedTensor<'_>> {
    let tensors = source.index.tensors().iter();
    tensors.map(|(name, entry)| ScannedTensor { name, entry, dtype: entry.dtype })
}

/// Computes statistics of every tensor.
pub fn stats(
    source: &Source,
    observer: &dyn Observer,
) -> Result<BTreeMap<String, TensorStats>, CheckpointError> {
    // By position, so that sums do not depend on the order of threads.
    let parts: Mutex<BTreeMap<(&str, u64), Tally>> = Mutex::default();
    scan(source, scanned(source), ScanOrder::Any, "reading", observer, |chunk| {
        let mut tally = Tally::default();
        for_each_f64(chunk.tensor.dtype, chunk.bytes, |x| tally.add(x));
        let name = source.index.tensors().get_key_value(chunk.tensor.name).map_or("", |(name, _)| name);
        parts.lock().unwrap_or_else(PoisonError::into_inner).insert((name, chunk.position), tally);
        Ok(())
    })?;
    let mut tallies: BTreeMap<String, Tally> =
        source.index.tensors().keys().map(|name| (name.clone(), Tally::default())).collect();
    for ((name, _), tally) in parts.into_inner().unwrap_or_else(PoisonError::into_inner) {
        tallies.entry(name.to_owned()).or_default().join(tally);
    }
    Ok(tallies.into_iter().map(|(name, tally)| (name, tally.finish())).collect())
}

/// The fingerprints of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fingerprints {
    /// The fingerprint of the whole checkpoint.
    pub fingerprint: Fingerprint,
    /// The fingerprint of each tensor.
    pub tensors: BTreeMap<String, Fingerprint>,
}

/// Hashes every element of every tensor.
pub fn fingerprint(source: &Source, observer: &dyn Observer) -> Result<Fingerprints, CheckpointError> {
    let totals = totals(source, chunk_size_for(source.index.bytes()), observer)?;
    let tensors: BTreeMap<String, Fingerprint> =
        totals.into_iter().map(|(name, total)| (name, total.fingerprint)).collect();
    let all = tensors.iter().map(|(name, &fingerprint)| (name.as_str(), fingerprint));
    Ok(Fingerprints { fingerprint: Fingerprint::of_whole(all), tensors })
}

/// The checksums of every tensor, in chunks of `chunk_size` bytes.
pub(crate) fn totals(
    source: &Source,
    stretch: u64,
    observer: &dyn Observer,
) -> Result<BTreeMap<String, TensorChecksums>, CheckpointError> {
    let tensors = source.index.tensors().iter();
    let sums =
        ChunkSums::new(stretch, tensors.map(|(name, entry)| (name.as_str(), entry.dtype, &entry.shape)));
    scan(source, scanned(source), ScanOrder::Any, "reading", observer, |chunk| {
        sums.add_run(chunk.tensor.name, chunk.position, chunk.bytes);
        Ok(())
    })?;
    Ok(sums.totals())
}
