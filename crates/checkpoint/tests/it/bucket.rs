//! Ranks save to a bucket and load from it, with an unreliable line between.

use std::sync::Arc;

use crate::loopback::proxy::{Harm, Proxy, Rule};
use crate::loopback::s3::{self, S3};
use crate::model;
use crate::model::{blank, locals, state, wanted};
use weightloom_checkpoint::{
    CheckpointError, LoadOptions, LoadReport, ReplicaReads, SaveFormat, SaveOptions, SaveReport, Saver,
    Source, Storage, Target, load,
};
use weightloom_gang::{Gang, GangOptions, threads};
use weightloom_layout::{Layout, Mesh};

fn save(
    storage: &Arc<dyn Storage>,
    format: SaveFormat,
    background: Background,
) -> Vec<Result<SaveReport, CheckpointError>> {
    let mesh = Mesh::new(&[("a", 3)]).unwrap();
    let target = Target::Objects(Arc::clone(storage));
    threads::run(3, GangOptions::default(), |gang: Arc<dyn Gang>| {
        let locals = locals(mesh, gang.rank(), 4);
        let options = SaveOptions { format, ..SaveOptions::default() };
        let mut saver = Saver::new(gang)?;
        match background {
            Background::No => saver.save(&state(&locals), &target, &options, &()),
            Background::Yes => {
                saver.save_async(&state(&locals), &target, &options, Arc::new(()))?;
                Ok(saver.wait()?.expect("there was a save"))
            }
        }
    })
    .unwrap()
}

#[derive(Clone, Copy, Debug)]
enum Background {
    Yes,
    No,
}

