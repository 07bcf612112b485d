//! Bytes from anybody, put where each parser finds them.
//!
//! Fuzzing and the tests go through the same doors: those that users go
//! through. What opens is also read, so that decoders see hostile numbers too.

use std::sync::{Arc, LazyLock};

use weightloom_checkpoint::formats::{dcp, peft, zip::ZipLayout};
use weightloom_checkpoint::{
    CheckpointError, LoadOptions, LocalStorage, Manifest, MemoryStorage, ReadOptions, ReadRequest,
    SaveOptions, Saver, Source, Storage, Target, load, plan::LoadState, read,
};
use weightloom_gang::{GangOptions, threads};
use weightloom_layout::{DType, Mesh, Region};

use crate::model;

/// The most that is read of what was opened.
const MOST_READ: u64 = 64 << 10;

/// What became of an input.
pub type Outcome = Result<(), CheckpointError>;

/// A parser's name, and how it gets its input.
pub type Parser = (&'static str, fn(&[u8]) -> Outcome);

/// Every parser.
pub const PARSERS: &[Parser] = &[
    ("safetensors", safetensors),
    ("folder_index", folder_index),
    ("manifest", manifest),
    ("pickle", pickle),
    ("zip", zip),
    ("torch", torch),
    ("consolidated", consolidated),
    ("dcp_metadata", dcp_metadata),
    ("dcp_items", dcp_items),
    ("dcp_value", dcp_value),
    ("gguf", gguf),
    ("npy_header", npy_header),
    ("mlx_config", mlx_config),
    ("peft_config", peft_config),
];

macro_rules! fixture {
    ($name:literal) => {
        include_bytes!(concat!("../fixtures/", $name)).as_slice()
    };
}

/// A file of safetensors.
pub fn safetensors(input: &[u8]) -> Outcome {
    open_file("model.safetensors", input)
}

/// The index of a folder, beside two files.
pub fn folder_index(input: &[u8]) -> Outcome {
    let folder = MemoryStorage::one("model.safetensors.index.json", input)
        .with("model-1.safetensors", fixture!("gguf/parts.safetensors"))
        .with("model-2.safetensors", fixture!("peft/peft/adapter_model.safetensors"));
    open_folder(folder)
}

/// A manifest under a valid digest, which an attacker can compute too, with the
/// files of real checkpoints.
pub fn manifest(input: &[u8]) -> Outcome {
    let Ok(manifest) = serde_json::from_slice::<Manifest>(input) else {
        // Not even the form is right; the parser shall say so itself.
        return open_folder(MemoryStorage::one("weightloom.json", input));
    };
    let bytes = manifest.to_bytes().map_err(|error| CheckpointError::Format {
        file: "weightloom.json".to_owned(),
        problem: error.into(),
    })?;
    let folder = Arc::new(NATIVE.clone().with("weightloom.json", &bytes));
    let source = Source::open_folder(folder)?;
    read_all(&source)?;
    // Bytes alone, so that sums and blobs are looked at as well.
    let mut found: Vec<Vec<u8>> = source.index.blobs().iter().map(|_| Vec::new()).collect();
    let mut state = LoadState::new();
    for (name, bytes) in source.index.blobs().keys().zip(&mut found) {
        state.bytes(name, bytes);
    }
    let state = &std::sync::Mutex::new(Some(state));
    let loaded = threads::run(1, GangOptions::default(), |gang| {
        let state = state.lock().unwrap().take().unwrap();
        load(&source, state, &*gang, &one_thread(), &())
    });
    loaded.unwrap().pop().unwrap().map(|_| ())
}

/// The pickle of a file of `torch.save`.
pub fn pickle(input: &[u8]) -> Outcome {
    open_file("model.pt", &torch_archive(input))
}

/// A zip archive.
pub fn zip(input: &[u8]) -> Outcome {
    open_file("model.npz", input)
}

/// A file of `torch.save`.
pub fn torch(input: &[u8]) -> Outcome {
    open_file("model.pt", input)
}

/// The pickles of two model-parallel ranks.
pub fn consolidated(input: &[u8]) -> Outcome {
    let bytes = torch_archive(input);
    open_folder(MemoryStorage::one("consolidated.00.pth", &bytes).with("consolidated.01.pth", &bytes))
}

/// The description of a distributed checkpoint, beside its files.
pub fn dcp_metadata(input: &[u8]) -> Outcome {
    let folder = MemoryStorage::one(".metadata", input)
        .with("__0_0.distcp", fixture!("dcp/plain/__0_0.distcp"))
        .with("__1_0.distcp", fixture!("dcp/plain/__1_0.distcp"));
    open_folder(folder)
}

/// A file of a distributed checkpoint, under its description.
pub fn dcp_items(input: &[u8]) -> Outcome {
    let folder = MemoryStorage::one(".metadata", fixture!("dcp/grid/.metadata"))
        .with("__0_0.distcp", input)
        .with("__1_0.distcp", fixture!("dcp/grid/__1_0.distcp"));
    open_folder(folder)
}

/// A value other than a tensor: the pickle in its archive.
pub fn dcp_value(input: &[u8]) -> Outcome {
    dcp::read_value("value", &torch_archive(input)).map(|_| ())
}

/// A file of GGUF.
pub fn gguf(input: &[u8]) -> Outcome {
    open_file("model.gguf", input)
}

/// One array of a NumPy archive.
pub fn npy_header(input: &[u8]) -> Outcome {
    open_file("model.npz", &archive(&[("array.npy", input)]))
}

/// The config of a quantised folder.
pub fn mlx_config(input: &[u8]) -> Outcome {
    open_folder(
        MemoryStorage::one("config.json", input).with("model.safetensors", fixture!("mlx/model.safetensors")),
    )
}

/// The config of an adapter.
pub fn peft_config(input: &[u8]) -> Outcome {
    let folder = MemoryStorage::one("adapter_config.json", input)
        .with("adapters.safetensors", fixture!("peft/mlx/adapters.safetensors"));
    let source = Source::open_folder(Arc::new(folder))?;
    read_all(&source)?;
    peft::to_peft(&source.index, None).map(|_| ())
}

/// Opens a place with one file, and reads what it can of it.
pub fn open_file(name: &str, bytes: &[u8]) -> Outcome {
    read_all(&Source::open_file(Arc::new(MemoryStorage::one(name, bytes)), name)?)
}

/// Opens a place as a whole, and reads what it can of it.
pub fn open_folder(folder: MemoryStorage) -> Outcome {
    read_all(&Source::open_folder(Arc::new(folder))?)
}

/// Reads the tensors of a checkpoint, as far as they are small.
fn read_all(source: &Source) -> Outcome {
    let mut room = MOST_READ;
    for (name, entry) in source.index.tensors() {
        let Some(left) = room.checked_sub(entry.bytes().saturating_mul(4)) else { continue };
        room = left;
        for dtype in [entry.dtype, DType::F32] {
            let region = Region::whole(&entry.shape);
            let mut into = vec![0; region.volume() * dtype.size()];
            let want = ReadRequest { entry, name, region, dtype, into: &mut into };
            read(source, vec![want], &one_thread().read, &())?;
        }
    }
    Ok(())
}

fn one_thread() -> LoadOptions {
    let read = ReadOptions { budget: 1 << 16, threads: Some(1), ..ReadOptions::default() };
    LoadOptions {
        read,
        unexpected: weightloom_checkpoint::plan::UnexpectedKeys::Ignore,
        ..LoadOptions::default()
    }
}

/// What `torch.save` writes around a pickle, with one storage beside it.
pub fn torch_archive(pickle: &[u8]) -> Vec<u8> {
    let storage = [1; 256];
    archive(&[("archive/data.pkl", pickle), ("archive/byteorder", b"little"), ("archive/data/0", &storage)])
}

/// A zip archive without checksums.
pub fn archive(parts: &[(&str, &[u8])]) -> Vec<u8> {
    let layout = ZipLayout::new(parts.iter().map(|(name, data)| (*name, data.len() as u64))).unwrap();
    let checksums = vec![0; parts.len()];
    let mut bytes = Vec::new();
    for (number, (_, data)) in parts.iter().enumerate() {
        bytes.extend(layout.header(number));
        bytes.extend(*data);
        bytes.extend(layout.descriptor(number, 0));
    }
    bytes.extend(layout.directory(&checksums));
    bytes
}

/// The files of two native checkpoints, one in whole tensors and one in
/// chunks.
pub static NATIVE: LazyLock<MemoryStorage> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shared");
    let chunks: Arc<dyn Storage> = Arc::new(MemoryStorage::default());
    let mesh = Mesh::new(&[("a", 2)]).unwrap();
    let saved = threads::run(2, GangOptions::default(), |gang| {
        let locals = model::locals(mesh, gang.rank(), 3);
        let state = model::state(&locals);
        let mut saver = Saver::new(gang)?;
        for target in [Target::Folder(path.clone()), Target::Objects(Arc::clone(&chunks))] {
            saver.save(&state, &target, &SaveOptions::default(), &())?;
        }
        Ok::<_, CheckpointError>(())
    });
    saved.unwrap().into_iter().for_each(|rank| rank.unwrap());
    let mut memory = MemoryStorage::copy_of(&LocalStorage::new(&path)).unwrap();
    for file in chunks.list().unwrap() {
        let name = if file.name == "weightloom.json" { "chunks.json" } else { &file.name };
        memory = memory.with(name, &chunks.read_all(&file.name, 1 << 20).unwrap());
    }
    memory
});
