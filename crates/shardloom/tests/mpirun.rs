//! The binary under `mpirun`.

#![cfg(feature = "mpi")]
#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use std::process::{Command, Output};

fn mpirun(ranks: usize, arguments: &[&str]) -> Output {
    // Jobs that start at the same moment quarrel over one session folder.
    let session = tempfile::tempdir().unwrap();
    Command::new("mpirun")
        .env("TMPDIR", session.path())
        .args(["--oversubscribe", "-n", &ranks.to_string()])
        .arg(assert_cmd::cargo::cargo_bin("shardloom"))
        .args(arguments)
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .output()
        .expect("mpirun is needed: install openmpi-bin")
}

#[test]
fn quickstart_starts_its_own_ranks_and_refuses_those_of_a_job() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("tour").display().to_string();
    let output = mpirun(2, &["quickstart", "--dir", &folder]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("of an MPI job of 2, but quickstart starts its own ranks"), "{text}");
    assert!(!std::path::Path::new(&folder).exists());
}

#[test]
fn a_run_of_thread_ranks_goes_on_on_mpi_ranks() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("tour");
    let tour = Command::new(assert_cmd::cargo::cargo_bin("shardloom"))
        .args(["quickstart", "--steps", "2", "--dir", folder.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(tour.status.success(), "{}", String::from_utf8_lossy(&tour.stderr));
    let file = folder.join("pretrain.yaml").display().to_string();
    let output = mpirun(2, &["train", &file, "train.max_steps=4", "--json"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let ended: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((&ended["step"], &ended["steps_done"]), (&4.into(), &2.into()), "{text}");
}

#[test]
fn gang_check_runs_on_mpi_ranks() {
    let output = mpirun(4, &["gang", "check"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.starts_with("4 ranks (mpi) act together as they must"), "{text}");
}

#[test]
fn models_train_alike_on_mpi_ranks() {
    for ranks in [2, 4] {
        let output = mpirun(ranks, &["dtensor", "check", "--json"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&report["engine"], &report["ranks"]), (&"mpi".into(), &ranks.into()));
        let arrangements = report["arrangements"].as_array().unwrap();
        assert_eq!(arrangements.len(), if ranks == 4 { 6 } else { 4 });
        assert!(arrangements.iter().all(|one| one["apart"].as_f64().unwrap() <= 1e-5), "{text}");
    }
}

#[test]
fn a_number_of_ranks_that_contradicts_the_job_is_refused() {
    let output = mpirun(2, &["gang", "check", "--ranks", "3"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("3 ranks were asked for, but the MPI job has 2"), "{text}");
}
