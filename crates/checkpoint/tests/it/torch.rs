//! Files that torch itself wrote, and files that it would not write.

use std::sync::Arc;

use crate::bytewise::{Memory, assert_tensors, damage_everything, fixture};
use weightloom_checkpoint::{Format, Source};
use weightloom_errors::Hint;

fn open(name: &str) -> Source {
    Source::open(fixture(name)).unwrap()
}

fn refused(name: &str) -> (String, String) {
    let Err(error) = Source::open(fixture(name)) else { panic!("{name} was read") };
    (error.to_string(), error.hint().unwrap_or_default())
}

#[test]
fn every_dtype_is_read() {
    let source = open("torch/dtypes.pt");
    assert_eq!(source.index.format(), Format::Torch);
    assert_tensors(&source, "torch/dtypes.expected.safetensors");
}

#[test]
fn views_ties_and_nesting_are_read_where_they_are() {
    for name in ["torch/state.pt", "torch/state_protocol_5.pt"] {
        let source = open(name);
        assert_tensors(&source, "torch/state.expected.safetensors");
        let tensors = source.index.tensors();
        assert_eq!(tensors["model.head.weight"].tiles, tensors["model.embedding.weight"].tiles);
        assert_eq!(tensors["model.expanded"].tiles[0].strides[0], 0);
        assert_eq!(&tensors["model.transposed"].tiles[0].strides[..], [4, 16]);
    }
}

#[test]
fn other_values_are_kept_as_json() {
    let source = open("torch/state.pt");
    let kept: Vec<(&str, &str)> =
        source.index.metadata().iter().map(|(name, json)| (name.as_str(), json.as_str())).collect();
    let expected = [
        ("device", r#""cuda:1""#),
        ("dtype", r#""torch.bfloat16""#),
        ("flag", "true"),
        ("name", r#""naïve""#),
        ("nan", r#""NaN""#),
        ("no_items", "[]"),
        ("nothing", "null"),
        ("optimizer.groups.0.betas", "[0.9,0.999]"),
        ("optimizer.groups.0.params", "[0]"),
        ("rate", "0.001"),
        ("raw", "[0,255]"),
        ("seed", "18446744073709551615"),
        ("shape", "[2,3]"),
        ("step", "7"),
        ("tags", r#"["a"]"#),
    ];
    assert_eq!(kept, expected);
}

#[test]
fn a_file_without_checksums_and_one_of_a_bare_tensor() {
    assert_tensors(&open("torch/no_checksums.pth"), "torch/no_checksums.expected.safetensors");
    let source = open("torch/bare.bin");
    assert_eq!(source.index.tensors().keys().collect::<Vec<_>>(), ["tensor"]);
}

#[test]
fn an_index_selects_the_tensors_of_a_folder() {
    let source = open("torch/sharded");
    assert_tensors(&source, "torch/sharded.expected.safetensors");
    let mut files = Memory::of("torch/sharded");
    let index = files.0.get_mut("pytorch_model.bin.index.json").unwrap();
    *index = String::from_utf8(index.clone()).unwrap().replace("\"b\"", "\"c\"").into_bytes();
    let error = files.open(None).unwrap_err();
    assert!(
        error.ends_with("`c` is mapped to `pytorch_model-00002-of-00002.bin`, which does not have it"),
        "{error}"
    );
}

#[test]
fn tensors_without_plain_elements_are_refused_by_name() {
    for (name, kind) in [
        ("sparse", "sparse"),
        ("meta", "meta (without data)"),
        ("quantised", "quantised"),
        ("negated", "lazily changed (neg)"),
    ] {
        let file = format!("refused_{name}.pt");
        let (error, hint) = refused(&format!("torch/{file}"));
        assert_eq!(error, format!("cannot read `{file}`: `layer.weight` is an unsupported {kind} tensor"));
        assert!(hint.contains("dense"), "{hint}");
    }
    let (error, _) = refused("torch/refused_complex.pt");
    assert!(error.ends_with("`layer.weight` has unsupported dtype complex64"), "{error}");
}

#[test]
fn old_forms_are_refused_with_the_way_out() {
    let (error, hint) = refused("torch/refused_legacy.pt");
    assert!(error.contains("pickle format of old torch versions"), "{error}");
    assert!(hint.contains("torch.save(torch.load(old), new)"), "{hint}");
    let mut tar = vec![0; 1024];
    tar[257..262].copy_from_slice(b"ustar");
    let open = |bytes: Vec<u8>| {
        Memory([("a.pt".to_owned(), bytes)].into(), Arc::default()).open(Some("a.pt")).unwrap_err()
    };
    assert!(open(tar).contains("tar format"));
    assert_eq!(open(Vec::new()), "cannot read `a.pt`: not a file of `torch.save`");
}

#[test]
fn a_pickle_that_would_run_code_is_refused_by_name() {
    // The pickle of a real file, with one name replaced by another as long.
    let mut files = Memory::of("torch/no_checksums.pth");
    let bytes = files.0.get_mut("no_checksums.pth").unwrap();
    let name = b"ctorch._utils\n_rebuild_tensor_v2\n";
    let at = bytes.windows(name.len()).position(|window| window == name).unwrap();
    bytes[at..at + name.len()].copy_from_slice(b"cposix.system\ncalled_from_a_file\n");
    let error = files.open(Some("no_checksums.pth")).unwrap_err();
    assert_eq!(
        error,
        "cannot read `no_checksums.pth`: the pickle uses `posix.system.called_from_a_file`, which is not allowed"
    );
}

#[test]
fn the_other_byte_order_is_refused() {
    let mut files = Memory::of("torch/no_checksums.pth");
    let bytes = files.0.get_mut("no_checksums.pth").unwrap();
    let at = bytes.windows(6).position(|window| window == b"little").unwrap();
    bytes[at..at + 6].copy_from_slice(b"bigbig");
    assert!(files.open(Some("no_checksums.pth")).unwrap_err().contains("unsupported byte order `bigbig`"));
}

#[test]
fn damaged_files_are_refused_or_stay_inside_themselves() {
    damage_everything(&Memory::of("torch/no_checksums.pth"), Some("no_checksums.pth"));
    damage_everything(&Memory::of("torch/state_protocol_5.pt"), Some("state_protocol_5.pt"));
}
