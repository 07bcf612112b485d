//! Files made to harm: each is refused in words that name the file and the
//! reason, in little memory. Then thousands of inputs that nobody thought of,
//! made from the corpus that fuzzing starts from.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::allocation::{most_held, turn};
use crate::probe;
use crate::probe::{NATIVE, Outcome, PARSERS, archive, torch_archive};
use serde_json::{Value, json};
use weightloom_checkpoint::formats::zip::ZipLayout;
use weightloom_checkpoint::{CheckpointError, LocalStorage, Manifest, MemoryStorage, Source};

/// The most memory for an input of so many bytes.
fn allowed(length: usize) -> usize {
    (12 << 20) + 64 * length
}

/// Refused within the memory allowed, in these words.
fn refused(what: &str, length: usize, attempt: impl FnOnce() -> Outcome, words: &[&str]) {
    let (outcome, held) = most_held(attempt);
    let text = outcome.expect_err(what).to_string();
    for word in words {
        assert!(text.contains(word), "{what}: {text:?} does not contain {word:?}");
    }
    assert!(held <= allowed(length), "{what}: {held} bytes held");
}

fn refused_file(name: &str, bytes: &[u8], reason: &str) {
    let file = format!("`{name}`");
    refused(reason, bytes.len(), || probe::open_file(name, bytes), &[&file, reason]);
}

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).unwrap()
}

