//! Tests of locks, between threads and between processes.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use weightloom_errors::Hint as _;
use weightloom_files::{FileLock, TargetLock, WriteError};

use crate::names;

/// Makes the test the process that holds a lock: on which target.
const TASK: &str = "WEIGHTLOOM_TEST_HOLDS";

#[test]
fn a_second_writer_learns_the_holder() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("model");
    let first = TargetLock::try_take(&target).unwrap();
    assert!(first.is_exclusive());
    let error = TargetLock::try_take(&target).unwrap_err();
    let path = target.display().to_string();
    let holder = Some(format!("process {}", std::process::id()));
    assert_eq!(error, WriteError::InUse { path: path.clone(), holder });
    assert_eq!(
        error.to_string(),
        format!("cannot write `{path}`: process {} is writing it", std::process::id())
    );
    assert!(error.hint().is_some());
    assert!(TargetLock::try_take(&folder.path().join("other")).is_ok());
    drop(first);
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn a_killed_holder_blocks_nobody() {
    if let Ok(target) = env::var(TASK) {
        let _lock = TargetLock::try_take(Path::new(&target)).unwrap();
        let mut out = std::io::stdout().lock();
        writeln!(out, "\nheld").and_then(|()| out.flush()).unwrap();
        thread::sleep(Duration::from_secs(60));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("model");
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "locks::a_killed_holder_blocks_nobody", "--nocapture"])
        .env(TASK, &target)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.ends_with("held")));
    match TargetLock::try_take(&target).unwrap_err() {
        WriteError::InUse { holder, .. } => assert_eq!(holder, Some(format!("process {}", child.id()))),
        other => panic!("{other}"),
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(names(folder.path()), [".model.lock"]);
    drop(TargetLock::try_take(&target).unwrap());
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn removing_the_lock_file_lets_nobody_in_twice() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("model");
    let (inside, entered, start) = (AtomicUsize::new(0), AtomicUsize::new(0), Barrier::new(8));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                start.wait();
                for _ in 0..200 {
                    if let Ok(_lock) = TargetLock::try_take(&target) {
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        entered.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    assert!(entered.into_inner() > 0);
}

#[test]
fn a_writer_can_wait() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("cards.yaml");
    let first = TargetLock::try_take(&target).unwrap();
    let error = TargetLock::take(&target, Duration::from_millis(50)).unwrap_err();
    assert!(matches!(error, WriteError::InUse { .. }));
    thread::scope(|scope| {
        let second = scope.spawn(|| TargetLock::take(&target, Duration::from_secs(60)).map(drop));
        thread::sleep(Duration::from_millis(50));
        drop(first);
        second.join().unwrap().unwrap();
    });
}

#[test]
fn an_untrusted_lock_file_names_no_holder() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.lock");
    for text in ["", "process ", "process 12\u{1b}[2J", "process x", "someone"] {
        fs::write(&path, text).unwrap();
        assert_eq!(FileLock::holder(&path), None, "{text:?}");
    }
    fs::write(&path, "process 12\n").unwrap();
    assert_eq!(FileLock::holder(&path).as_deref(), Some("process 12"));
}
