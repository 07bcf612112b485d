//! The archive that `torch.save` writes, as a file or inside one.

use std::collections::BTreeMap;

use super::TorchError;
use crate::error::CheckpointError;
use crate::formats::window::Window;
use crate::formats::zip::{Entry, read_directory};

/// The longest pickle that is read. Tensors take a few hundred bytes each.
const MAX_PICKLE: u64 = 256 << 20;

/// An archive's pickle, and where its storages are.
#[derive(Clone, Debug)]
pub(crate) struct Archive {
    pub(crate) pickle: Vec<u8>,
    pub(crate) storages: BTreeMap<String, Entry>,
}

impl Archive {
    /// Reads the archive at `start..start + length` of a file.
    pub(crate) fn read(window: &mut Window<'_>, start: u64, length: u64) -> Result<Self, CheckpointError> {
        let entries = read_directory(window, start, length)?;
        let file = window.name();
        let failed = |error: TorchError| CheckpointError::format(file, error);
        let roots: Vec<&str> = entries
            .iter()
            .filter_map(|entry| entry.name.strip_suffix("/data.pkl"))
            .filter(|root| !root.contains('/'))
            .collect();
        let &[root] = roots.as_slice() else {
            return Err(failed(TorchError::Pickles { count: roots.len() }));
        };
        let mut pickle = Vec::new();
        let mut storages = BTreeMap::new();
        for entry in &entries {
            let Some(name) = entry.name.strip_prefix(root).and_then(|rest| rest.strip_prefix('/')) else {
                continue;
            };
            match name {
                "data.pkl" => pickle = entry.read(window, MAX_PICKLE)?,
                "constants.pkl" => return Err(failed(TorchError::Script)),
                "byteorder" => {
                    let order = entry.read(window, 16)?;
                    if order != b"little" {
                        let order = String::from_utf8_lossy(&order).into_owned();
                        return Err(failed(TorchError::ByteOrder { order }));
                    }
                }
                _ => {
                    if let Some(key) = name.strip_prefix("data/") {
                        storages.insert(key.to_owned(), entry.clone());
                    }
                }
            }
        }
        Ok(Self { pickle, storages })
    }
}

/// The number that files of torch before version 1.6 begin with, as a pickle.
const LEGACY: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";

/// Where tar archives, which torch wrote before that, say what they are.
const TAR: (u64, &[u8]) = (257, b"ustar");

/// Refuses the formats of old torch versions.
pub(super) fn check_kind(window: &mut Window<'_>) -> Result<(), CheckpointError> {
    let length = window.length();
    let mut begins = |offset: u64, with: &[u8]| -> Result<_, CheckpointError> {
        let there = length >= offset + with.len() as u64;
        Ok(if there && window.bytes(offset, with.len())? == with { Some(()) } else { None })
    };
    let error = if begins(0, b"PK")?.is_some() {
        return Ok(());
    } else if begins(0, LEGACY)?.is_some() {
        TorchError::Legacy { form: "pickle" }
    } else if begins(TAR.0, TAR.1)?.is_some() {
        TorchError::Legacy { form: "tar" }
    } else {
        TorchError::Unknown
    };
    Err(CheckpointError::format(window.name(), error))
}
