//! GGUF files of the reference writer against what Hugging Face would hold,
//! and files that were made to harm.

use std::sync::Arc;

use crate::elementwise::{assert_same, fixtures};
use weightloom_checkpoint::Storage as _;
use weightloom_checkpoint::formats::gguf::{GgufArray, GgufError, GgufValue, read_metadata};
use weightloom_checkpoint::{CheckpointError, Format, FormatError, LocalStorage, MemoryStorage, Source};
use weightloom_errors::Hint;

const FILES: [&str; 4] = ["llama", "qwen3moe", "gpt2", "other"];

fn expected(stem: &str) -> Source {
    Source::open(fixtures("gguf").join(format!("{stem}.safetensors"))).unwrap()
}

fn bytes(file: &str) -> Vec<u8> {
    std::fs::read(fixtures("gguf").join(file)).unwrap()
}

fn open(bytes: &[u8]) -> Result<Source, CheckpointError> {
    Source::open_file(Arc::new(MemoryStorage::one("a.gguf", bytes)), "a.gguf")
}

fn error(bytes: &[u8]) -> GgufError {
    match open(bytes).err().expect("it should be refused") {
        CheckpointError::Format { problem: FormatError::Gguf(error), .. } => error,
        other => panic!("{other}"),
    }
}

#[test]
fn tensors_are_those_of_hugging_face() {
    for stem in FILES {
        let found = Source::open(fixtures("gguf").join(format!("{stem}.gguf"))).unwrap();
        assert_eq!(found.index.format(), Format::Gguf);
        assert_same(&found, &expected(stem));
    }
}

#[test]
fn version_2_is_read_too() {
    let mut file = bytes("llama.gguf");
    file[4] = 2;
    assert_same(&open(&file).unwrap(), &expected("llama"));
}

#[test]
fn parts_form_one_checkpoint_whichever_is_opened() {
    for part in 1..=3 {
        let found = Source::open(fixtures("gguf").join(format!("parts-0000{part}-of-00003.gguf"))).unwrap();
        assert_eq!(found.index.files().len(), 3);
        assert_same(&found, &expected("parts"));
    }
    let lonely = error(&bytes("parts-00002-of-00003.gguf"));
    assert_eq!(lonely, GgufError::PartName { count: 3 });
    assert_eq!(lonely.hint().unwrap(), "name the parts `name-00001-of-00003.gguf` and so on");
}

#[test]
fn a_folder_holds_one_checkpoint() {
    let folder = |files: &[&str]| {
        let place = MemoryStorage::default();
        files.iter().for_each(|name| place.put(name, &bytes(name)).unwrap());
        Source::open_folder(Arc::new(place))
    };
    let parts = ["parts-00001-of-00003.gguf", "parts-00002-of-00003.gguf", "parts-00003-of-00003.gguf"];
    assert_same(&folder(&parts).unwrap(), &expected("parts"));
    assert_same(&folder(&["gpt2.gguf"]).unwrap(), &expected("gpt2"));
    let error = folder(&["gpt2.gguf", "llama.gguf"]).err().unwrap().to_string();
    assert_eq!(error, "cannot read `gpt2.gguf`: `llama.gguf` is another checkpoint in the same folder");
    let error = folder(&parts[..2]).err().unwrap().to_string();
    assert_eq!(error, "cannot find `parts-00003-of-00003.gguf` in memory");
}

#[test]
fn metadata_have_types_and_text() {
    let storage = LocalStorage::new(fixtures("gguf"));
    let metadata = read_metadata(&storage, "llama.gguf").unwrap();
    let value = |key: &str| &metadata.iter().find(|(found, _)| found == key).unwrap().1;
    assert_eq!(*value("llama.attention.head_count_kv"), GgufValue::U32(2));
    assert_eq!(*value("llama.rope.freq_base"), GgufValue::F32(10000.0));
    let GgufValue::Array(GgufArray::String(tokens)) = value("tokenizer.ggml.tokens") else { panic!() };
    assert_eq!((tokens.len(), tokens[99].as_str()), (100, "token 99"));
    let index = Source::open(fixtures("gguf").join("llama.gguf")).unwrap().index;
    assert_eq!(index.metadata()["tokenizer.ggml.tokens"], "[100 strings]");
    assert_eq!(index.metadata()["general.tags"], "[small, random]");
    assert_eq!(index.metadata()["general.architecture"], "llama");
}

#[test]
fn truncation_anywhere_is_an_error() {
    for stem in FILES {
        let file = bytes(&format!("{stem}.gguf"));
        // Padding behind the last tensor may go.
        for length in 0..file.len() - 128 {
            assert!(open(&file[..length]).is_err(), "{stem} at {length}");
        }
    }
}

#[test]
fn flipped_bits_do_no_harm() {
    for stem in FILES {
        let file = bytes(&format!("{stem}.gguf"));
        for at in 0..file.len().min(2500) {
            for flip in [1, 0x80, 0xff] {
                let mut file = file.clone();
                file[at] ^= flip;
                // Values may change; what matters is that nothing panics.
                let _ = open(&file);
            }
        }
    }
}

/// A file by hand: metadata and tensors as bytes.
struct Forged(Vec<u8>);

