//! Folders with one file for each model-parallel rank.

use crate::bytewise::{Memory, assert_tensors, damage_everything, fixture};
use weightloom_checkpoint::{Format, Source};

#[test]
fn parts_are_put_together_by_name() {
    for name in ["width", "vocabulary"] {
        let source = Source::open(fixture(&format!("consolidated/{name}"))).unwrap();
        assert_eq!(source.index.format(), Format::Consolidated);
        assert_tensors(&source, &format!("consolidated/{name}.expected.safetensors"));
        let tiles = |name: &str| source.index.tensors()[name].tiles.len();
        assert_eq!((tiles("layers.0.attention.wo.weight"), tiles("norm.weight")), (2, 1));
    }
}

#[test]
fn a_missing_file_is_noticed() {
    let mut files = Memory::of("consolidated/width");
    let last = files.0.remove("consolidated.01.pth").unwrap();
    // The last one leaves no gap, but an embedding of half the width.
    let error = files.clone().open(None).unwrap_err();
    assert!(error.contains("`tok_embeddings.weight` is 10x4 in each of 1 files"), "{error}");
    files.0.insert("consolidated.02.pth".to_owned(), last);
    assert!(files.open(None).unwrap_err().contains("`consolidated.01.pth` is missing"));
}

#[test]
fn files_of_different_models_do_not_mix() {
    let mut files = Memory::of("consolidated/width");
    files.0.insert(
        "consolidated.01.pth".to_owned(),
        Memory::of("consolidated/vocabulary").0["consolidated.01.pth"].clone(),
    );
    let error = files.open(None).unwrap_err();
    assert!(error.contains("`tok_embeddings.weight` is 5x8 of bf16 here, but 10x4 of bf16"), "{error}");
    let mut files = Memory::of("consolidated/width");
    files.0.insert("consolidated.02.pth".to_owned(), files.0["consolidated.01.pth"].clone());
    let error = files.open(None).unwrap_err();
    assert!(error.contains("`tok_embeddings.weight` is 10x4 in each of 3 files"), "{error}");
}

#[test]
fn an_unknown_name_is_an_error() {
    let mut files = Memory::of("consolidated/width");
    for bytes in files.0.values_mut() {
        let name = b"feed_forward.w3";
        let at = bytes.windows(name.len()).position(|window| window == name).unwrap();
        bytes[at + name.len() - 1] = b'9';
        // The change would be noticed by the checksum: 0 stands for none.
        let directory = bytes.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
        bytes[directory + 16..directory + 20].fill(0);
    }
    let error = files.open(None).unwrap_err();
    assert!(
        error
            .contains("cannot tell along which dim `layers.0.feed_forward.w9.weight` was split into 2 files"),
        "{error}"
    );
}

#[test]
fn damaged_files_are_refused_or_stay_inside_themselves() {
    damage_everything(&Memory::of("consolidated/width"), None);
}
