//! Training on MPI ranks gives the same bits as on thread ranks.
//!
//! Has its own harness, because it starts itself under `mpirun`: without known
//! arguments it trains on threads, starts itself, and compares; started as
//! `rank NUMBER`, it is one rank of the case with that number and prints its
//! losses.

#![expect(clippy::print_stdout, reason = "the test reads what ranks print")]
#![allow(clippy::unwrap_used, reason = "a rank that panics is a failed test")]

#[path = "../../tensor/tests/it/device.rs"]
#[allow(dead_code, reason = "the models need only the device")]
mod device;
#[path = "../../train/tests/it/setup/mod.rs"]
mod setup;

use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use setup::{Recipe, Setup, models};
use weightloom_gang::GangOptions;
use weightloom_gang_mpi::{MpiOptions, MpiWorld};
use weightloom_train::engine::StepResult;

const STEPS: u64 = 50;

/// Longer than any job takes, even on a loaded machine.
const LIMIT: Duration = Duration::from_secs(300);

/// The compared cases.
fn arrangements() -> Vec<(&'static str, Recipe, Setup)> {
    let llama = || Recipe::of(models::llama());
    vec![
        ("DP2", llama(), Setup::ranks(2)),
        ("FSDP2", llama(), Setup::ranks(2).fsdp(2).reshard_after_forward()),
        ("TP2", llama(), Setup::ranks(2).tp(2).sequence_parallel()),
        ("PP2", llama(), Setup::ranks(2).pp(2).micro_batches(4).interleaved(2)),
        ("tied PP2", Recipe::of(models::gpt2()), Setup::ranks(2).pp(2).micro_batches(2).one_f_one_b()),
        (
            "adapter FSDP2",
            llama().with_adapter(),
            Setup::ranks(2).fsdp(2).reshard_after_forward().checkpointed(),
        ),
        ("bf16 TP2", llama(), Setup::ranks(2).tp(2).bf16()),
        ("DP2 x TP2", llama(), Setup::ranks(4).tp(2)),
        (
            "FSDP2 x PP2",
            llama(),
            Setup::ranks(4).pp(2).fsdp(2).micro_batches(2).one_f_one_b().reshard_after_forward(),
        ),
        ("DP2 x FSDP2", llama(), Setup::ranks(4).fsdp(2).reshard_after_forward()),
    ]
}

/// Steps as text that keeps every bit.
fn written(steps: &[StepResult]) -> Vec<String> {
    let bits = |step: &StepResult| {
        format!("{:016x} {:016x} {}", step.loss.to_bits(), step.gradient_norm.to_bits(), step.targets)
    };
    steps.iter().map(bits).collect()
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [word, number] = &arguments[..]
        && word == "rank"
    {
        return rank(number.parse().unwrap());
    }
    // As in the standard harness: a word selects tests by substring.
    let chosen = |name: &str| {
        let words: Vec<&String> = arguments.iter().filter(|word| !word.starts_with('-')).collect();
        words.is_empty() || words.iter().any(|word| name.contains(word.as_str()))
    };
    if arguments.iter().any(|word| word == "--list") {
        return;
    }
    for (number, (name, recipe, how)) in arrangements().into_iter().enumerate() {
        if !chosen(name) {
            continue;
        }
        let expected = written(&setup::run(&recipe, &how, STEPS));
        let output = mpirun(how.ranks, number);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{name}: {text}{}", String::from_utf8_lossy(&output.stderr));
        for rank in 0..how.ranks {
            let start = format!("rank {rank}: ");
            let found: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(&start)).collect();
            assert_eq!(found, expected, "{name}: rank {rank} differs from thread ranks");
        }
        println!("test {name}: {STEPS} steps, the same bits on MPI ranks and on threads ... ok");
    }
}

/// One rank of a job.
fn rank(number: usize) {
    let (_, recipe, how) = arrangements().swap_remove(number);
    let world = MpiWorld::join(MpiOptions { gang: GangOptions::default(), max_message: 1 << 30 }).unwrap();
    let root = world.root();
    let rank = root.rank();
    for line in written(&setup::train(root, &recipe, &how, STEPS)) {
        println!("rank {rank}: {line}");
    }
    world.leave().unwrap();
}

/// Starts this program as the ranks of a job. Kills a job that hangs and fails
/// the test.
fn mpirun(ranks: usize, number: usize) -> Output {
    // Jobs that start at the same time must not share a session folder.
    let session = tempfile::tempdir().unwrap();
    let mut job = Command::new("mpirun")
        .env("TMPDIR", session.path())
        .args(["--oversubscribe", "-n", &ranks.to_string()])
        .arg(std::env::current_exe().unwrap())
        .args(["rank", &number.to_string()])
        // Containers run as root, which mpirun only allows with both variables.
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        // mpirun waits forever for a lock in shared memory that a killed rank held.
        .env("PMIX_MCA_gds", "hash")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("mpirun is needed: install openmpi-bin");
    let begun = Instant::now();
    // The output fits into a pipe, so it can be read at the end.
    while job.try_wait().unwrap().is_none() {
        if begun.elapsed() > LIMIT {
            job.kill().unwrap();
            panic!("{:?} hangs: {:?}", arrangements()[number].0, job.wait_with_output().unwrap());
        }
        thread::sleep(Duration::from_millis(20));
    }
    job.wait_with_output().unwrap()
}
