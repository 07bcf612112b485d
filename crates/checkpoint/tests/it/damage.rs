//! Damaged files: what is damaged is found out, or what is loaded is still
//! what was saved. There is no third way for native checkpoints, which have
//! checksums. Other formats have none; they must not panic, hang, or point
//! outside their files.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use crate::model::{blank, locals, state, wanted};
use weightloom_checkpoint::{
    CheckpointError, Format, LoadOptions, LocalStorage, MemoryStorage, ReadOptions, ReadRequest, SaveOptions,
    Saver, Source, Storage, Target, load, read,
};
use weightloom_gang::{Gang, GangOptions, threads};
use weightloom_layout::{Mesh, Region};

const CONFIG: &[u8] = br#"{"model_type":"llama"}"#;

/// What was done to a file.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Flip { at: usize, bit: u8 },
    Cut { at: usize },
}

impl Harm {
    fn all(count: usize, length: usize, random: &mut Random) -> Vec<Self> {
        let harm = |number: usize| match number % 8 {
            0 => Self::Cut { at: random.below(length) },
            _ => Self::Flip { at: random.below(length), bit: random.below(8) as u8 },
        };
        (0..count).map(harm).collect()
    }

    fn apply(self, bytes: &mut Vec<u8>) {
        match self {
            Self::Flip { at, bit } => bytes[at] ^= 1 << bit,
            Self::Cut { at } => bytes.truncate(at),
        }
    }
}

/// Numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// A checkpoint of two ranks, with an index, assets and a manifest.
fn saved(folder: &Path, target: &Target) -> MemoryStorage {
    let mesh = Mesh::new(&[("a", 2)]).unwrap();
    let options = SaveOptions {
        shard_size: 1500,
        assets: BTreeMap::from([("config.json".to_owned(), CONFIG.to_vec())]),
        ..SaveOptions::default()
    };
    threads::run(2, GangOptions::default(), |gang| {
        let locals = locals(mesh, gang.rank(), 3);
        Saver::new(gang).unwrap().save(&state(&locals), target, &options, &()).unwrap();
    })
    .unwrap();
    MemoryStorage::copy_of(&LocalStorage::new(folder)).unwrap()
}

