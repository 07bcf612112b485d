//! Comparison of elements with their checksums.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use weightloom_gang::{Gang, GangError};

use crate::chunk_sums::ChunkSums;
use crate::collective_result;
use crate::error::CheckpointError;
use crate::formats::Source;
use crate::index::Index;
use crate::manifest::{EntryKind, MANIFEST_FILE, Manifest, ManifestTensor, digest_of};
use crate::observer::Observer;
use crate::state::Section;
use crate::stats::totals;

/// A chunk of a tensor whose elements differ from those saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedChunk {
    /// The tensor.
    pub tensor: String,
    /// Its first element.
    pub start: u64,
    /// One past its last.
    pub end: u64,
}

/// All damaged chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The chunks.
    pub chunks: Vec<DamagedChunk>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        let count = self.chunks.len();
        let plural = if count == 1 { "" } else { "s" };
        write!(f, "the checkpoint is damaged in {count} chunk{plural}:")?;
        for chunk in self.chunks.iter().take(SHOWN) {
            write!(f, "\n  `{}`, elements {}..{}", chunk.tensor, chunk.start, chunk.end)?;
        }
        match self.chunks.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

/// Outcome of a comparison.
#[derive(Clone, Debug, Default)]
pub(crate) struct Checked {
    /// Bytes that were compared.
    pub(crate) bytes: u64,
    pub(crate) damage: Vec<DamagedChunk>,
}

/// Compares sums with those of the manifest. Every rank.
///
/// A chunk that this rank holds whole is compared by itself. Where the ranks
/// together hold a known number of copies of a tensor, their combined sums are
/// compared, which covers shards of any shape.
pub(crate) fn check_sums(
    manifest: &Manifest,
    sums: ChunkSums,
    copies: &BTreeMap<String, u64>,
    gang: &dyn Gang,
) -> Result<Checked, GangError> {
    let own = sums.counted();
    sums.combine(gang)?;
    let all = sums.counted();
    let mut checked = Checked::default();
    for (name, tensor) in manifest.tensors.iter().filter(|(_, tensor)| tensor.kind == EntryKind::Tensor) {
        let (Some(own), Some(all)) = (own.get(name), all.get(name)) else { continue };
        let Ok(expected) = tensor.checksums(name, manifest.chunk_size) else { continue };
        let elements = (manifest.chunk_size / tensor.dtype.size() as u64).max(1);
        for (number, &expected) in expected.iter().enumerate() {
            let start = number as u64 * elements;
            let end = (start + elements).min(tensor.shape.volume() as u64);
            let length = end - start;
            let (own, all) = (own[number], all[number]);
            let replicas = copies.get(name).copied().filter(|copies| all.count == copies * length);
            let wrong = match replicas {
                Some(copies) => expected.wrapping_mul(copies) != all.low,
                None if own.count == length => expected != own.low,
                None => continue,
            };
            checked.bytes += length * tensor.dtype.size() as u64;
            if wrong {
                checked.damage.push(DamagedChunk { tensor: name.clone(), start, end });
            }
        }
    }
    Ok(checked)
}

/// Outcome of verifying a whole checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Number of tensors.
    pub tensors: usize,
    /// Bytes of the tensors.
    pub bytes: u64,
    /// Whether the checkpoint has checksums, and every byte was compared with
    /// them. Without, everything can be read, and the files are as long as
    /// they claim.
    pub has_checksums: bool,
}

/// Reads all of a checkpoint and compares it with its checksums.
pub fn verify(source: &Source, observer: &dyn Observer) -> Result<VerifyReport, CheckpointError> {
    let stretch = source.manifest.as_ref().map_or(1 << 30, |manifest| manifest.chunk_size);
    let totals = totals(source, stretch, observer)?;
    let mut verified =
        VerifyReport { tensors: totals.len(), bytes: source.index.bytes(), has_checksums: false };
    let Some(manifest) = &source.manifest else { return Ok(verified) };
    verified.has_checksums = true;
    let mut damage = Vec::new();
    for (name, tensor) in &manifest.tensors {
        if tensor.kind == EntryKind::Bytes {
            source.read_bytes(name)?;
            continue;
        }
        let expected = tensor
            .checksums(name, manifest.chunk_size)
            .map_err(|error| CheckpointError::format(MANIFEST_FILE, error))?;
        let elements = (manifest.chunk_size / tensor.dtype.size() as u64).max(1);
        let found = totals.get(name);
        for (number, expected) in expected.iter().enumerate() {
            let start = number as u64 * elements;
            let end = (start + elements).min(tensor.shape.volume() as u64);
            if found.is_none_or(|found| found.chunks.get(number) != Some(expected)) {
                damage.push(DamagedChunk { tensor: name.clone(), start, end });
            }
        }
        // Right chunks with a wrong fingerprint mean that the manifest is wrong.
        if damage.is_empty() && found.is_none_or(|found| found.fingerprint != tensor.fingerprint) {
            damage.push(DamagedChunk { tensor: name.clone(), start: 0, end: tensor.shape.volume() as u64 });
        }
    }
    for (name, asset) in &manifest.assets {
        let bytes = source.storage.read_all(name, asset.length.max(1))?;
        if digest_of(&bytes) != asset.digest {
            return Err(CheckpointError::DamagedBytes { name: name.clone() });
        }
    }
    match damage.as_slice() {
        [] => Ok(verified),
        _ => Err(CheckpointError::Damaged(Damage { chunks: damage })),
    }
}

/// Compares the model's tensors with their checksums, if there are any, each on one
/// of the ranks. Every rank of the gang.
pub fn verify_model(
    source: &Source,
    gang: &dyn Gang,
    observer: &dyn Observer,
) -> Result<(), CheckpointError> {
    let Some(manifest) = &source.manifest else { return Ok(()) };
    let is_model =
        |tensor: &ManifestTensor| tensor.section == Section::Model && tensor.kind == EntryKind::Tensor;
    let model = manifest.tensors.iter().filter(|(_, tensor)| is_model(tensor)).enumerate();
    let own: BTreeMap<_, _> = model
        .filter(|(number, _)| number % gang.size() == gang.rank())
        .map(|(_, (name, tensor))| (name.clone(), tensor.clone()))
        .collect();
    let tensors = source.index.tensors().iter().filter(|(name, _)| own.contains_key(*name));
    let tensors = tensors.map(|(name, entry)| (name.clone(), entry.clone())).collect();
    let index = Index::new(source.index.format(), source.index.files().to_vec(), tensors);
    let verified = index.map_err(CheckpointError::from).and_then(|index| {
        let manifest = Manifest { tensors: own, assets: BTreeMap::new(), ..Manifest::clone(manifest) };
        let part = Source { index: Arc::new(index), manifest: Some(Arc::new(manifest)), ..source.clone() };
        verify(&part, observer)
    });
    collective_result(gang, verified)?;
    Ok(())
}