impl Forged {
    fn new(tensors: u64, values: u64) -> Self {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(tensors.to_le_bytes());
        bytes.extend(values.to_le_bytes());
        Self(bytes)
    }

    fn text(mut self, text: &str) -> Self {
        self.0.extend((text.len() as u64).to_le_bytes());
        self.0.extend(text.as_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn tensor(self, name: &str, sizes: &[u64], kind: u32, offset: u64) -> Self {
        let named = self.text(name).u32(sizes.len() as u32);
        sizes.iter().fold(named, |file, &size| file.u64(size)).u32(kind).u64(offset)
    }

    fn data(mut self, count: usize) -> Vec<u8> {
        self.0.resize(self.0.len().next_multiple_of(32) + count, 7);
        self.0
    }
}

#[test]
fn lies_are_typed_errors() {
    let new = Forged::new;
    assert_eq!(error(b"GGML\x03\0\0\0"), GgufError::NotGguf);
    assert_eq!(error(b"GGUF\0\0\0\x03"), GgufError::BigEndian);
    assert_eq!(error(b"GGUF\x01\0\0\0"), GgufError::Version { version: 1 });
    // Counts, lengths and arrays far beyond the file.
    for file in [
        new(u64::MAX, 0),
        new(0, u64::MAX),
        new(0, 1).u64(u64::MAX),
        new(0, 1).text("a").u32(9).u32(8).u64(u64::MAX),
        new(0, 1).text("a").u32(9).u32(12).u64(u64::MAX / 2),
        new(0, 1).text("a").u32(9).u32(9).u64(u64::MAX),
    ] {
        assert!(matches!(error(&file.data(0)), GgufError::Short { .. } | GgufError::ValueType { .. }));
    }
    let deep = (0..5).fold(new(0, 1).text("a").u32(9), |file, _| file.u32(9).u64(1));
    assert_eq!(error(&deep.data(64)), GgufError::Depth { key: "a".to_owned(), limit: 4 });
    assert_eq!(
        error(&new(0, 1).text("a").u32(77).data(9)),
        GgufError::ValueType { key: "a".to_owned(), kind: 77 }
    );
    assert_eq!(
        error(&new(0, 2).text("a").u32(4).u32(1).text("a").u32(4).u32(2).data(0)),
        GgufError::KeyTwice { key: "a".to_owned() }
    );
    for alignment in [0, 3, 1 << 31] {
        let file = new(0, 1).text("general.alignment").u32(4).u32(alignment).data(0);
        assert_eq!(error(&file), GgufError::Alignment { found: alignment.to_string() });
    }
}

#[test]
fn false_tensors_are_typed_errors() {
    let new = Forged::new;
    let tensor = || "t".to_owned();
    let kind = error(&new(1, 0).tensor("t", &[256], 16, 0).data(999));
    assert_eq!(kind, GgufError::TensorType { tensor: tensor(), kind: "IQ2_XXS".to_owned() });
    assert_eq!(kind.to_string(), "`t` has unsupported type IQ2_XXS");
    assert!(matches!(
        error(&new(1, 0).tensor("t", &[1; 5], 0, 0).data(99)),
        GgufError::Dims { count: 5, .. }
    ));
    let huge = new(1, 0).tensor("t", &[1 << 40, 1 << 40], 0, 0).data(99);
    assert!(matches!(error(&huge), GgufError::Shape { .. }));
    assert!(matches!(error(&new(1, 0).tensor("t", &[33], 8, 0).data(99)), GgufError::Row { row: 33, .. }));
    for offset in [1, u64::MAX - 31] {
        let found = error(&new(1, 0).tensor("t", &[8], 0, offset).data(99));
        assert_eq!(found, GgufError::Offset { tensor: tensor(), offset });
    }
    let overlap = new(2, 0).tensor("t", &[16], 0, 32).tensor("s", &[9], 0, 0).data(999);
    assert_eq!(error(&overlap), GgufError::Overlap { tensor: tensor(), before: "s".to_owned() });
    let twice = new(2, 0).tensor("t", &[8], 0, 32).tensor("t", &[8], 0, 0).data(999);
    assert_eq!(error(&twice), GgufError::Twice { tensor: tensor() });
    let short = open(&new(1, 0).tensor("t", &[8], 0, 0).data(31)).err().unwrap();
    assert!(matches!(short, CheckpointError::Index(_)), "{short}");
}

#[test]
fn rows_of_heads_must_fit() {
    let llama = |values: u64| Forged::new(1, 1 + values).text("general.architecture").u32(8).text("llama");
    let name = "blk.0.attn_q.weight";
    let unknown = llama(0).tensor(name, &[2, 8], 0, 0).data(99);
    assert!(matches!(error(&unknown), GgufError::NoCount { .. }));
    for heads in [0, 3, 1 << 20, u32::MAX] {
        let head_count = llama(1).text("llama.attention.head_count").u32(4).u32(heads);
        let file = head_count.tensor(name, &[1, 1 << 21], 0, 0).data(4 << 21);
        assert!(matches!(error(&file), GgufError::Heads { .. }), "{heads}");
    }
}
