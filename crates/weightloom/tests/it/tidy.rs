//! House rules that a compiler does not know.

use std::fs;
use std::path::{Path, PathBuf};

/// Files that may contain `unsafe`. Add one only with a reason that the file
/// itself explains.
const UNSAFE: [&str; 9] = [
    "crates/checkpoint/src/storage/mapped.rs",
    "crates/checkpoint/tests/memory/allocation.rs",
    "crates/cuda/src/cublaslt.rs",
    "crates/cuda/src/nvidia.rs",
    "crates/gang/src/threads/collective.rs",
    "crates/gang-mpi/src/comm.rs",
    "crates/python/src/memory.rs",
    "crates/tensor/src/kernels/matmul/bf16_dot.rs",
    "crates/tensor/src/kernels/matmul/transpose.rs",
];

/// Names that say nothing about what is inside.
const DUMPING_GROUNDS: [&str; 7] = ["util", "utils", "common", "base", "helpers", "misc", "types"];

const MOST_LINES: usize = 800;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every Rust file of the workspace, with its path from the root.
fn sources() -> Vec<(String, String)> {
    let mut folders = ["crates", "bench", "examples/own"].map(|folder| root().join(folder)).to_vec();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                // What a build left behind is not ours.
                if path.file_name().is_some_and(|name| name != "target") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root()).unwrap().to_str().unwrap().replace('\\', "/");
                files.push((name, fs::read_to_string(path).unwrap()));
            }
        }
    }
    assert!(files.len() > 30, "the walk found the sources");
    files.sort();
    files
}

/// Names of the files that break a rule.
fn offenders(breaks: impl Fn(&str, &str) -> bool) -> Vec<String> {
    sources().into_iter().filter(|(name, text)| breaks(name, text)).map(|(name, _)| name).collect()
}

#[test]
fn every_file_begins_by_saying_what_it_is() {
    assert_eq!(offenders(|_, text| !text.starts_with("//! ")), [""; 0]);
}

#[test]
fn files_are_small() {
    assert_eq!(offenders(|_, text| text.lines().count() > MOST_LINES), [""; 0]);
}

#[test]
fn names_are_nouns() {
    let vague = |name: &str, _: &str| {
        let path = Path::new(name);
        path.iter().any(|part| DUMPING_GROUNDS.iter().any(|vague| part.to_str() == Some(vague)))
            || DUMPING_GROUNDS.iter().any(|vague| path.file_stem().is_some_and(|stem| stem == *vague))
    };
    assert_eq!(offenders(vague), [""; 0]);
}

#[test]
fn unsafe_code_stays_where_it_is_explained() {
    let uses = |_: &str, text: &str| {
        text.lines().any(|line| {
            let code = line.split("//").next().unwrap_or_default();
            code.contains("unsafe {") || code.contains("unsafe fn") || code.contains("unsafe impl")
        })
    };
    let mut found = offenders(|name, text| uses(name, text) && name != "crates/weightloom/tests/it/tidy.rs");
    found.sort_unstable();
    let mut expected = UNSAFE;
    expected.sort_unstable();
    assert_eq!(found, expected);
}

/// A crate without unsafe code keeps it out, also out of code that a macro expands to.
#[test]
fn crates_without_unsafe_code_forbid_it() {
    let has_unsafe = |root: &str| {
        let sources = root.rsplit_once('/').unwrap().0;
        UNSAFE.iter().any(|file| file.starts_with(&format!("{sources}/")))
    };
    let is_root = |name: &str| name.ends_with("/src/lib.rs") || name.ends_with("/src/main.rs");
    let forbids = |text: &str| text.lines().any(|line| line == "#![forbid(unsafe_code)]");
    let wrong = offenders(|name, text| is_root(name) && has_unsafe(name) == forbids(text));
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn no_test_is_switched_off() {
    let marker = concat!("#[", "ignore");
    assert_eq!(offenders(|_, text| text.contains(marker)), [""; 0]);
}
