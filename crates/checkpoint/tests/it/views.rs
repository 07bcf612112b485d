//! Cut, joined, transposed, regrouped: views give what the same done to the
//! elements would.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use weightloom_checkpoint::{
    FileId, Format, Index, KeyMap, KeyRule, LocalStorage, ReadOptions, ReadRequest, Source, StoredFile,
    TensorEntry, Tile, read,
};
use weightloom_errors::Hint;
use weightloom_layout::{DType, Region, Shape};

/// A tensor of u16 that counts up, in a file of a folder, stored in two parts.
fn counting(folder: &tempfile::TempDir, dims: &[usize], cut: usize) -> Source {
    let shape = Shape::new(dims).unwrap();
    let values: Vec<u16> = (0..shape.volume() as u16).collect();
    std::fs::write(folder.path().join("data"), bytemuck::cast_slice(&values)).unwrap();
    let row = shape.volume() / dims[0] * 2;
    let part = |rows: std::ops::Range<usize>| {
        let region = Region::whole(&shape).with_range(0, rows.clone());
        Tile::contiguous(region, FileId(0), (rows.start * row) as u64, DType::U16)
    };
    let tiles = vec![part(0..cut), part(cut..dims[0])];
    let tensors = BTreeMap::from([("w".to_owned(), TensorEntry { dtype: DType::U16, shape, tiles })]);
    let files = vec![StoredFile { name: "data".to_owned(), length: values.len() as u64 * 2 }];
    let index = Index::new(Format::Safetensors, files, tensors).unwrap();
    Source::new(index, Arc::new(LocalStorage::new(folder.path())))
}

fn values(source: &Source, name: &str, entry: &TensorEntry, region: &Region) -> Vec<u16> {
    let mut values = vec![0u16; region.volume()];
    let into = bytemuck::cast_slice_mut(&mut values);
    let want = ReadRequest { name, entry, region: region.clone(), dtype: DType::U16, into };
    read(
        source,
        vec![want],
        &ReadOptions { budget: 1 << 20, threads: Some(1), ..ReadOptions::default() },
        &(),
    )
    .unwrap();
    values
}

fn whole(source: &Source, entry: &TensorEntry) -> Vec<u16> {
    values(source, "w", entry, &Region::whole(&entry.shape))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn views_are_what_they_say(rows in 1usize..9, columns in 1usize..9, cut in 0usize..9, at in 0usize..9, to in 0usize..9) {
        let folder = tempfile::tempdir().unwrap();
        let source = counting(&folder, &[rows, columns], cut.min(rows));
        let entry = &source.index.tensors()["w"];
        let dense = |r: usize, c: usize| (r * columns + c) as u16;

        let turned = entry.transpose(0, 1).unwrap();
        let expected: Vec<u16> = (0..columns).flat_map(|c| (0..rows).map(move |r| dense(r, c))).collect();
        prop_assert_eq!(whole(&source, &turned), expected);

        let (start, end) = (at.min(columns).min(to.min(columns)), at.min(columns).max(to.min(columns)));
        let part = entry.narrow(1, start..end).unwrap();
        let expected: Vec<u16> = (0..rows).flat_map(|r| (start..end).map(move |c| dense(r, c))).collect();
        prop_assert_eq!(whole(&source, &part), expected);

        let pieces = [entry.narrow(1, end..columns).unwrap(), entry.narrow(1, 0..end).unwrap()];
        let joined = TensorEntry::join(1, &pieces).unwrap();
        let expected: Vec<u16> = (0..rows)
            .flat_map(|r| (end..columns).chain(0..end).map(move |c| dense(r, c)))
            .collect();
        prop_assert_eq!(whole(&source, &joined), expected.clone());
        let inside = Region::new(&[rows / 2, columns / 3], &[rows - rows / 2, columns - columns / 3]).unwrap();
        let chosen: Vec<u16> = (rows / 2..rows)
            .flat_map(|r| expected[r * columns + columns / 3..(r + 1) * columns].to_vec())
            .collect();
        prop_assert_eq!(values(&source, "w", &joined, &inside), chosen);
    }

    #[test]
    fn regrouping_there_and_back_is_nothing(outer in 1usize..4, inner in 1usize..4, rest in 1usize..5, columns in 1usize..4) {
        let folder = tempfile::tempdir().unwrap();
        let size = outer * inner * rest;
        let source = counting(&folder, &[size, columns], size);
        let mut entry = source.index.tensors()["w"].clone();
        entry.tiles.truncate(1);
        let grouped = entry.regroup(0, outer, inner).unwrap();
        let expected: Vec<u16> = (0..outer)
            .flat_map(|o| (0..rest).flat_map(move |r| (0..inner).map(move |i| (o * inner + i) * rest + r)))
            .flat_map(|row| (0..columns).map(move |c| (row * columns + c) as u16))
            .collect();
        prop_assert_eq!(whole(&source, &grouped), expected);
        let region = Region::whole(&grouped.shape);
        prop_assert_eq!(grouped.tiles.iter().map(|tile| tile.region.volume()).sum::<usize>(), region.volume());
    }
}

