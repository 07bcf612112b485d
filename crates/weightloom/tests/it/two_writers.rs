//! Two processes that convert into one target: one succeeds, the other says why
//! not, and the target is what the first one printed.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

fn weightloom(folder: &Path, arguments: &[&str]) -> Child {
    Command::new(assert_cmd::cargo::cargo_bin("weightloom"))
        .args(arguments)
        .current_dir(folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// A file of 4 MiB whose bytes differ from source to source.
fn source(path: &Path, seed: u32) {
    const ELEMENTS: u32 = 1 << 20;
    let length = 4 * u64::from(ELEMENTS);
    let header = format!(r#"{{"a":{{"dtype":"I32","shape":[{ELEMENTS}],"data_offsets":[0,{length}]}}}}"#);
    let data = (0..ELEMENTS).flat_map(|i| i.wrapping_mul(seed).to_le_bytes());
    let bytes = (header.len() as u64).to_le_bytes().into_iter().chain(header.into_bytes()).chain(data);
    fs::write(path, bytes.collect::<Vec<u8>>()).unwrap();
}

fn fingerprint(output: &Output) -> String {
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    json["fingerprint"].as_str().unwrap().to_owned()
}

#[test]
fn two_conversions_into_one_target_end_with_one_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["first.safetensors", "second.safetensors"];
    source(&folder.path().join(names[0]), 1);
    source(&folder.path().join(names[1]), 12345);
    for round in 0..12 {
        let target = format!("model-{round}");
        let format = ["native", "hf", "dcp"][round % 3];
        let running = names
            .map(|name| weightloom(folder.path(), &["convert", name, &target, "--to", format, "--json"]));
        let ended = running.map(|child| child.wait_with_output().unwrap());
        let (won, lost): (Vec<_>, Vec<_>) = ended.iter().partition(|output| output.status.success());
        assert_eq!((won.len(), lost.len()), (1, 1), "round {round}: {ended:?}");
        assert_eq!(lost[0].status.code(), Some(2));
        let message = String::from_utf8_lossy(&lost[0].stderr).into_owned();
        assert!(message.contains("is writing it") || message.contains("exists already"), "{message}");
        let found =
            weightloom(folder.path(), &["fingerprint", &target, "--json"]).wait_with_output().unwrap();
        assert_eq!(fingerprint(&found), fingerprint(won[0]), "round {round}");
    }
    let mut left: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.retain(|name| name.starts_with('.'));
    assert_eq!(left, [""; 0], "no locks and no unfinished folders are left");
}
