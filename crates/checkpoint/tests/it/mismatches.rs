//! Checkpoints that do not fit what is wanted: every mismatch is reported at once,
//! before anything is read.

use crate::model::{blank, bytes_of, locals, state};
use weightloom_checkpoint::plan::{LoadPlanError, LoadState, MissingKeys, UnexpectedKeys};
use weightloom_checkpoint::{
    CheckpointError, KeyMap, KeyRule, LoadOptions, SaveOptions, Saver, Sharding, Source, Target, TensorSpec,
    load,
};
use weightloom_gang::{GangOptions, solo, threads};
use weightloom_layout::{DType, Layout, Mesh, Shape};

fn saved(folder: &tempfile::TempDir) -> Source {
    let mesh = Mesh::new(&[("a", 1)]).unwrap();
    let locals = locals(mesh, 0, 0);
    let path = folder.path().join("x");
    let mut saver = Saver::new(solo(GangOptions::default())).unwrap();
    saver.save(&state(&locals), &Target::Folder(path.clone()), &SaveOptions::default(), &()).unwrap();
    Source::open(path).unwrap()
}

fn whole(dtype: DType, dims: &[usize]) -> TensorSpec {
    let sharding = Sharding::Layout(Layout::replicated(Mesh::new(&[("a", 1)]).unwrap()));
    TensorSpec { dtype, shape: Shape::new(dims).unwrap(), sharding }
}

#[test]
fn all_mismatches_are_reported_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let source = saved(&folder);
    let gang = solo(GangOptions::default());
    let (mut a, mut b, mut c) = (vec![7; 24 * 24 * 2], vec![7; 36 * 24 * 2], vec![7; 8]);
    let mut wanted = LoadState::new();
    wanted.tensor("model.layers.0.k.weight", whole(DType::Bf16, &[24, 24]), &mut a);
    wanted.tensor("model.embed.weight", whole(DType::Bf16, &[36, 24]), &mut b);
    wanted.tensor("scalar", whole(DType::F64, &[]), &mut c);
    let error = load(&source, wanted, &*gang, &LoadOptions::default(), &()).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, CheckpointError::LoadPlan(LoadPlanError::StateMismatch(_))), "{text}");
    for line in [
        "1 missing from the checkpoint:",
        "model.layers.0.k.weight (did you mean `model.layers.0.q.weight`?)",
        "6 unexpected in the checkpoint:",
        "model.layers.0.norm.weight",
        "1 with another shape:",
        "model.embed.weight: 36x24 expected, 37x24 in the checkpoint",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
    assert!(a.iter().chain(&b).chain(&c).all(|byte| *byte == 7), "nothing was read");
}

#[test]
fn missing_keys_may_be_kept() {
    let folder = tempfile::tempdir().unwrap();
    let source = saved(&folder);
    let gang = solo(GangOptions::default());
    let options = LoadOptions {
        missing: MissingKeys::Keep,
        unexpected: UnexpectedKeys::Ignore,
        ..LoadOptions::default()
    };
    let (mut there, mut not) = (vec![0; 8], vec![9; 8]);
    let mut wanted = LoadState::new();
    wanted.tensor("scalar", whole(DType::F64, &[]), &mut there);
    wanted.tensor("other", whole(DType::F64, &[]), &mut not);
    load(&source, wanted, &*gang, &options, &()).unwrap();
    assert_eq!(there, bytes_of("scalar", DType::F64, &[]));
    assert_eq!(not, [9; 8]);
}

#[test]
fn names_are_turned_while_loading() {
    let folder = tempfile::tempdir().unwrap();
    let source = saved(&folder);
    let rule = KeyRule::Rename { from: "model.layers.{}.q.weight".into(), to: "blocks.{}.query".into() };
    let source = source.with_keys(&KeyMap { rules: vec![rule] }).unwrap();
    let gang = solo(GangOptions::default());
    let options = LoadOptions { unexpected: UnexpectedKeys::Ignore, ..LoadOptions::default() };
    let mut query = vec![0; 24 * 24 * 2];
    let mut wanted = LoadState::new();
    wanted.tensor("blocks.0.query", whole(DType::Bf16, &[24, 24]), &mut query);
    load(&source, wanted, &*gang, &options, &()).unwrap();
    assert_eq!(query, bytes_of("model.layers.0.q.weight", DType::Bf16, &[24, 24]));
}

