//! Saves in the background: what is saved is what there was when the call
//! returned, within the memory allowed, and failures are reported.

use std::path::Path;
use std::sync::Arc;

use crate::model::{locals, state};
use weightloom_checkpoint::{
    CheckpointError, CheckpointFolder, SaveOptions, Saver, Source, Target, fingerprint, verify,
};
use weightloom_gang::{Gang, GangOptions, threads};
use weightloom_layout::Mesh;

/// Saves in the background on two ranks, spoils the state at once, and tells
/// the fingerprint that was saved.
fn save(path: &Path, budget: u64) -> String {
    let mesh = Mesh::new(&[("a", 2)]).unwrap();
    let target = Target::Folder(path.to_owned());
    let reports = threads::run(2, GangOptions::default(), |gang: Arc<dyn Gang>| {
        let mut locals = locals(mesh, gang.rank(), 3);
        let mut saver = Saver::new(gang).unwrap();
        let options = SaveOptions { budget, ..SaveOptions::default() };
        saver.save_async(&state(&locals), &target, &options, Arc::new(())).unwrap();
        locals.iter_mut().for_each(|local| local.bytes.fill(0));
        let report = saver.wait().unwrap().expect("there was a save");
        assert!(report.stall <= report.total);
        assert!(!saver.is_saving() && saver.wait().unwrap().is_none());
        report.fingerprint.to_string()
    })
    .unwrap();
    assert_eq!(reports[0], reports[1]);
    reports[0].clone()
}

#[test]
fn a_background_save_stores_the_state_at_the_call() {
    let folder = tempfile::tempdir().unwrap();
    let mut seen = Vec::new();
    for budget in [0, 1000, 1 << 30] {
        let path = folder.path().join(budget.to_string());
        let saved = save(&path, budget);
        let source = Source::open(&path).unwrap();
        verify(&source, &()).unwrap();
        assert_eq!(fingerprint(&source, &()).unwrap().fingerprint.to_string(), saved);
        seen.push(saved);
    }
    seen.dedup();
    assert_eq!(seen.len(), 1, "the budget changes nothing: {seen:?}");
}

#[test]
fn a_background_failure_is_reported_by_the_next_call() {
    let place = tempfile::tempdir().unwrap();
    let folder = CheckpointFolder::new(place.path());
    let mesh = Mesh::new(&[("a", 2)]).unwrap();
    threads::run(2, GangOptions::default(), |gang: Arc<dyn Gang>| {
        let rank = gang.rank();
        let locals = locals(mesh, rank, 0);
        let mut saver = Saver::new(Arc::clone(&gang)).unwrap();
        let options = SaveOptions::default();
        saver.save(&state(&locals), &folder.target(1), &options, &()).unwrap();
        // Before the background writes, the folder under it vanishes.
        let watcher = Vanish { folder: place.path().to_owned() };
        saver.save_async(&state(&locals), &folder.target(2), &options, Arc::new(watcher)).unwrap();
        let messages = saver.save(&state(&locals), &folder.target(3), &options, &()).unwrap_err();
        assert!(
            matches!(&messages, CheckpointError::Storage(_) | CheckpointError::Ranks { .. }),
            "rank {rank}: {messages}"
        );
        // Told once; then saving goes on.
        saver.save(&state(&locals), &folder.target(4), &options, &()).unwrap();
    })
    .unwrap();
    let steps: Vec<u64> = folder.list().unwrap().iter().map(|saved| saved.step).collect();
    assert_eq!(steps, [1, 4]);
    for saved in folder.list().unwrap() {
        verify(&Source::open(saved.path).unwrap(), &()).unwrap();
    }
}

/// Removes the unfinished folders as soon as something is written into them.
struct Vanish {
    folder: std::path::PathBuf,
}

impl weightloom_checkpoint::Observer for Vanish {
    fn begin(&self, _work: &str, total: u64) {
        if total > 0 {
            for entry in std::fs::read_dir(&self.folder).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_some_and(|end| end == "partial") {
                    let _ = std::fs::remove_dir_all(path);
                }
            }
        }
    }
}
