//! Runs under `mpirun` that get a signal, and ranks that freeze.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const RUN: &str = "\
model: {name: llama, config_overrides: {vocab_size: 67, hidden_size: 16, intermediate_size: 24,
        num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, max_position_embeddings: 64}}
data: {type: dummy, max_seq_len: 16}
train: {max_steps: 100000, global_batch_size: 6, checkpoint: {save_steps: 1, output_dir: out}}
";

/// Starts a run on this many ranks.
fn start(folder: &Path, ranks: usize, more: &[&str]) -> Child {
    fs::write(folder.join("run.yaml"), RUN).unwrap();
    let mut command = Command::new("mpirun");
    command.env("TMPDIR", folder).current_dir(folder).args(["--oversubscribe", "-n", &ranks.to_string()]);
    command.arg(assert_cmd::cargo::cargo_bin("weightloom")).args(["--json", "train", "run.yaml"]).args(more);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    // mpirun waits forever for a lock in shared memory that a killed rank held.
    command.env("PMIX_MCA_gds", "hash");
    command.env("WEIGHTLOOM_THREADS", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("mpirun is needed: install openmpi-bin")
}

fn signal(process: u32, name: &str) {
    let sent = Command::new("sh").args(["-c", &format!("kill -s {name} {process}")]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn a_signal_to_mpirun_ends_a_run_with_a_checkpoint() {
    let place = tempfile::tempdir().unwrap();
    let mut job = start(place.path(), 2, &["train.checkpoint.save_steps=0"]);
    let mut lines = BufReader::new(job.stdout.take().unwrap()).lines();
    assert!(lines.by_ref().take(4).all(|line| line.is_ok()));
    signal(job.id(), "USR1");
    let last = lines.map(Result::unwrap).last().unwrap();
    let mut errors = String::new();
    job.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!(job.wait().unwrap().code(), Some(75), "{last}\n{errors}");
    let end: Value = serde_json::from_str(&last).unwrap();
    assert_eq!(end["end"], "stopped", "{end}");
    let step = end["step"].as_u64().unwrap();
    // It resumes. Fewer steps are another run, unless that is accepted.
    let steps = format!("train.max_steps={}", step + 2);
    let more = start(place.path(), 2, &[&steps, "--force-resume"]).wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&more.stdout).into_owned();
    let end: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((&end["end"], &end["steps_done"]), (&"finished".into(), &2.into()), "{text}");
}

/// The process of a rank, once it runs.
fn process_of(job: &Child, rank: usize) -> u32 {
    let children = format!("/proc/{0}/task/{0}/children", job.id());
    let is_rank = |process: &u32| {
        let variables = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        variables.split(|byte| *byte == 0).any(|one| one == format!("OMPI_COMM_WORLD_RANK={rank}").as_bytes())
    };
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(30) {
        let text = fs::read_to_string(&children).unwrap_or_default();
        if let Some(process) = text.split_whitespace().filter_map(|id| id.parse().ok()).find(is_rank) {
            return process;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("rank {rank} does not run");
}

/// Frozen while it starts and loads, computes, communicates or saves.
#[cfg(target_os = "linux")]
#[test]
fn a_frozen_rank_of_a_run_is_named() {
    for (steps, delay) in [(0, 0), (0, 100), (1, 0), (2, 7), (5, 3), (9, 20)] {
        let place = tempfile::tempdir().unwrap();
        let mut job = start(place.path(), 3, &["--timeout", "3"]);
        let frozen = process_of(&job, 1);
        let mut lines = BufReader::new(job.stdout.take().unwrap()).lines();
        assert!(lines.by_ref().take(steps).all(|line| line.is_ok()));
        std::thread::sleep(Duration::from_millis(delay));
        signal(frozen, "STOP");
        let begun = Instant::now();
        let rest = std::thread::spawn(move || lines.map_while(Result::ok).count());
        let mut errors = String::new();
        job.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        let status = job.wait().unwrap();
        rest.join().unwrap();
        let what = format!("after {steps} lines and {delay} ms: {errors}");
        assert!(!status.success() && begun.elapsed() < Duration::from_secs(60), "{what}");
        let blamed: Vec<&str> = errors.lines().filter(|line| line.contains("did not join")).collect();
        // A rank may also wait for one that waits for the frozen one.
        let named = blamed.iter().any(|line| line.contains("rank 1 did not join"));
        // Before MPI has started, no rank knows the others.
        assert!(named || errors.contains("not all ranks have joined"), "{what}");
        assert!(named || steps == 0, "{what}");
    }
}