#[test]
fn rules_rename_split_join_and_refuse() {
    let folder = tempfile::tempdir().unwrap();
    let source = counting(&folder, &[6, 2], 3);
    let rule = |json: &str| -> KeyMap { serde_json::from_str(json).unwrap() };
    let keys = rule(
        r#"[{"rename": {"from": "w", "to": "layers.0.qkv"}},
            {"split": {"from": "layers.{}.qkv", "dim": 0, "into": [["l.{}.q", 4], ["l.{}.kv", 2]]}},
            {"join": {"from": ["l.{}.kv", "l.{}.q"], "dim": 0, "to": "l.{}.all"}},
            {"transpose": {"key": "l.{}.all"}}]"#,
    );
    let seen = source.with_keys(&keys).unwrap();
    let entry = &seen.index.tensors()["l.0.all"];
    assert_eq!(whole(&seen, entry), [8, 10, 0, 2, 4, 6, 9, 11, 1, 3, 5, 7]);

    let refused = |keys: &KeyMap| source.with_keys(keys).err().expect("refused").to_string();
    let wrong = KeyMap {
        rules: vec![KeyRule::Split {
            from: "w".into(),
            dim: 0,
            into: vec![("a".into(), 4), ("b".into(), 3)],
        }],
    };
    assert_eq!(refused(&wrong), "cannot split `w`: dim 0 has 6 elements, and the parts take 7");
    let wrong = KeyMap { rules: vec![KeyRule::Rename { from: "w".into(), to: "x.{}".into() }] };
    assert_eq!(refused(&wrong), "`w` and `x.{}` have different numbers of `{}`");
    assert!(serde_json::from_str::<KeyMap>(r#"[{"rename": {"from": "w", "into": "x"}}]"#).is_err());
}

#[test]
fn rules_stack_and_lead_back() {
    let folder = tempfile::tempdir().unwrap();
    let source = counting(&folder, &[6, 2], 3);
    let keys: KeyMap = serde_json::from_str(
        r#"[{"split": {"from": "w", "dim": 0, "into": [["e.0.x", 2], ["e.1.x", 2], ["e.2.x", 2]]}},
            {"transpose": {"key": "e.{}.x"}},
            {"stack": {"from": "e.{}.x", "to": "e.x"}}]"#,
    )
    .unwrap();
    let seen = source.with_keys(&keys).unwrap();
    let entry = &seen.index.tensors()["e.x"];
    assert_eq!(entry.shape[..], [3, 2, 2]);
    assert_eq!(whole(&seen, entry), [0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11]);
    let part = Region::new(&[1, 0, 1], &[2, 2, 1]).unwrap();
    assert_eq!(values(&seen, "e.x", entry, &part), [6, 7, 10, 11]);

    let back = seen.with_keys(&keys.inverse().unwrap()).unwrap();
    assert_eq!(back.index.tensors().keys().collect::<Vec<_>>(), ["w"]);
    assert_eq!(whole(&back, &back.index.tensors()["w"]), (0..12).collect::<Vec<u16>>());

    let gap: KeyMap = serde_json::from_str(
        r#"[{"rename": {"from": "w", "to": "e.1.x"}}, {"stack": {"from": "e.{}.x", "to": "e.x"}}]"#,
    )
    .unwrap();
    let refused = source.with_keys(&gap).err().expect("refused").to_string();
    assert_eq!(refused, "cannot join `e.x`: `e.0.x` is missing");
    let one_way: KeyMap =
        serde_json::from_str(r#"[{"regroup": {"key": "w", "dim": 0, "outer": 1, "inner": 2}}]"#).unwrap();
    assert!(one_way.inverse().is_err());
}

/// Consecutive one-dimensional tensors of a file.
fn flat(folder: &tempfile::TempDir, parts: &[(&str, Vec<u16>)]) -> Source {
    let values: Vec<u16> = parts.iter().flat_map(|(_, values)| values.iter().copied()).collect();
    std::fs::write(folder.path().join("data"), bytemuck::cast_slice(&values)).unwrap();
    let mut tensors = BTreeMap::new();
    let mut offset = 0;
    for (name, values) in parts {
        let shape = Shape::new(&[values.len()]).unwrap();
        let tiles = vec![Tile::contiguous(Region::whole(&shape), FileId(0), offset, DType::U16)];
        offset += values.len() as u64 * 2;
        tensors.insert((*name).to_owned(), TensorEntry { dtype: DType::U16, shape, tiles });
    }
    let files = vec![StoredFile { name: "data".to_owned(), length: offset }];
    let index = Index::new(Format::Safetensors, files, tensors).unwrap();
    Source::new(index, Arc::new(LocalStorage::new(folder.path())))
}

/// A regrouping of which a split before it says how large the dim is can be
/// turned around; one that does not divide it, or groups nothing, cannot.
#[test]
fn regrouped_parts_lead_back() {
    let folder = tempfile::tempdir().unwrap();
    let source = counting(&folder, &[18], 12);
    for (outer, inner) in [(1, 2), (2, 3), (3, 2), (2, 2), (12, 1), (1, 12)] {
        let keys: KeyMap = serde_json::from_str(&format!(
            r#"[{{"split": {{"from": "w", "dim": 0, "into": [["q", 12], ["k", 6]]}}}},
                {{"regroup": {{"key": "q", "dim": 0, "outer": {outer}, "inner": {inner}}}}}]"#,
        ))
        .unwrap();
        let seen = source.with_keys(&keys).unwrap();
        let saved = tempfile::tempdir().unwrap();
        let parts = ["q", "k"].map(|name| (name, whole(&seen, &seen.index.tensors()[name])));
        let back = flat(&saved, &parts).with_keys(&keys.inverse().unwrap()).unwrap();
        assert_eq!(
            whole(&back, &back.index.tensors()["w"]),
            (0..18).collect::<Vec<u16>>(),
            "{outer} {inner}"
        );
    }
    for (key, outer, inner) in [("k", 4, 5), ("q", 0, 2), ("q", 5, 2), ("other", 1, 2)] {
        let keys: KeyMap = serde_json::from_str(&format!(
            r#"[{{"split": {{"from": "w", "dim": 0, "into": [["q", 12], ["k", 6]]}}}},
                {{"regroup": {{"key": "{key}", "dim": 0, "outer": {outer}, "inner": {inner}}}}}]"#,
        ))
        .unwrap();
        assert!(keys.inverse().is_err(), "{key} {outer} {inner}");
    }
}

