//! Values other than tensors: `torch.save` archives with only a pickle.

use serde_json::Value as Json;

use crate::error::CheckpointError;
use crate::formats::pickle::{Pickle, PickleWriter};
use crate::formats::torch::Archive;
use crate::formats::window::Window;
use crate::formats::zip::{ZipError, ZipLayout};

/// The value in the bytes of an item, as JSON. `name` is for errors.
pub fn read_value(name: &str, bytes: &[u8]) -> Result<Json, CheckpointError> {
    let mut window = Window::on(bytes, name);
    let archive = Archive::read(&mut window, 0, bytes.len() as u64)?;
    let read = || {
        let pickle = Pickle::read(&archive.pickle)?;
        pickle.json(name, pickle.root(), &mut pickle.budget())
    };
    read().map_err(|error| CheckpointError::format(name, error))
}

/// Entries of every archive besides its pickle and its data.
pub(super) const FIXED: [(&str, &[u8]); 2] = [("archive/byteorder", b"little"), ("archive/version", b"3\n")];

/// The name of an archive's pickle.
pub(super) const PICKLE: &str = "archive/data.pkl";

/// The bytes of an item for a value.
pub(super) fn write_value(value: &Json) -> Result<Vec<u8>, ZipError> {
    let mut writer = PickleWriter::new();
    writer.json(value);
    let pickle = writer.finish();
    let entries = [(PICKLE, pickle.as_slice()), FIXED[0], FIXED[1]];
    let layout = ZipLayout::new(entries.iter().map(|(name, data)| (*name, data.len() as u64)))?;
    let checksums = entries.map(|(_, data)| crc32fast::hash(data));
    let mut bytes = Vec::new();
    for (number, (_, data)) in entries.iter().enumerate() {
        bytes.extend(layout.header(number));
        bytes.extend(*data);
        bytes.extend(layout.descriptor(number, checksums[number]));
    }
    bytes.extend(layout.directory(&checksums));
    Ok(bytes)
}
