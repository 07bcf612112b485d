//! What differs between two checkpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use weightloom_layout::{DType, Shape};

use crate::cast::cast;
use crate::error::CheckpointError;
use crate::formats::Source;
use crate::observer::Observer;
use crate::read::{ReadOptions, ReadRequest, read};
use crate::scan::{ScanOrder, ScannedTensor, scan};

/// What differs between two checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Comparison {
    /// Only in the first.
    pub only_first: Vec<String>,
    /// Only in the second.
    pub only_second: Vec<String>,
    /// In both.
    pub both: BTreeMap<String, Difference>,
    /// Entries other than tensors that differ; empty if one of the checkpoints
    /// has none.
    pub other: Vec<String>,
}

/// How two tensors of one name differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "difference", rename_all = "snake_case")]
pub enum Difference {
    /// In nothing: the same bits of the same dtype.
    Identical,
    /// In shape, so that values cannot be compared.
    Shape {
        /// The first one's.
        first: Shape,
        /// The second one's.
        second: Shape,
    },
    /// In values or dtype.
    Values {
        /// The first one's dtype.
        first: DType,
        /// The second one's.
        second: DType,
        /// Elements that differ as numbers.
        different: u64,
        /// The greatest difference; infinite if one has a number where the
        /// other has none.
        max_abs: f64,
        /// The greatest difference as a share of the larger of both.
        max_rel: f64,
    },
}

impl Comparison {
    /// Whether nothing differs.
    pub fn is_identical(&self) -> bool {
        self.only_first.is_empty()
            && self.only_second.is_empty()
            && self.other.is_empty()
            && self.both.values().all(|difference| *difference == Difference::Identical)
    }
}

#[derive(Clone, Copy, Default)]
struct Distance {
    different: u64,
    max_abs: f64,
    max_rel: f64,
    /// Bits that differ, though numbers may not: zeros of two signs.
    bits: u64,
}

impl Distance {
    fn add(&mut self, a: f64, b: f64) {
        if a == b || a.is_nan() && b.is_nan() {
            return;
        }
        let apart = (a - b).abs();
        let apart = if apart.is_nan() { f64::INFINITY } else { apart };
        let scale = a.abs().max(b.abs());
        let share = if apart.is_infinite() { f64::INFINITY } else { apart / scale };
        self.different += 1;
        self.max_abs = self.max_abs.max(apart);
        self.max_rel = self.max_rel.max(share);
    }

    fn join(&mut self, other: Self) {
        self.different += other.different;
        self.bits += other.bits;
        self.max_abs = self.max_abs.max(other.max_abs);
        self.max_rel = self.max_rel.max(other.max_rel);
    }
}

/// Compares every element of every tensor that both have.
pub fn compare(
    first: &Source,
    second: &Source,
    observer: &dyn Observer,
) -> Result<Comparison, CheckpointError> {
    let mut found = Comparison::default();
    let (left, right) = (first.index.tensors(), second.index.tensors());
    found.only_first = left.keys().filter(|name| !right.contains_key(*name)).cloned().collect();
    found.only_second = right.keys().filter(|name| !left.contains_key(*name)).cloned().collect();
    let mut same_shape = Vec::new();
    for (name, entry) in left {
        let Some(other) = right.get(name) else { continue };
        if entry.shape == other.shape {
            same_shape.push(ScannedTensor { name, entry, dtype: entry.dtype });
        } else {
            let (first, second) = (entry.shape.clone(), other.shape.clone());
            found.both.insert(name.clone(), Difference::Shape { first, second });
        }
    }
    let distances: Mutex<BTreeMap<String, Distance>> =
        Mutex::new(same_shape.iter().map(|tensor| (tensor.name.to_owned(), Distance::default())).collect());
    let options = ReadOptions { threads: Some(1), ..ReadOptions::default() };
    scan(first, same_shape, ScanOrder::Any, "comparing", observer, |chunk| {
        let name = chunk.tensor.name;
        let Some(entry) = right.get(name) else { return Ok(()) };
        let mut theirs = vec![0; chunk.region.volume() * entry.dtype.size()];
        let (region, dtype) = (chunk.region.clone(), entry.dtype);
        read(second, vec![ReadRequest { name, entry, dtype, region, into: &mut theirs }], &options, &())?;
        let mut distance = Distance::default();
        if dtype != chunk.tensor.dtype || theirs != chunk.bytes {
            distance.bits = 1;
            let (a, b) = (wide(chunk.tensor.dtype, chunk.bytes), wide(dtype, &theirs));
            a.iter().zip(&b).for_each(|(&a, &b)| distance.add(a, b));
        }
        let mut distances = distances.lock().unwrap_or_else(PoisonError::into_inner);
        distances.entry(name.to_owned()).or_default().join(distance);
        Ok(())
    })?;
    for (name, distance) in distances.into_inner().unwrap_or_else(PoisonError::into_inner) {
        let (first, second) = (left[&name].dtype, right[&name].dtype);
        let Distance { different, max_abs, max_rel, bits } = distance;
        let difference = match bits {
            0 if first == second => Difference::Identical,
            _ => Difference::Values { first, second, different, max_abs, max_rel },
        };
        found.both.insert(name, difference);
    }
    // Plain models have no room for anything but tensors, and are compared
    // with what has as far as they go.
    let both = [first, second].iter().all(|source| source.index.values().next().is_some());
    let names: BTreeSet<&String> = first.index.values().chain(second.index.values()).collect();
    for name in names.into_iter().filter(|_| both) {
        if first.read_bytes(name)? != second.read_bytes(name)? {
            found.other.push(name.clone());
        }
    }
    Ok(found)
}

fn wide(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let mut wide = vec![0.0; bytes.len() / dtype.size()];
    cast(dtype, bytes, DType::F64, bytemuck::cast_slice_mut(&mut wide));
    wide
}
