//! Saved on one mesh, loaded on another: nothing lost, nothing changed.

use std::sync::Arc;

use crate::model;
use crate::model::{blank, bytes_of, locals, state, tensors, wanted};
use weightloom_checkpoint::{
    CheckpointError, LoadOptions, LoadReport, ReadOptions, ReadRequest, SaveOptions, SaveReport, Saver,
    Source, Target, load, read, storage::ReadMode,
};
use weightloom_gang::{Gang, GangOptions, threads};
use weightloom_layout::{Mesh, Region};

fn mesh(sizes: &[usize]) -> Mesh {
    let names = ["a", "b", "c"];
    let axes: Vec<(&str, usize)> = names.into_iter().zip(sizes.iter().copied()).collect();
    Mesh::new(&axes).unwrap()
}

fn save(sizes: &[usize], seed: u64, target: &Target) -> Vec<Result<SaveReport, CheckpointError>> {
    let mesh = mesh(sizes);
    threads::run(mesh.len(), GangOptions::default(), |gang: Arc<dyn Gang>| {
        let locals = locals(mesh, gang.rank(), seed);
        let mut saver = Saver::new(gang)?;
        saver.save(&state(&locals), target, &SaveOptions::default(), &())
    })
    .unwrap()
}

fn load_on(sizes: &[usize], seed: u64, source: &Source) -> Vec<LoadReport> {
    let mesh = mesh(sizes);
    threads::run(mesh.len(), GangOptions::default(), |gang: Arc<dyn Gang>| {
        let expected = locals(mesh, gang.rank(), seed);
        let mut found = locals(mesh, gang.rank(), seed);
        blank(&mut found);
        let (mut blob, mut counters) = (Vec::new(), Vec::new());
        let state = wanted(&mut found, &mut blob, &mut counters);
        let report = load(source, state, &*gang, &LoadOptions::default(), &()).unwrap();
        for (expected, found) in expected.iter().zip(&found) {
            assert_eq!(expected.bytes, found.bytes, "{} on rank {}", expected.name, gang.rank());
        }
        assert_eq!(blob, [1, 2, 3, 0, 255]);
        assert_eq!(counters, br#"{"step":7}"#);
        report
    })
    .unwrap()
}

#[test]
fn every_mesh_loads_what_any_other_saved() {
    let folder = tempfile::tempdir().unwrap();
    let meshes: [&[usize]; 5] = [&[1], &[2], &[3], &[2, 2], &[4]];
    let mut fingerprints = Vec::new();
    for (number, from) in meshes.iter().enumerate() {
        for seed in 0..3 {
            let path = folder.path().join(format!("{number}-{seed}"));
            let reports = save(from, seed * 11, &Target::Folder(path.clone()));
            fingerprints.extend(reports.into_iter().map(|report| report.unwrap().fingerprint));
            let source = Source::open(&path).unwrap();
            for (turn, to) in meshes.iter().enumerate() {
                for report in load_on(to, seed + turn as u64 * 5, &source) {
                    assert_eq!(report.verified, source.index.bytes(), "all of it was compared");
                }
            }
        }
    }
    fingerprints.dedup();
    assert_eq!(fingerprints.len(), 1, "the fingerprint does not depend on ranks or layouts");
}

#[test]
fn the_files_are_plain_safetensors_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step_1");
    for report in save(&[2, 2], 5, &Target::Folder(path.clone())) {
        report.unwrap();
    }
    for file in ["model.safetensors", "training.safetensors"] {
        let bytes = std::fs::read(path.join(file)).unwrap();
        let parsed = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        for (name, dtype, dims) in tensors() {
            if let Ok(view) = parsed.tensor(name) {
                assert_eq!(view.shape(), dims);
                assert_eq!(view.data(), bytes_of(name, dtype, &dims), "{name}");
            }
        }
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left, [path], "no lock and no unfinished folder is left");
}

#[test]
fn objects_hold_the_same_under_the_same_manifest() {
    let folder = tempfile::tempdir().unwrap();
    for (sizes, seed) in [([3].as_slice(), 3), (&[2, 2], 9)] {
        let place = folder.path().join(format!("{seed}"));
        std::fs::create_dir(&place).unwrap();
        let storage = Arc::new(weightloom_checkpoint::LocalStorage::new(&place));
        for report in save(sizes, seed, &Target::Objects(storage)) {
            report.unwrap();
        }
        let source = Source::open(&place).unwrap();
        for to in [[1].as_slice(), &[4], &[2, 2]] {
            load_on(to, 13, &source);
        }
    }
}

#[test]
fn parts_are_read_as_any_dtype_with_any_budget() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    save(&[1], 0, &Target::Folder(path.clone())).pop().unwrap().unwrap();
    let source = Source::open(&path).unwrap();
    let entry = &source.index.tensors()["model.embed.weight"];
    let whole = bytes_of("model.embed.weight", entry.dtype, &entry.shape);
    for region in [Region::new(&[3, 5], &[20, 7]).unwrap(), Region::whole(&entry.shape)] {
        for budget in [1, 10_000, 1 << 30] {
            let mut into = vec![0; region.volume() * 4];
            let want = ReadRequest {
                entry,
                name: "model.embed.weight",
                region: region.clone(),
                dtype: weightloom_layout::DType::F32,
                into: &mut into,
            };
            let way = Some(if budget == 1 { ReadMode::Direct } else { ReadMode::Mapped })
                .filter(|_| budget < 1 << 20);
            let options = ReadOptions { budget, threads: Some(2), mode: way };
            read(&source, vec![want], &options, &()).unwrap();
            let part = model::part(&whole, entry.dtype, &entry.shape, &region);
            for (bf16, f32) in part.chunks(2).zip(into.chunks(4)) {
                assert_eq!([0, 0, bf16[0], bf16[1]], f32);
            }
        }
    }
}