/// Shapes of the results tell what rules alone do not: how large regrouped dims are,
/// and that of joined tensors once their sizes are known.
#[test]
fn joined_and_regrouped_tensors_lead_back_by_their_shapes() {
    let folder = tempfile::tempdir().unwrap();
    let parts = [
        ("l.0.a", (0..8).collect()),
        ("l.0.b", (8..12).collect()),
        ("l.1.a", (12..20).collect()),
        ("l.1.b", (20..24).collect()),
    ];
    let source = flat(&folder, &parts);
    let keys: KeyMap = serde_json::from_str(
        r#"[{"regroup": {"key": "l.{}.a", "dim": 0, "outer": 2, "inner": 2}},
            {"regroup": {"key": "l.{}.b", "dim": 0, "outer": 1, "inner": 2}},
            {"join": {"from": ["l.{}.a", "l.{}.b"], "dim": 0, "to": "layers.{}.ab"}}]"#,
    )
    .unwrap();
    let seen = source.with_keys(&keys).unwrap();
    let shapes: BTreeMap<String, Shape> =
        seen.index.tensors().iter().map(|(name, entry)| (name.clone(), entry.shape.clone())).collect();
    let error = keys.inverse_for(&shapes).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot invert the rule for `layers.{}.ab`: the sizes of the parts are unknown"
    );
    assert_eq!(error.hint().as_deref(), Some("add `sizes` to the `join` rule"));
    let written: Vec<(&str, Vec<u16>)> =
        seen.index.tensors().iter().map(|(name, entry)| (name.as_str(), whole(&seen, entry))).collect();
    let saved = tempfile::tempdir().unwrap();
    // As an index has them, and as the rule says.
    let mut said = keys.clone();
    if let KeyRule::Join { sizes, .. } = &mut said.rules[2] {
        *sizes = Some(vec![8, 4]);
    }
    assert_eq!(keys.with_sizes_of(&source.index), said);
    let back = flat(&saved, &written).with_keys(&said.inverse_for(&shapes).unwrap()).unwrap();
    let read: Vec<(&str, Vec<u16>)> =
        back.index.tensors().iter().map(|(name, entry)| (name.as_str(), whole(&back, entry))).collect();
    assert_eq!(read, parts);
    // A tensor of another size cannot have been joined by these rules.
    let uneven = BTreeMap::from([("layers.0.ab".to_owned(), Shape::new(&[10]).unwrap())]);
    assert!(said.inverse_for(&uneven).is_err());
}

