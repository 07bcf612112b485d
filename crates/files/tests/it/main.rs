//! Tests of atomic writes.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

mod locks;
mod staging;

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::Barrier;
use std::thread;

use weightloom_errors::Hint as _;
use weightloom_files::{AtomicFile, Durability, read_text, write_atomic};

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn replaces_contents_at_every_durability() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    for (text, durability) in
        [("one", Durability::None), ("two", Durability::File), ("three", Durability::FileAndFolder)]
    {
        write_atomic(&path, text.as_bytes(), durability).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    assert_eq!(names(folder.path()), ["a.txt"]);
}

#[test]
fn target_is_unchanged_until_commit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    fs::write(&path, "old").unwrap();
    let mut file = AtomicFile::create(&path).unwrap();
    file.write_all(b"new").unwrap();
    file.flush().unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    let partial = names(folder.path()).remove(0);
    assert!(partial.starts_with(".a.txt.") && partial.ends_with(".partial"), "{partial}");
    drop(file);
    assert_eq!(names(folder.path()), ["a.txt"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
}

#[test]
fn concurrent_writers_never_mix_contents() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.txt");
    let start = Barrier::new(8);
    thread::scope(|scope| {
        for writer in 0..8_u8 {
            let (path, start) = (&path, &start);
            scope.spawn(move || {
                start.wait();
                for _ in 0..20 {
                    write_atomic(path, &vec![writer; 10_000], Durability::None).unwrap();
                    let bytes = fs::read(path).unwrap();
                    assert_eq!(bytes.len(), 10_000);
                    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
                }
            });
        }
    });
    assert_eq!(names(folder.path()), ["a.txt"]);
}

#[test]
fn failures_name_the_target() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing/a.txt");
    let error = write_atomic(&path, b"", Durability::None).unwrap_err();
    assert!(error.to_string().starts_with(&format!("cannot write `{}`: ", path.display())), "{error}");
    assert_eq!(error.hint().as_deref(), Some("check the path"));
    let error = write_atomic(folder.path(), b"", Durability::None).unwrap_err();
    assert_eq!(error.path, folder.path().display().to_string());
}

#[test]
fn long_names_leave_room_for_the_temporary_suffix() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a".repeat(255), "ü".repeat(127)] {
        let path = folder.path().join(name);
        write_atomic(&path, b"x", Durability::None).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"x");
    }
}

#[cfg(unix)]
#[test]
fn permissions_are_those_of_an_ordinary_file() {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = tempfile::tempdir().unwrap();
    let mode = |name: &str| fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
    fs::write(folder.path().join("ordinary"), "").unwrap();
    write_atomic(&folder.path().join("atomic"), b"", Durability::None).unwrap();
    assert_eq!(mode("atomic"), mode("ordinary"));
}

#[cfg(unix)]
#[test]
fn replaces_a_symbolic_link_instead_of_following_it() {
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("file"), folder.path().join("link"));
    fs::write(&file, "file").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    write_atomic(&link, b"link", Durability::None).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "file");
    assert_eq!(fs::read_to_string(&link).unwrap(), "link");
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_without_an_end_is_an_error() {
    let error = read_text(Path::new("/dev/zero"), 1000).unwrap_err();
    assert_eq!(error.to_string(), "cannot read `/dev/zero`: it has more than 1000 bytes");
}
