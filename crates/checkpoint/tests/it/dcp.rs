//! Distributed checkpoints that torch itself wrote, and ours.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use crate::bytewise::{Memory, assert_tensors, bytes, damage_everything, fixture};
use serde_json::json;
use weightloom_checkpoint::formats::dcp::{self, DcpItem, DcpRank, DcpValue, read_value};
use weightloom_checkpoint::{Format, Source, Storage};
use weightloom_layout::{DType, Region, Shape};

fn open(name: &str) -> Source {
    let source = Source::open(fixture(&format!("dcp/{name}"))).unwrap();
    assert_eq!(source.index.format(), Format::Dcp);
    source
}

fn value(source: &Source, name: &str) -> serde_json::Value {
    let blob = source.index.blobs()[name];
    let mut bytes = vec![0; blob.length as usize];
    source.storage.read_at(&source.index.file(blob.file).name, blob.offset, &mut bytes).unwrap();
    read_value(name, &bytes).unwrap()
}

#[test]
fn shards_of_all_kinds_are_read() {
    assert_tensors(&open("plain"), "dcp/plain.expected.safetensors");
    assert_tensors(&open("threads"), "dcp/few.expected.safetensors");
    assert_tensors(&open("grid"), "dcp/grid.expected.safetensors");
}

#[test]
fn tensors_in_safetensors_are_read() {
    assert_tensors(&open("safetensors"), "dcp/contiguous.expected.safetensors");
    assert_tensors(&open("hugging_face"), "dcp/contiguous.expected.safetensors");
}

#[test]
fn a_part_is_one_tile() {
    let source = open("plain");
    let tiles = |name: &str| source.index.tensors()[name].tiles.len();
    assert_eq!((tiles("model.fsdp_uneven.weight"), tiles("model.tp.weight")), (2, 2));
    assert_eq!((tiles("model.replicated.weight"), tiles("model.fsdp_one_row.weight")), (1, 1));
    // A transposed tensor stays as it is.
    assert_eq!(&source.index.tensors()["model.transposed"].tiles[0].strides[..], [4, 16]);
}

#[test]
fn values_are_read_without_running_anything() {
    for name in ["plain", "safetensors"] {
        let source = open(name);
        let values: BTreeMap<&str, serde_json::Value> = source
            .index
            .blobs()
            .keys()
            .map(|name| (name.strip_prefix("values.").unwrap(), value(&source, name)))
            .collect();
        let expected = json!({
            "step": 7, "rate": 0.125, "name": "naïve", "nothing": null, "flag": true, "pair": [1, 2], "raw": [0, 255],
        });
        assert_eq!(serde_json::to_value(values).unwrap(), expected);
    }
}

#[test]
fn names_and_their_paths_are_kept() {
    let source = open("plain");
    let metadata = source.index.metadata();
    assert_eq!(metadata["dcp.version"], "1.0.0");
    let paths: serde_json::Value = serde_json::from_str(&metadata["dcp.paths"]).unwrap();
    assert_eq!(paths["model.fsdp.weight"], json!(["model", "fsdp.weight"]));
    assert_eq!(paths["layers.1"], json!(["layers", 1]));
}

#[test]
fn ranks_that_did_not_speak_with_each_other_are_put_together() {
    let source = open("apart");
    assert_tensors(&source, "dcp/few.expected.safetensors");
    assert_eq!(value(&source, "step"), json!(7));
}

#[test]
fn each_part_costs_one_read() {
    let rows = 100;
    let part = |row| item("rows", DType::U8, &[rows, 1 << 16], region(&[row, 0], &[1, 1 << 16]));
    let rank = DcpRank { items: (0..rows).map(part).collect(), values: Vec::new() };
    let mut files = Memory::default();
    files.0.insert(dcp::file_name(0), write(&rank, 0));
    files.0.insert(dcp::METADATA_FILE.to_owned(), dcp::metadata(&[rank]).unwrap());
    let reads = files.1.clone();
    files.open(None).unwrap();
    // The description and the beginning of the first part are the two more.
    assert_eq!(reads.load(Ordering::Relaxed), rows + 2);
}

#[test]
fn a_missing_file_is_noticed() {
    let mut files = Memory::of("dcp/plain");
    files.0.remove("__0_0.distcp");
    assert_eq!(files.open(None).unwrap_err(), "cannot find `__0_0.distcp` in memory");
    let mut files = Memory::of("dcp/plain");
    let other = files.0["__0_0.distcp"].clone();
    files.0.insert("__1_0.distcp".to_owned(), other);
    assert!(files.open(None).is_err());
}

#[test]
fn metadata_that_would_run_code_is_refused_by_name() {
    let mut files = Memory::of("dcp/grid");
    let program = b"\x80\x04\x8c\x08builtins\x8c\x04exec\x93\x8c\x04pass\x85R.";
    files.0.insert(".metadata".to_owned(), program.to_vec());
    let error = files.open(None).unwrap_err();
    assert_eq!(error, "cannot read `.metadata`: the pickle uses `builtins.exec`, which is not allowed");
}