#[test]
fn pickles_that_call_are_refused() {
    let _turn = turn();
    let calls: [(&[u8], &str); 6] = [
        (b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R.", "`os.system`, which is not allowed"),
        (b"\x80\x02cposix\nsystem\nX\x02\x00\x00\x00id\x85R.", "`posix.system`, which is not allowed"),
        (b"\x80\x02cbuiltins\neval\nX\x01\x00\x00\x001\x85R.", "`builtins.eval`, which is not allowed"),
        (b"\x80\x02c__builtin__\nexec\nX\x01\x00\x00\x001\x85R.", "`__builtin__.exec`, which is not allowed"),
        (b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93.", "`builtins.getattr`, which is not allowed"),
        (b"\x80\x02(X\x01\x00\x00\x00aios\nsystem\n.", "opcode 0x69"),
    ];
    for (pickle, reason) in calls {
        refused_file("model.pt", &torch_archive(pickle), reason);
        let metadata = || probe::open_folder(MemoryStorage::one(".metadata", pickle));
        refused(reason, pickle.len(), metadata, &["`.metadata`", reason]);
        let value = || probe::dcp_value(pickle);
        refused(reason, pickle.len(), value, &["`value`", reason]);
        let rank = || probe::consolidated(pickle);
        refused(reason, pickle.len(), rank, &["`consolidated.00.pth`", reason]);
    }
}

#[test]
fn nested_bombs_are_refused() {
    let _turn = turn();
    let deep = [vec![b']'; 100_000], vec![b'a'; 99_999], b".".to_vec()].concat();
    refused_file("model.pt", &torch_archive(&deep), "nested more than");
    // A pair of the same pair of the same pair: 2^60 leaves.
    let mut doubled = b"\x80\x02]q\x00".to_vec();
    for level in 0..60u8 {
        doubled.extend([b'h', level, b'h', level, 0x86, b'q', level + 1, b'0']);
    }
    doubled.extend([b'0', b'h', 60, b'.']);
    refused(
        "shared parts",
        doubled.len(),
        || probe::dcp_value(&doubled),
        &["`value`", "shared values expand"],
    );
    let arrays = "[".repeat(200_000);
    let header = [&(arrays.len() as u64).to_le_bytes()[..], arrays.as_bytes()].concat();
    refused_file("model.safetensors", &header, "malformed header");
    let nested = format!("{{\"a\":{arrays}");
    let header = [&(nested.len() as u64).to_le_bytes()[..], nested.as_bytes()].concat();
    refused_file("model.safetensors", &header, "malformed header");
    let mut gguf = gguf_front(0, 1);
    gguf.extend([1, 0, 0, 0, 0, 0, 0, 0, b'k', 9, 0, 0, 0]);
    (0..10_000).for_each(|_| gguf.extend([9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]));
    refused_file("model.gguf", &gguf, "nested deeper than");
}

fn gguf_front(tensors: u64, values: u64) -> Vec<u8> {
    [&b"GGUF\x03\0\0\0"[..], &tensors.to_le_bytes(), &values.to_le_bytes()].concat()
}

#[test]
fn pickles_take_memory_in_proportion() {
    let _turn = turn();
    const LENGTH: usize = 4 << 20;
    let repeated = |front: &[u8], part: &[u8], end: &[u8]| {
        [b"\x80\x04", front, &part.repeat(LENGTH / part.len()), end].concat()
    };
    let length = (LENGTH as u32).to_le_bytes();
    let ones = |byte: u8| vec![byte; LENGTH];
    let inputs: [(&str, Vec<u8>); 16] = [
        ("nothings", repeated(b"(", b"N", b"l.")),
        ("nothings, one by one", repeated(b"]", b"Na", b".")),
        ("small numbers", repeated(b"(", b"K\x01", b"l.")),
        ("empty lists", repeated(b"(", b"]", b"l.")),
        ("lists in lists", repeated(b"", b"]", b".")),
        ("lists of one", repeated(b"(", b"]Na", b"l.")),
        ("empty tuples", repeated(b"(", b")", b"t.")),
        ("tuples of one", repeated(b"(", b"N\x85", b"t.")),
        ("empty dicts", repeated(b"(", b"}", b"l.")),
        ("dicts of one", repeated(b"(", b"}\x8c\x01aNs", b"l.")),
        ("equal keys", repeated(b"}(", b"\x8c\x01aN", b"u.")),
        ("marks", repeated(b"", b"(", b".")),
        ("memo", repeated(b"N", b"\x94", b".")),
        ("bytes", [b"\x80\x04B", &length[..], &ones(255), b"."].concat()),
        ("text to escape", [b"\x80\x04X", &length[..], &ones(1), b"."].concat()),
        // A text and then a dict of references to it.
        (
            "shared text",
            [b"\x80\x04X", &length[..], &ones(b'x'), b"\x94(", &b"h\0".repeat(1000), b"l."].concat(),
        ),
    ];
    for (what, pickle) in inputs {
        let bytes = torch_archive(&pickle);
        // Whether it is refused does not matter here.
        let (_, held) = most_held(|| probe::open_file("model.pt", &bytes).is_ok());
        assert!(held <= allowed(pickle.len()), "{what}: {held} bytes held for {}", pickle.len());
    }
    // What training states hold is no bomb: a million numbers in a list.
    let numbers = [&b"\x80\x04("[..], &b"M\x34\x12".repeat(1 << 20), b"l."].concat();
    probe::open_file("model.pt", &torch_archive(&numbers)).unwrap();
}

/// A pickled dict of tensors of the same storage, with strides of 0.
fn repeated_tensors(count: usize, elements: u64) -> Vec<u8> {
    let text = |text: &str| [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    let mut pickle = b"\x80\x02}(".to_vec();
    for number in 0..count {
        pickle.extend(text(&format!("t{number}")));
        pickle.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        pickle.extend(text("storage"));
        pickle.extend(b"ctorch\nFloatStorage\n");
        pickle.extend([text("0"), text("cpu")].concat());
        pickle.extend(b"K\x40tQK\0\x8a\x08");
        pickle.extend(elements.to_le_bytes());
        pickle.extend(b"\x85K\0\x85\x89ccollections\nOrderedDict\n)RtR");
    }
    pickle.extend(b"u.");
    pickle
}

#[test]
fn tensors_out_of_proportion_to_their_file_are_refused() {
    let _turn = turn();
    // 200 times 8 GiB in 30 KB.
    let pickle = repeated_tensors(200, 1 << 31);
    assert!(pickle.len() < 40_000);
    let bytes = torch_archive(&pickle);
    refused(
        "expansion",
        bytes.len(),
        || probe::open_file("model.pt", &bytes),
        &["1717986918400", "files hold"],
    );
    let error = probe::open_file("model.pt", &bytes).unwrap_err();
    assert!(weightloom_errors::Hint::hint(&error).is_some());
    // A mask that was expanded is fine.
    probe::open_file("model.pt", &torch_archive(&repeated_tensors(2, 1 << 20))).unwrap();
}

#[test]
fn zip_bombs_are_refused() {
    let _turn = turn();
    refused_file("model.npz", &fixture("npz/compressed.npz"), "is compressed (method 8)");
    let mut deflated = torch_archive(b"N.");
    let central = deflated.windows(4).position(|four| four == b"PK\x01\x02").unwrap();
    (deflated[8], deflated[central + 10]) = (8, 8);
    refused_file("model.pt", &deflated, "is compressed (method 8)");
    // A thousand entries that are all the same bytes.
    let name = "array.npy";
    let data = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/npz/numpy.npz")).unwrap();
    let one = ZipLayout::new([(name, data.len() as u64)]).unwrap();
    let directory = one.directory(&[0]);
    let end = directory.windows(4).position(|four| four == b"PK\x05\x06" || four == b"PK\x06\x06").unwrap();
    let mut bytes = [one.header(0), data, one.descriptor(0, 0)].concat();
    let start = bytes.len() as u32;
    for number in 0..1000 {
        let mut entry = directory[..end].to_vec();
        entry[46..46 + name.len()].copy_from_slice(format!("a{number:04}.npy").as_bytes());
        bytes.extend(entry);
    }
    let length = bytes.len() as u32 - start;
    bytes.extend(b"PK\x05\x06\0\0\0\0");
    [1000u16, 1000].iter().for_each(|count| bytes.extend(count.to_le_bytes()));
    [length, start].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    bytes.extend([0, 0]);
    refused_file("model.npz", &bytes, "overlap the next entry");
}

#[test]
fn numbers_that_are_not_borne_out_are_refused() {
    let _turn = turn();
    let mut header = u64::MAX.to_le_bytes().to_vec();
    header.extend(b"{}");
    refused_file("model.safetensors", &header, "the header claims 18446744073709551615 bytes");
    refused_file("model.gguf", &gguf_front(u64::MAX, 0), "the header needs");
    refused_file("model.gguf", &gguf_front(0, u64::MAX), "the header needs");
    // A key, a string and an array of numbers of absurd length.
    let key = [&1u64.to_le_bytes()[..], b"k"].concat();
    let long = u64::MAX.to_le_bytes();
    let string = [&gguf_front(0, 1)[..], &key, &8u32.to_le_bytes(), &long].concat();
    let array = [&gguf_front(0, 1)[..], &key, &9u32.to_le_bytes(), &6u32.to_le_bytes(), &long].concat();
    let texts = [&gguf_front(0, 1)[..], &key, &9u32.to_le_bytes(), &8u32.to_le_bytes(), &long].concat();
    for bytes in [[&gguf_front(0, 1)[..], &long].concat(), string, array, texts] {
        refused_file("model.gguf", &bytes, "the header needs");
    }
    for pickle in [
        [&b"\x80\x04\x8d"[..], &long].concat(),
        [&b"\x80\x04\x8e"[..], &long].concat(),
        b"\x80\x02X\xff\xff\xff\xff".to_vec(),
        b"\x80\x02\x8b\xff\xff\xff\x7f".to_vec(),
    ] {
        refused_file("model.pt", &torch_archive(&pickle), "the pickle is truncated");
    }
    refused_file("model.pt", &torch_archive(b"\x80\x02Nr\xff\xff\xff\xff."), "refers to memo 4294967295");
    let array = [&b"\x93NUMPY\x02\0"[..], &u32::MAX.to_le_bytes(), b"{}"].concat();
    refused_file("model.npz", &archive(&[("a.npy", &array)]), "the header of `a` claims 4294967295 bytes");
    let mut end = b"PK\x05\x06\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\0".to_vec();
    refused_file("model.npz", &end, "cannot read `model.npz`");
    end.splice(8..12, [0xfe, 0xff, 0xfe, 0xff]);
    refused_file("model.npz", &end, "cannot read `model.npz`");
}

fn safetensors(header: &Value, data: usize) -> Vec<u8> {
    let text = header.to_string();
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &vec![0; data]].concat()
}

#[test]
fn data_that_overlap_or_are_elsewhere_are_refused() {
    let _turn = turn();
    let tensor = |start: u64, end: u64| json!({"dtype": "U8", "shape": [8], "data_offsets": [start, end]});
    let overlap = json!({"a": tensor(0, 8), "b": tensor(4, 12)});
    refused_file("model.safetensors", &safetensors(&overlap, 12), "`b` begins at byte 4 of the data");
    let outside = json!({"a": tensor(0, 8)});
    refused_file("model.safetensors", &safetensors(&outside, 4), "the tensors end at byte");
    let turned = json!({"a": tensor(0, u64::MAX)});
    refused_file("model.safetensors", &safetensors(&turned, 8), "the tensors end at byte");
    let vast = json!({"a": {"dtype": "F32", "shape": [1u64 << 40, 1u64 << 40], "data_offsets": [0, 8]}});
    refused_file("model.safetensors", &safetensors(&vast, 8), "`a` has an invalid shape");
    let large = json!({"a": {"dtype": "F32", "shape": [1u64 << 40], "data_offsets": [0, 8]}});
    refused_file("model.safetensors", &safetensors(&large, 8), "its offsets are 0..8");

    let entry = |name: u8, size: u64, offset: u64| {
        let sizes = [&1u32.to_le_bytes()[..], &size.to_le_bytes(), &0u32.to_le_bytes()].concat();
        [&1u64.to_le_bytes()[..], &[name], &sizes, &offset.to_le_bytes()].concat()
    };
    let gguf =
        |entries: &[Vec<u8>]| [gguf_front(entries.len() as u64, 0), entries.concat(), vec![0; 512]].concat();
    refused_file(
        "model.gguf",
        &gguf(&[entry(b'a', 16, 0), entry(b'b', 16, 32)]),
        "`b` begins before `a` ends",
    );
    // The index reports the file in another message.
    let past = gguf(&[entry(b'a', 16, 1 << 40)]);
    refused("past the end", past.len(), || probe::gguf(&past), &["`model.gguf`", "`a` needs bytes"]);
    let wrapped = gguf(&[entry(b'a', 16, u64::MAX - 31)]);
    refused_file("model.gguf", &wrapped, "has an invalid offset");
}

/// A manifest of the native checkpoints, changed.
fn changed_manifest(name: &str, change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let sealed: Value = serde_json::from_slice(&NATIVE.files()[name]).unwrap();
    let mut inside = sealed["manifest"].clone();
    change(&mut inside);
    serde_json::to_vec(&inside).unwrap()
}

#[test]
fn the_sealed_seed_is_a_valid_manifest() {
    let _turn = turn();
    let seed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/manifest/sealed.json");
    let bytes = fs::read(seed).unwrap();
    let manifest = Manifest::from_bytes(&bytes).unwrap();
    assert_eq!(manifest.to_bytes().unwrap(), bytes.trim_ascii_end());
}

#[test]
fn manifests_cannot_list_missing_tensors() {
    let _turn = turn();
    let tensor = |shape: Value, kind: &str| {
        let fingerprint = "0".repeat(32);
        json!({"part": "training", "kind": kind, "dtype": "u8", "shape": shape, "fingerprint": fingerprint, "chunks": ""})
    };
    // The form of these records is right: without any of them, it opens.
    probe::manifest(&changed_manifest("chunks.json", |_| ())).unwrap();
    let vast = changed_manifest("chunks.json", |manifest| {
        manifest["stretch"] = json!(1);
        manifest["tensors"]["aaa"] = tensor(json!([0]), "tensor");
        manifest["tensors"]["bbb"] = tensor(json!([1u64 << 50]), "bytes");
    });
    let words = ["`weightloom.json`", "`bbb` is missing from the files, or has another dtype or shape"];
    refused("bytes from nowhere", vast.len(), || probe::manifest(&vast), &words);
    let hollow = changed_manifest("chunks.json", |manifest| {
        manifest["tensors"]["aaa"] = tensor(json!([1u64 << 50]), "tensor");
    });
    let words = ["`weightloom.json`", "`aaa` is missing from the files, or has another dtype or shape"];
    refused("a tensor from nowhere", hollow.len(), || probe::manifest(&hollow), &words);
}

#[test]
fn parts_in_very_many_dims_are_refused() {
    let _turn = turn();
    // One corner of a cube in 32 dims, as torch writes parts for Hugging Face.
    let start = format!("[{}]", ["0"; 31].join(", "));
    let sharding = format!(r#"{{"a": {{"saved_offsets": [1, {}}}}}"#, &start[1..]);
    let header = json!({
        "__metadata__": {"DCP_SHARDING_INFO": sharding},
        "a": {"dtype": "U8", "shape": vec![1; 32], "data_offsets": [0, 1]},
    });
    let bytes = safetensors(&header, 1);
    let name = "shard-00001-model-00001-of-00001.safetensors";
    let attempt = || probe::open_folder(MemoryStorage::one(name, &bytes));
    refused("32 dims", bytes.len(), attempt, &["`a`"]);
}

#[test]
fn names_that_lead_outside_are_refused() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("inside");
    fs::create_dir(&inside).unwrap();
    let weights = fixture("gguf/parts.safetensors");
    fs::write(folder.path().join("secret.safetensors"), &weights).unwrap();
    fs::write(folder.path().join("a-00001-of-00001.gguf"), fixture("gguf/other.gguf")).unwrap();
    fs::write(inside.join("model.safetensors"), &weights).unwrap();
    let storage = || Arc::new(LocalStorage::new(&inside));
    let absolute = folder.path().join("secret.safetensors").display().to_string();
    let expect = |outcome: Result<Source, CheckpointError>, name: &str| {
        let text = outcome.map(|source| source.index.format()).unwrap_err().to_string();
        assert_eq!(text, format!("file name `{name}` leads out of the checkpoint"));
    };
    for name in
        ["../secret.safetensors", absolute.as_str(), "./../secret.safetensors", "a\\..\\b", "a/../../secret"]
    {
        let index = inside.join("model.safetensors.index.json");
        fs::write(&index, json!({"weight_map": {"a": name}}).to_string()).unwrap();
        expect(Source::open(&inside), name);
        fs::remove_file(index).unwrap();
        let index = inside.join("pytorch_model.bin.index.json");
        fs::rename(inside.join("model.safetensors"), folder.path().join("away")).unwrap();
        fs::write(&index, json!({"weight_map": {"a": name}}).to_string()).unwrap();
        expect(Source::open(&inside), name);
        fs::remove_file(index).unwrap();
        fs::rename(folder.path().join("away"), inside.join("model.safetensors")).unwrap();
        let manifest =
            changed_manifest("weightloom.json", |manifest| manifest["files"][0]["name"] = json!(name));
        let manifest: Manifest = serde_json::from_slice(&manifest).unwrap();
        fs::write(inside.join("weightloom.json"), manifest.to_bytes().unwrap()).unwrap();
        expect(Source::open(&inside), name);
        fs::remove_file(inside.join("weightloom.json")).unwrap();
    }
    for name in ["../secret.safetensors", "../a-00001-of-00001.gguf", absolute.as_str()] {
        expect(Source::open_file(storage(), name), name);
    }
    // A name as long as the one that torch wrote.
    let mut metadata = fixture("dcp/grid/.metadata");
    while let Some(at) = metadata.windows(12).position(|some| some == b"__0_0.distcp") {
        metadata[at..at + 12].copy_from_slice(b"../../passwd");
    }
    fs::write(inside.join(".metadata"), metadata).unwrap();
    expect(Source::open(&inside), "../../passwd");
}

#[cfg(unix)]
#[test]
fn links_are_followed_as_caches_need_it() {
    let _turn = turn();
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("snapshot");
    fs::create_dir(&inside).unwrap();
    fs::write(folder.path().join("blob"), fixture("gguf/parts.safetensors")).unwrap();
    std::os::unix::fs::symlink("../blob", inside.join("model.safetensors")).unwrap();
    assert!(!Source::open(&inside).unwrap().index.tensors().is_empty());
}

/// Numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit.max(1)
    }
}

