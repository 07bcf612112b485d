//! Saved as a distributed checkpoint: everything comes back, also what torch
//! has no form of its own for.

use std::sync::Arc;

use crate::model::{blank, locals, state, wanted};
use weightloom_checkpoint::plan::LoadState;
use weightloom_checkpoint::{
    ConvertOptions, LoadOptions, SaveFormat, SaveOptions, Saver, Source, Target, convert, load,
};
use weightloom_gang::{Gang, GangOptions, solo, threads};
use weightloom_layout::Mesh;

#[test]
fn any_mesh_loads_tensors_values_and_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dcp");
    let mesh = Mesh::new(&[("a", 2), ("b", 2)]).unwrap();
    let options = SaveOptions { format: SaveFormat::Dcp, ..SaveOptions::default() };
    let reports = threads::run(mesh.len(), GangOptions::default(), |gang: Arc<dyn Gang>| {
        let locals = locals(mesh, gang.rank(), 5);
        Saver::new(gang)?.save(&state(&locals), &Target::Folder(path.clone()), &options, &())
    });
    for report in reports.unwrap() {
        report.unwrap();
    }
    let source = Source::open(&path).unwrap();
    assert!(source.index.tensors().contains_key("empty"), "it has no elements, but a name and a shape");
    let mesh = Mesh::new(&[("a", 3)]).unwrap();
    threads::run(mesh.len(), GangOptions::default(), |gang: Arc<dyn Gang>| {
        let expected = locals(mesh, gang.rank(), 2);
        let mut found = locals(mesh, gang.rank(), 2);
        blank(&mut found);
        let (mut blob, mut counters) = (Vec::new(), Vec::new());
        let state = wanted(&mut found, &mut blob, &mut counters);
        load(&source, state, &*gang, &LoadOptions::default(), &()).unwrap();
        for (expected, found) in expected.iter().zip(&found) {
            assert_eq!(expected.bytes, found.bytes, "{} on rank {}", expected.name, gang.rank());
        }
        assert_eq!(blob, [1, 2, 3, 0, 255]);
        assert_eq!(counters, br#"{"step":7}"#);
    })
    .unwrap();
}

#[test]
fn values_among_the_tensors_of_a_torch_file_are_converted() {
    let folder = tempfile::tempdir().unwrap();
    let state = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/torch/state.pt");
    for format in [SaveFormat::Native, SaveFormat::Dcp] {
        let path = folder.path().join(format!("{format:?}"));
        let save = SaveOptions { format, ..SaveOptions::default() };
        let options = ConvertOptions { save, ..ConvertOptions::default() };
        let report = convert(&Source::open(state).unwrap(), &Target::Folder(path.clone()), &options, &());
        assert_eq!(report.unwrap().left_out, [""; 0]);
        let (mut step, mut name) = (Vec::new(), Vec::new());
        let mut wanted = LoadState::new();
        wanted.bytes("step", &mut step).bytes("name", &mut name);
        let options = LoadOptions {
            unexpected: weightloom_checkpoint::plan::UnexpectedKeys::Ignore,
            ..LoadOptions::default()
        };
        let source = Source::open(&path).unwrap();
        load(&source, wanted, &*solo(GangOptions::default()), &options, &()).unwrap();
        assert_eq!((step.as_slice(), name.as_slice()), (b"7".as_slice(), "\"naïve\"".as_bytes()));
    }
}
