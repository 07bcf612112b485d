//! Every fixture of every format, read by the engine: whole, in parts, as
//! another type, in little memory, and converted into every form.

use std::path::{Path, PathBuf};

use weightloom_checkpoint::storage::ReadMode;
use weightloom_checkpoint::{
    ConvertOptions, Difference, ReadOptions, ReadRequest, SaveFormat, SaveOptions, Source, Target,
    TensorEntry, cast, compare, convert, extents, fingerprint, read, stats,
};
use weightloom_layout::{DType, Region};

/// A fixture, and a file with the same tensors as its peer sees them.
const FIXTURES: [(&str, &str); 17] = [
    ("gguf/llama.gguf", "gguf/llama.safetensors"),
    ("gguf/gpt2.gguf", "gguf/gpt2.safetensors"),
    ("gguf/qwen3moe.gguf", "gguf/qwen3moe.safetensors"),
    ("gguf/other.gguf", "gguf/other.safetensors"),
    ("gguf/parts-00001-of-00003.gguf", "gguf/parts.safetensors"),
    ("mlx", "mlx/expected/model.safetensors"),
    ("npz/numpy.npz", "npz/numpy.safetensors"),
    ("npz/mlx.npz", "npz/mlx.safetensors"),
    ("dcp/plain", "dcp/plain.expected.safetensors"),
    ("dcp/grid", "dcp/grid.expected.safetensors"),
    ("torch/dtypes.pt", "torch/dtypes.expected.safetensors"),
    ("torch/state.pt", "torch/state.expected.safetensors"),
    ("torch/state_protocol_5.pt", "torch/state.expected.safetensors"),
    ("torch/no_checksums.pth", "torch/no_checksums.expected.safetensors"),
    ("torch/sharded", "torch/sharded.expected.safetensors"),
    ("consolidated/width", "consolidated/width.expected.safetensors"),
    ("consolidated/vocabulary", "consolidated/vocabulary.expected.safetensors"),
];

fn open(fixture: &str) -> Source {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(fixture);
    Source::open(&path).unwrap_or_else(|error| panic!("{fixture}: {error}"))
}

/// Whether two tensors have the same numbers. Bits must be equal too where
/// the types are; the peers' records of packed tensors are plain f32.
fn assert_same(fixture: &str, found: &Source, expected: &Source) {
    let comparison = compare(found, expected, &()).unwrap();
    assert_eq!((comparison.only_first, comparison.only_second), (vec![], vec![]), "{fixture}");
    assert!(!comparison.both.is_empty(), "{fixture}");
    for (name, difference) in comparison.both {
        match difference {
            Difference::Identical => {}
            Difference::Values { first, second, different: 0, .. } if first != second => {}
            other => panic!("{name} of {fixture}: {other:?}"),
        }
    }
}

#[test]
fn every_fixture_has_the_numbers_of_its_peer() {
    for (fixture, expected) in FIXTURES {
        assert_same(fixture, &open(fixture), &open(expected));
    }
}

fn part(
    source: &Source,
    name: &str,
    entry: &TensorEntry,
    region: &Region,
    dtype: DType,
    options: &ReadOptions,
) -> Vec<u8> {
    let mut into = vec![0xaa; region.volume() * dtype.size()];
    let want = ReadRequest { name, entry, region: region.clone(), dtype, into: &mut into };
    read(source, vec![want], options, &()).unwrap_or_else(|error| panic!("{name}: {error}"));
    into
}

#[test]
fn regions_equal_the_whole_and_extents_match_reads() {
    let mut seed = 1u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % below.max(1)
    };
    for (fixture, _) in FIXTURES {
        let source = open(fixture);
        for (name, entry) in source.index.tensors() {
            let dtype = entry.dtype;
            let all = Region::whole(&entry.shape);
            let whole = part(&source, name, entry, &all, dtype, &ReadOptions::default());
            for round in 0..4 {
                let start: Vec<usize> = entry.shape.iter().map(|&size| random(size)).collect();
                let size: Vec<usize> =
                    entry.shape.iter().zip(&start).map(|(&size, &at)| random(size - at + 1)).collect();
                let region = Region::new(&start, &size).unwrap();
                let options = match round {
                    0 => ReadOptions { budget: 1, threads: Some(1), mode: Some(ReadMode::Direct) },
                    1 => ReadOptions { budget: 8192, threads: Some(3), mode: Some(ReadMode::Mapped) },
                    _ => ReadOptions::default(),
                };
                let found = part(&source, name, entry, &region, dtype, &options);
                let mut expected = vec![0; found.len()];
                weightloom_layout::copy_region(
                    &region,
                    dtype.size(),
                    weightloom_layout::Tile { region: &all, bytes: &whole },
                    &mut weightloom_layout::TileMut { region: &region, bytes: &mut expected },
                )
                .unwrap();
                assert_eq!(found, expected, "{region} of {name} of {fixture}");
                let wide = part(&source, name, entry, &region, DType::F64, &options);
                let mut expected_wide = vec![0; wide.len()];
                cast(dtype, &expected, DType::F64, &mut expected_wide);
                assert_eq!(wide, expected_wide, "{region} of {name} of {fixture} as f64");
                for extent in extents(entry, &region, 0) {
                    assert!(extent.end <= source.index.file(extent.file).length);
                }
            }
        }
        stats(&source, &()).unwrap();
    }
}

