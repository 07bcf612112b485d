//! Tests of staging folders and of free space.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Barrier;
use std::thread;

use weightloom_errors::Hint as _;
use weightloom_files::{
    StagingFolder, TargetLock, WriteError, check_free_space, remove_abandoned_files, remove_abandoned_staging,
};

use crate::names;

fn files(list: &[(&str, u64)]) -> BTreeMap<String, u64> {
    list.iter().map(|(name, length)| ((*name).to_owned(), *length)).collect()
}

#[test]
fn a_folder_appears_whole() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("a/b/model");
    let staging = StagingFolder::create(&target).unwrap();
    fs::write(staging.path().join("x"), "12").unwrap();
    assert!(!target.exists());
    staging.commit(&files(&[("x", 2)])).unwrap();
    drop(staging);
    assert_eq!(names(&target), ["x"]);
    assert_eq!(names(target.parent().unwrap()), ["model"]);
    let error = StagingFolder::create(&target).unwrap_err();
    assert_eq!(error, WriteError::Exists { path: target.display().to_string() });
    drop(StagingFolder::create(&folder.path().join("other")).unwrap());
    assert_eq!(names(folder.path()), ["a"]);
}

#[test]
fn of_many_writers_one_commits_what_it_wrote() {
    for round in 0..20 {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("model");
        let start = Barrier::new(6);
        let won: Vec<u8> = thread::scope(|scope| {
            let writers: Vec<_> = (0..6_u8)
                .map(|writer| {
                    let (target, start) = (&target, &start);
                    scope.spawn(move || -> Result<u8, WriteError> {
                        start.wait();
                        let staging = StagingFolder::create(target)?;
                        for name in ["a", "b"] {
                            fs::write(staging.path().join(name), [writer; 1000]).unwrap();
                        }
                        staging.commit(&files(&[("a", 1000), ("b", 1000)]))?;
                        Ok(writer)
                    })
                })
                .collect();
            writers.into_iter().filter_map(|writer| writer.join().unwrap().ok()).collect()
        });
        assert_eq!(won.len(), 1, "round {round}");
        for name in ["a", "b"] {
            assert_eq!(fs::read(target.join(name)).unwrap(), [won[0]; 1000]);
        }
        assert_eq!(names(folder.path()), ["model"]);
    }
}

#[test]
fn only_what_the_writer_wrote_is_committed() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("model");
    let refused = |change: &dyn Fn(&Path), reason: &str| {
        let staging = StagingFolder::create(&target).unwrap();
        fs::write(staging.path().join("x"), "12").unwrap();
        change(staging.path());
        let error = staging.commit(&files(&[("x", 2)])).unwrap_err();
        assert!(matches!(error, WriteError::Changed { .. }), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        assert!(!target.exists());
    };
    refused(&|folder| fs::write(folder.join("y"), "").unwrap(), "another process wrote `y`");
    refused(&|folder| fs::write(folder.join("x"), "123").unwrap(), "`x` has 3 bytes instead of 2");
    refused(&|folder| fs::remove_file(folder.join("x")).unwrap(), "`x` is missing");
    let replace = |folder: &Path| {
        fs::remove_dir_all(folder).unwrap();
        fs::create_dir(folder).unwrap();
        fs::write(folder.join("x"), "21").unwrap();
    };
    refused(&replace, "belongs to another writer");
}

#[test]
fn a_target_that_appears_meanwhile_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("model");
    let staging = StagingFolder::create(&target).unwrap();
    fs::create_dir(&target).unwrap();
    let error = staging.commit(&files(&[])).unwrap_err();
    assert_eq!(error, WriteError::Exists { path: target.display().to_string() });
}

#[test]
fn what_killed_writers_left_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let kept = [".model.b.0123456789.partial", ".model.short.partial", ".models.0123456789.partial"];
    for name in kept.iter().chain(&[".model.0123456789.partial", ".model.partial"]) {
        fs::create_dir_all(folder.path().join(name).join("inner")).unwrap();
    }
    fs::write(folder.path().join(".model.abcdefghij.partial"), "a file").unwrap();
    let writing = StagingFolder::create(&folder.path().join("models")).unwrap();
    remove_abandoned_staging(&folder.path().join("models"));
    assert!(writing.path().exists(), "a folder in use is not abandoned");
    drop(writing);
    fs::create_dir(folder.path().join(kept[2])).unwrap();
    drop(StagingFolder::create(&folder.path().join("model")).unwrap());
    let mut left = names(folder.path());
    assert!(left.contains(&".model.abcdefghij.partial".to_owned()));
    left.retain(|name| name != ".model.abcdefghij.partial");
    assert_eq!(left, kept);
    // Files have locks of their own.
    let target = folder.path().join("model");
    let lock = TargetLock::try_take(&target).unwrap();
    remove_abandoned_files(&target, &lock);
    drop(lock);
    assert_eq!(names(folder.path()), kept);
    // A lock that a killed process left goes too.
    fs::write(folder.path().join(".model.lock"), "process 1").unwrap();
    remove_abandoned_staging(&target);
    assert_eq!(names(folder.path()), kept);
}

#[test]
fn more_than_the_disk_holds_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("missing/model");
    check_free_space(&target, 0).unwrap();
    // File systems without a size refuse nothing.
    let Some(available) = weightloom_machine::free_space(folder.path()) else { return };
    let needed = u64::MAX;
    let error = check_free_space(&target, needed).unwrap_err();
    let folder = folder.path().join("missing").display().to_string();
    let path = target.display().to_string();
    match &error {
        WriteError::NoSpace { path: of, folder: on, needed: 18446744073709551615, .. } => {
            assert_eq!((of, on), (&path, &folder));
        }
        other => panic!("{other}"),
    }
    assert!(error.to_string().contains("it needs 18.4 EB, and"), "{error}");
    assert!(available > 0 && error.hint().is_some());
}