/// Opens and loads with checksums, other files too; then every bit must be as it was saved.
fn load_whole(memory: MemoryStorage, gang: &dyn Gang) -> Result<(), CheckpointError> {
    let source = Source::open_folder(Arc::new(memory))?;
    assert_eq!(source.index.format(), Format::Native);
    let mesh = Mesh::new(&[("a", 1)]).unwrap();
    let expected = locals(mesh, 0, 0);
    let mut found = locals(mesh, 0, 0);
    blank(&mut found);
    let (mut blob, mut counters) = (Vec::new(), Vec::new());
    let read = ReadOptions { threads: Some(1), ..ReadOptions::default() };
    let options = LoadOptions { read, ..LoadOptions::default() };
    load(&source, wanted(&mut found, &mut blob, &mut counters), gang, &options, &())?;
    for (expected, found) in expected.iter().zip(&found) {
        assert_eq!(expected.bytes, found.bytes, "the damage of {} was not noticed", expected.name);
    }
    for name in source.manifest.iter().flat_map(|manifest| manifest.assets.keys()) {
        let asset = source.read_asset(name)?.unwrap();
        if name == "config.json" {
            assert_eq!(asset, CONFIG);
        }
    }
    assert_eq!((blob, counters), (vec![1, 2, 3, 0, 255], br#"{"step":7}"#.to_vec()));
    Ok(())
}

#[test]
fn no_damage_to_a_native_checkpoint_goes_unnoticed() {
    let folder = tempfile::tempdir().unwrap();
    let (shared, chunks) = (folder.path().join("shared"), folder.path().join("chunks"));
    std::fs::create_dir(&chunks).unwrap();
    let objects = Target::Objects(Arc::new(weightloom_checkpoint::LocalStorage::new(&chunks)));
    let checkpoints = [saved(&shared, &Target::Folder(shared.clone())), saved(&chunks, &objects)];
    let mut random = Random(7);
    let (mut detected, mut harmless) = (0, BTreeMap::<String, usize>::new());
    for checkpoint in &checkpoints {
        let files = checkpoint.files();
        assert!(files.contains_key("weightloom.json") && files.contains_key("config.json"));
        let tried = threads::run(1, GangOptions::default(), |gang| {
            load_whole(checkpoint.clone(), &*gang).unwrap();
        });
        tried.unwrap();
        for (name, bytes) in &files {
            let harms = Harm::all(12_000 / files.len(), bytes.len(), &mut random);
            let outcomes = threads::run(1, GangOptions::default(), |gang| {
                let outcome = |&harm: &Harm| {
                    let memory = checkpoint.clone();
                    memory.change(|files| harm.apply(files.get_mut(name).unwrap()));
                    load_whole(memory, &*gang)
                };
                harms.iter().map(outcome).collect::<Vec<_>>()
            });
            for (harm, outcome) in harms.iter().zip(&outcomes.unwrap()[0]) {
                match outcome {
                    Err(error) => {
                        assert!(!error.to_string().is_empty(), "{harm:?}");
                        detected += 1;
                    }
                    Ok(()) => *harmless.entry(name.clone()).or_default() += 1,
                }
            }
        }
    }
    let tried = detected + harmless.values().sum::<usize>();
    writeln!(std::io::stdout(), "{tried} damaged checkpoints: {detected} detected, harmless: {harmless:?}")
        .unwrap();
    assert!(tried >= 20_000);
    // A digit of a digest in the other case is still the same digit.
    assert!(harmless.keys().all(|name| name == "weightloom.json"), "{harmless:?}");
    assert!(detected >= tried * 99 / 100, "{harmless:?}");
}

/// Opens a file and reads what is small, to see whether anything panics.
/// Every tensor that is found must lie inside the files.
fn look(
    memory: MemoryStorage,
    open: impl Fn(Arc<dyn Storage>) -> Result<Source, CheckpointError>,
) -> Result<(), CheckpointError> {
    let lengths: BTreeMap<String, u64> =
        memory.files().into_iter().map(|(name, bytes)| (name, bytes.len() as u64)).collect();
    let source = open(Arc::new(memory))?;
    for (name, entry) in source.index.tensors() {
        for tile in &entry.tiles {
            for (file, offset, length) in tile.spans(entry.dtype) {
                let file = &source.index.file(file).name;
                assert!(u128::from(offset) + length <= u128::from(lengths[file]), "{name} in {file}");
            }
        }
        if entry.bytes() > 1 << 16 {
            continue;
        }
        let region = Region::whole(&entry.shape);
        let mut into = vec![0; region.volume() * entry.dtype.size()];
        let want = ReadRequest { entry, name, region, dtype: entry.dtype, into: &mut into };
        read(&source, vec![want], &ReadOptions { threads: Some(1), ..ReadOptions::default() }, &())?;
    }
    Ok(())
}

#[test]
fn other_formats_stay_inside_their_files_when_damaged() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let folders = [
        "dcp/plain",
        "dcp/apart",
        "dcp/hugging_face",
        "torch/sharded",
        "consolidated/width",
        "mlx",
        "peft/peft",
    ];
    let files = [
        "gguf/parts.safetensors",
        "torch/dtypes.pt",
        "torch/no_checksums.pth",
        "torch/bare.bin",
        "gguf/llama.gguf",
        "gguf/qwen3moe.gguf",
        "npz/numpy.npz",
        "npz/mlx.npz",
    ];
    let mut random = Random(11);
    let (mut refused, mut opened) = (0, 0);
    let mut count = |outcome: Result<(), CheckpointError>| match outcome {
        Ok(()) => opened += 1,
        Err(_) => refused += 1,
    };
    for folder in folders {
        let whole = MemoryStorage::copy_of(&LocalStorage::new(fixtures.join(folder))).unwrap();
        look(whole.clone(), Source::open_folder).unwrap();
        for (name, bytes) in whole.files() {
            for harm in Harm::all(400, bytes.len(), &mut random) {
                let memory = whole.clone();
                memory.change(|files| harm.apply(files.get_mut(&name).unwrap()));
                count(look(memory, Source::open_folder));
            }
        }
    }
    for file in files {
        let name = Path::new(file).file_name().unwrap().to_str().unwrap();
        let bytes = std::fs::read(fixtures.join(file)).unwrap();
        look(MemoryStorage::one(name, &bytes), |storage| Source::open_file(storage, name)).unwrap();
        for harm in Harm::all(800, bytes.len(), &mut random) {
            let mut damaged = bytes.clone();
            harm.apply(&mut damaged);
            count(look(MemoryStorage::one(name, &damaged), |storage| Source::open_file(storage, name)));
        }
    }
    writeln!(std::io::stdout(), "{refused} damaged files were refused, {opened} opened").unwrap();
    assert!(refused > 1000 && refused + opened > 10_000, "{refused} {opened}");
}