#[test]
fn every_fixture_is_converted_and_keeps_its_fingerprint() {
    let folder = tempfile::tempdir().unwrap();
    for (number, (fixture, _)) in FIXTURES.into_iter().enumerate() {
        let source = open(fixture);
        let before = fingerprint(&source, &()).unwrap();
        for (format, name) in
            [(SaveFormat::Native, "native"), (SaveFormat::HuggingFace, "hf"), (SaveFormat::Dcp, "dcp")]
        {
            let path = folder.path().join(format!("{number}-{name}"));
            let save = SaveOptions { format, shard_size: 3000, ..SaveOptions::default() };
            let options = ConvertOptions { save, ..ConvertOptions::default() };
            let report = convert(&source, &Target::Folder(path.clone()), &options, &())
                .unwrap_or_else(|error| panic!("{fixture} to {name}: {error}"));
            let after = Source::open(&path).unwrap_or_else(|error| panic!("{fixture} as {name}: {error}"));
            let mut found = fingerprint(&after, &()).unwrap().tensors;
            // DCP has no bytes; what is not JSON becomes a tensor of u8.
            found.retain(|name, _| !source.index.blobs().contains_key(name));
            assert_eq!(found, before.tensors, "{fixture} to {name}");
            assert_eq!(report.fingerprint, before.fingerprint, "{fixture} to {name}");
        }
    }
}

#[test]
fn a_conversion_does_not_make_damage_valid_and_keeps_what_a_resume_needs() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    let options = |format, dtype| ConvertOptions {
        save: SaveOptions { format, step: None, ..SaveOptions::default() },
        dtype,
        ..ConvertOptions::default()
    };
    let first = ConvertOptions {
        save: SaveOptions {
            step: Some(7),
            assets: [("vocabulary.bin".to_owned(), vec![1, 2, 3])].into(),
            ..SaveOptions::default()
        },
        ..ConvertOptions::default()
    };
    convert(&open("torch/state.pt"), &Target::Folder(place("native")), &first, &()).unwrap();
    let source = Source::open(place("native")).unwrap();
    convert(&source, &Target::Folder(place("again")), &options(SaveFormat::Native, None), &()).unwrap();
    let again = Source::open(place("again")).unwrap();
    let manifest = again.manifest.as_ref().unwrap();
    assert_eq!(manifest.step, Some(7));
    assert_eq!(again.read_asset("vocabulary.bin").unwrap().unwrap(), [1, 2, 3]);
    assert!(compare(&source, &again, &()).unwrap().is_identical());
    // Values that are no tensors are compared where both have some.
    let mut changed = first.clone();
    changed.save.format = SaveFormat::Native;
    let one = source.index.values().next().expect("the fixture has values").clone();
    let names = source.index.tensors().keys().chain(source.index.values());
    changed.only = Some(names.filter(|name| **name != one).cloned().collect());
    convert(&source, &Target::Folder(place("fewer")), &changed, &()).unwrap();
    let fewer = Source::open(place("fewer")).unwrap();
    let expected = if source.index.values().count() > 1 { vec![one] } else { vec![] };
    assert_eq!(compare(&source, &fewer, &()).unwrap().other, expected);

    let file = place("native").join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let source = Source::open(place("native")).unwrap();
    for (number, dtype) in [None, Some(DType::F64)].into_iter().enumerate() {
        let target = Target::Folder(place(&format!("bad{number}")));
        let refused = convert(&source, &target, &options(SaveFormat::HuggingFace, dtype), &());
        assert!(matches!(refused, Err(weightloom_checkpoint::CheckpointError::Damaged(_))), "{refused:?}");
        assert!(!place(&format!("bad{number}")).exists());
    }
}

#[test]
fn a_file_is_converted_without_its_neighbours() {
    let folder = tempfile::tempdir().unwrap();
    let target = Target::Folder(folder.path().join("x"));
    let report = convert(&open("gguf/llama.safetensors"), &target, &ConvertOptions::default(), &()).unwrap();
    assert_eq!(report.assets, [""; 0]);
}