#[test]
fn damaged_files_are_refused_or_stay_inside_themselves() {
    for name in ["grid", "hugging_face", "safetensors"] {
        damage_everything(&Memory::of(&format!("dcp/{name}")), None);
    }
}

fn region(start: &[usize], size: &[usize]) -> Region {
    Region::new(start, size).unwrap()
}

fn item(name: &str, dtype: DType, shape: &[usize], region: Region) -> DcpItem {
    DcpItem { name: name.to_owned(), dtype, shape: Shape::new(shape).unwrap(), region }
}

/// Fills a rank's file with bytes by their position.
fn write(rank: &DcpRank, seed: u8) -> Vec<u8> {
    let file = rank.lay_out().unwrap();
    let mut bytes = vec![0xee; file.length as usize];
    let mut put = |at: u64, part: &[u8]| bytes[at as usize..at as usize + part.len()].copy_from_slice(part);
    for (offset, value) in &file.values {
        put(*offset, value);
    }
    for placed in &file.items {
        let data: Vec<u8> = (0..placed.data.end - placed.data.start).map(|at| at as u8 ^ seed).collect();
        put(placed.offset, &placed.prefix);
        put(placed.data.start, &data);
        let suffix = placed.suffix(0);
        put(placed.data.end, &suffix);
        assert_eq!(placed.offset + placed.prefix.len() as u64, placed.data.start);
        assert_eq!(placed.data.end + suffix.len() as u64, placed.offset + placed.length);
        assert_eq!(placed.data.start % 64, 0);
    }
    bytes
}

#[test]
fn written_folders_read_back() {
    let whole = |dtype: DType| item(dtype.name(), dtype, &[3], region(&[0], &[3]));
    let values = json!({"a": [1, 2.5, null], "b": {"c": "text"}});
    let ranks = [
        DcpRank {
            items: vec![
                item("rows", DType::F32, &[5, 2], region(&[0, 0], &[3, 2])),
                item("columns", DType::Bf16, &[2, 5], region(&[0, 0], &[2, 3])),
                item("nothing", DType::I64, &[0, 4], region(&[0, 0], &[0, 4])),
                item("scalar", DType::F64, &[], region(&[], &[])),
            ],
            values: vec![DcpValue { name: "values".to_owned(), value: values.clone() }],
        },
        DcpRank {
            items: [
                item("rows", DType::F32, &[5, 2], region(&[3, 0], &[2, 2])),
                item("columns", DType::Bf16, &[2, 5], region(&[0, 3], &[2, 2])),
            ]
            .into_iter()
            .chain(DType::ALL.map(whole))
            .collect(),
            values: Vec::new(),
        },
    ];
    let mut files = Memory::default();
    for (number, rank) in ranks.iter().enumerate() {
        files.0.insert(dcp::file_name(number), write(rank, number as u8));
    }
    files.0.insert(dcp::METADATA_FILE.to_owned(), dcp::metadata(&ranks).unwrap());
    let storage = std::sync::Arc::new(files);
    let source = Source::open_folder(storage.clone()).unwrap();
    assert_eq!(value(&source, "values"), values);
    let tensors = source.index.tensors();
    assert_eq!(tensors.len(), 4 + DType::ALL.len());
    for dtype in DType::ALL {
        let expected: Vec<u8> = (0..3 * dtype.size()).map(|at| at as u8 ^ 1).collect();
        assert_eq!((tensors[dtype.name()].dtype, bytes(&source, dtype.name())), (dtype, expected));
    }
    let rows: Vec<u8> = (0..24).chain((0..16).map(|at| at ^ 1)).collect();
    assert_eq!(bytes(&source, "rows"), rows);
    let columns = [0, 1, 2, 3, 4, 5, 1, 0, 3, 2, 6, 7, 8, 9, 10, 11, 5, 4, 7, 6];
    assert_eq!(bytes(&source, "columns"), columns);
    assert!(storage.length(".metadata").unwrap() < 6000);
}

#[test]
fn parts_that_do_not_make_up_a_tensor_are_not_described() {
    let first = item("a", DType::F32, &[4], region(&[0], &[2]));
    let rank = |items: Vec<DcpItem>| DcpRank { items, values: Vec::new() };
    let error = |ranks: &[DcpRank]| dcp::metadata(ranks).unwrap_err().to_string();
    assert!(error(&[rank(vec![first.clone()])]).contains("no region covers [2:4]"));
    assert!(error(&[rank(vec![first.clone(), first.clone()])]).contains("both cover [0:2]"));
    let other = item("a", DType::F16, &[4], region(&[2], &[2]));
    assert_eq!(
        error(&[rank(vec![first]), rank(vec![other])]),
        "chunks of `a` disagree about its shape or dtype"
    );
}