/// Changes bytes in one of the ways that hurt parsers.
fn mutate(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    const NUMBERS: [u64; 7] = [0, 1, 0x7f, 0xff, u32::MAX as u64, i64::MAX as u64, u64::MAX];
    let at = random.below(bytes.len());
    let end = (at + 1 + random.below(16)).min(bytes.len());
    match random.below(7) {
        0 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
        1 => {
            let number = NUMBERS[random.below(NUMBERS.len())].to_le_bytes();
            let width = [1, 2, 4, 8][random.below(4)];
            bytes.iter_mut().skip(at).zip(&number[..width]).for_each(|(byte, with)| *byte = *with);
        }
        2 => bytes.truncate(at),
        3 => drop(bytes.drain(at.min(end)..end)),
        4 => {
            let piece = bytes[at.min(end)..end].to_vec();
            bytes.splice(at..at, piece);
        }
        5 => {
            let from = random.below(other.len());
            let piece = &other[from..(from + 64).min(other.len())];
            bytes.splice(at..at, piece.iter().copied());
        }
        _ => bytes
            .iter_mut()
            .skip(at)
            .take(1)
            .for_each(|byte| *byte = b"0123456789[]{}\"',:-.()"[random.below(22)]),
    }
}

#[test]
fn no_input_makes_a_parser_panic_or_take_much_memory() {
    let _turn = turn();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let mut random = Random(5);
    let mut messages = Vec::new();
    // Made once, and not counted as anybody's memory.
    assert!(!NATIVE.files().is_empty());
    for (name, parse) in PARSERS {
        let mut files: Vec<PathBuf> =
            fs::read_dir(corpus.join(name)).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort_unstable();
        let seeds: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
        let (mut opened, mut most) = (0, 0);
        for turn in 0..2500 {
            let mut input = seeds[turn % seeds.len()].clone();
            if turn >= seeds.len() {
                let other = &seeds[random.below(seeds.len())];
                (0..=random.below(4)).for_each(|_| mutate(&mut input, other, &mut random));
            }
            let (outcome, held) = most_held(|| parse(&input));
            opened += usize::from(outcome.is_ok());
            most = most.max(held);
            assert!(
                held <= allowed(input.len()),
                "{name} held {held} bytes for {} in turn {turn}",
                input.len()
            );
        }
        assert!(opened > 0, "no input of `{name}` is ever what it should be");
        messages.push(format!("{name}: {opened} of 2500 opened, {} KiB at most", most >> 10));
    }
    writeln!(std::io::stdout(), "{}", messages.join("\n")).unwrap();
}