#[test]
fn a_mismatch_on_one_rank_fails_on_all() {
    let folder = tempfile::tempdir().unwrap();
    let source = saved(&folder);
    let mesh = Mesh::new(&[("a", 2)]).unwrap();
    let errors = threads::run(2, GangOptions::default(), |gang| {
        let mut found = locals(mesh, gang.rank(), 1);
        blank(&mut found);
        let mut wanted = LoadState::new();
        for (number, local) in found.iter_mut().enumerate() {
            let name = if number == 2 && gang.rank() == 1 { "wrong".to_owned() } else { local.name.clone() };
            wanted.tensor(name, local.spec.clone(), &mut local.bytes);
        }
        load(&source, wanted, &*gang, &LoadOptions::default(), &()).unwrap_err()
    })
    .unwrap();
    assert!(
        errors[0].to_string().starts_with("rank 1: the checkpoint does not match the state"),
        "{}",
        errors[0]
    );
    assert!(matches!(errors[1], CheckpointError::LoadPlan(_)));
}

#[test]
fn pending_sums_cannot_be_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let source = saved(&folder);
    let gang = solo(GangOptions::default());
    let pending = Layout::new(
        Mesh::new(&[("a", 1)]).unwrap(),
        &[weightloom_layout::Placement::Partial(weightloom_layout::ReduceOp::Sum)],
    );
    let mut scalar = vec![0; 8];
    let mut wanted = LoadState::new();
    let spec = TensorSpec { sharding: Sharding::Layout(pending.unwrap()), ..whole(DType::F64, &[]) };
    wanted.tensor("scalar", spec, &mut scalar);
    let options = LoadOptions { unexpected: UnexpectedKeys::Ignore, ..LoadOptions::default() };
    let error = load(&source, wanted, &*gang, &options, &()).unwrap_err();
    assert!(matches!(error, CheckpointError::LoadPlan(LoadPlanError::Pending { .. })), "{error}");
}

#[test]
fn ranks_that_ask_for_different_things_still_share() {
    let folder = tempfile::tempdir().unwrap();
    let source = saved(&folder);
    let mesh = Mesh::new(&[("a", 2)]).unwrap();
    for more in 0..2 {
        threads::run(2, GangOptions::default(), |gang| {
            let mut found = locals(mesh, gang.rank(), 1);
            found.iter_mut().for_each(|local| {
                local.spec.sharding = Sharding::Layout(Layout::replicated(mesh));
                local.bytes = vec![0xee; local.spec.shape.volume() * local.spec.dtype.size()];
            });
            let mut blob = Vec::new();
            let mut wanted = LoadState::new();
            if gang.rank() == more {
                wanted.bytes("blob", &mut blob);
            }
            for local in &mut found {
                wanted.tensor(&local.name, local.spec.clone(), &mut local.bytes);
            }
            let replicas = weightloom_checkpoint::ReplicaReads::Once;
            load(&source, wanted, &*gang, &LoadOptions { replicas, ..LoadOptions::default() }, &()).unwrap();
            for local in &found {
                let expected = bytes_of(&local.name, local.spec.dtype, &local.spec.shape);
                assert_eq!(local.bytes, expected, "{} on rank {}", local.name, gang.rank());
            }
        })
        .unwrap();
    }
}

#[test]
fn assets_never_replace_other_files() {
    let folder = tempfile::tempdir().unwrap();
    let mesh = Mesh::new(&[("a", 1)]).unwrap();
    let locals = locals(mesh, 0, 0);
    let mut saver = Saver::new(solo(GangOptions::default())).unwrap();
    for name in ["model.safetensors", "weightloom.json", "a/b.json", "../x", ""] {
        let assets = [(name.to_owned(), vec![1])].into();
        let options = SaveOptions { assets, ..SaveOptions::default() };
        let error = saver.save(&state(&locals), &Target::Folder(folder.path().join("y")), &options, &());
        assert!(matches!(error, Err(CheckpointError::Target(_))), "{name}: {error:?}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