#[test]
fn elements_that_repeat_are_read_once() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("data"), [1u8, 0, 2, 0, 3, 0]).unwrap();
    let file = StoredFile { name: "data".to_owned(), length: 6 };
    // As torch expands: rows that are the same bytes, and columns.
    for (dims, strides, expected) in [
        ([2, 3], [0, 2], [1, 2, 3, 1, 2, 3]),
        ([3, 2], [2, 0], [1, 1, 2, 2, 3, 3]),
        ([2, 3], [0, 0], [1, 1, 1, 1, 1, 1]),
    ] {
        let shape = Shape::new(&dims).unwrap();
        let mut tile = Tile::contiguous(Region::whole(&shape), FileId(0), 0, DType::U16);
        tile.strides = strides.into_iter().collect();
        let entry = TensorEntry { dtype: DType::U16, shape, tiles: vec![tile] };
        let tensors = BTreeMap::from([("w".to_owned(), entry)]);
        let index = Index::new(Format::Torch, vec![file.clone()], tensors).unwrap();
        let source = Source::new(index, Arc::new(LocalStorage::new(folder.path())));
        let entry = &source.index.tensors()["w"];
        let mut found = vec![0u16; 6];
        let into = bytemuck::cast_slice_mut(&mut found);
        let region = Region::whole(&entry.shape);
        let want = ReadRequest { name: "w", entry, region, dtype: DType::U16, into };
        let report = read(&source, vec![want], &ReadOptions::default(), &()).unwrap();
        assert_eq!(found, expected);
        assert!(report.read <= 6 && report.requests <= 3, "{report:?}");
    }
}