fn load_on_two(source: &Source, replicas: ReplicaReads) -> Vec<LoadReport> {
    let mesh = Mesh::new(&[("a", 2)]).unwrap();
    threads::run(2, GangOptions::default(), |gang: Arc<dyn Gang>| {
        // All tensors on both ranks, so that there are copies to share.
        let place = |locals: &mut Vec<model::Local>| {
            for local in locals {
                let (name, dtype, dims) =
                    model::tensors().into_iter().find(|(name, ..)| *name == local.name).unwrap();
                local.spec.sharding = weightloom_checkpoint::Sharding::Layout(Layout::replicated(mesh));
                local.bytes = model::bytes_of(name, dtype, &dims);
            }
        };
        let (mut expected, mut found) = (locals(mesh, gang.rank(), 0), locals(mesh, gang.rank(), 0));
        place(&mut expected);
        place(&mut found);
        blank(&mut found);
        let (mut blob, mut counters) = (Vec::new(), Vec::new());
        let options = LoadOptions { replicas, ..LoadOptions::default() };
        let report =
            load(source, wanted(&mut found, &mut blob, &mut counters), &*gang, &options, &()).unwrap();
        for (expected, found) in expected.iter().zip(&found) {
            assert_eq!(expected.bytes, found.bytes, "{} on rank {}", expected.name, gang.rank());
        }
        assert_eq!(counters, br#"{"step":7}"#);
        report
    })
    .unwrap()
}

#[test]
fn ranks_save_to_a_bucket_and_read_once_what_they_share() {
    let server = S3::start();
    for (number, background) in [Background::No, Background::Yes].into_iter().enumerate() {
        let url = format!("s3://bucket/run/step_{number}");
        let storage: Arc<dyn Storage> = Arc::new(s3::open(server.address, &url));
        for report in save(&storage, SaveFormat::Native, background) {
            report.unwrap();
        }
        let source = Source::open_folder(Arc::clone(&storage)).unwrap();
        assert!(source.manifest.is_some());
        for copies in [ReplicaReads::Auto, ReplicaReads::Once, ReplicaReads::Each] {
            let reports = load_on_two(&source, copies);
            let read: u64 = reports.iter().map(|report| report.read.delivered).sum();
            let received: u64 = reports.iter().map(|report| report.received).sum();
            assert_eq!(read + received, 2 * source.index.bytes());
            assert_eq!(received, if copies == ReplicaReads::Each { 0 } else { source.index.bytes() });
            assert!(reports.iter().all(|report| report.verified == source.index.bytes()));
        }
        // What is there already is not overwritten.
        let again = save(&storage, SaveFormat::Native, background);
        assert!(again.iter().all(Result::is_err), "{again:?}");
    }
}

#[test]
fn torch_folders_and_plain_ones_go_to_buckets() {
    let server = S3::start();
    let storage: Arc<dyn Storage> = Arc::new(s3::open(server.address, "s3://bucket/dcp"));
    for report in save(&storage, SaveFormat::Dcp, Background::No) {
        report.unwrap();
    }
    let source = Source::open_folder(storage).unwrap();
    assert_eq!(source.index.format(), weightloom_checkpoint::Format::Dcp);
    for (name, dtype, dims) in model::tensors() {
        let entry = &source.index.tensors()[name];
        assert_eq!((entry.dtype, &entry.shape[..]), (dtype, dims.as_slice()));
    }
    let storage: Arc<dyn Storage> = Arc::new(s3::open(server.address, "s3://bucket/hf"));
    for report in save(&storage, SaveFormat::HuggingFace, Background::No) {
        report.unwrap();
    }
    let source = Source::open_folder(storage).unwrap();
    assert_eq!(source.index.format(), weightloom_checkpoint::Format::Safetensors);
    for (name, dtype, dims) in model::tensors() {
        let entry = &source.index.tensors()[name];
        assert_eq!((entry.dtype, &entry.shape[..]), (dtype, dims.as_slice()));
        assert_eq!(model::read_whole(&source, name), model::bytes_of(name, dtype, &dims), "{name}");
    }
}

fn rule(method: &'static str, target: &'static str, harm: Harm, times: usize) -> Rule {
    Rule { method, target, harm, times }
}

fn refusal(status: &'static str) -> Harm {
    Harm::Answer { status, headers: "", body: "" }
}

#[test]
fn an_unreliable_connection_loses_nothing() {
    let server = S3::start();
    let proxy = Proxy::start(server.address);
    let storage: Arc<dyn Storage> = Arc::new(s3::open(proxy.address, "s3://bucket/bad"));
    // Every kind of harm hits a write of the data, and one the manifest.
    proxy.script(&[
        rule("PUT", "chunks-00001", refusal("503"), 1),
        rule("PUT", "chunks-00000", Harm::Reset, 1),
        rule("PUT", "chunks-00002", refusal("429"), 1),
        rule("PUT", "weightloom.json", refusal("500"), 1),
        rule("GET", "chunks-00001", refusal("500"), 1),
        rule("GET", "chunks-00002", Harm::Reset, 1),
    ]);
    for report in save(&storage, SaveFormat::Native, Background::No) {
        report.unwrap();
    }
    let source = Source::open_folder(Arc::clone(&storage)).unwrap();
    load_on_two(&source, ReplicaReads::Each);
    assert_eq!(proxy.left(), 0, "{:?}", proxy.log());

    // A manifest that never arrives: an error, and no checkpoint.
    let storage: Arc<dyn Storage> = Arc::new(s3::open(proxy.address, "s3://bucket/worse"));
    proxy.script(&[rule("PUT", "weightloom.json", refusal("503"), 1000)]);
    for report in save(&storage, SaveFormat::Native, Background::No) {
        let error = report.unwrap_err();
        assert!(matches!(error, CheckpointError::Storage(_) | CheckpointError::Ranks { .. }), "{error}");
    }
    let direct: Arc<dyn Storage> = Arc::new(s3::open(server.address, "s3://bucket/worse"));
    assert!(!direct.list().unwrap().iter().any(|file| file.name == "weightloom.json"));
    let opened = Source::open_folder(direct);
    assert!(opened.is_err() || opened.is_ok_and(|source| source.manifest.is_none()));
}
