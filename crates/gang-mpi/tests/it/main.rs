//! MPI ranks under `mpirun`: conformance, equal bits, failing ranks.
//!
//! Each test starts `gang-mpi-scenario` and reads the output of its ranks.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use weightloom_gang::{GangExt, GangOptions, threads};
use weightloom_layout::ReduceOp;

/// Longer than any scenario takes, even on a loaded machine.
const LIMIT: Duration = Duration::from_secs(120);

struct Job {
    code: Option<i32>,
    output: String,
    took: Duration,
}

/// Runs a scenario. Kills a job that hangs and fails the test.
fn mpirun(ranks: usize, scenario: &str) -> Job {
    let begun = Instant::now();
    // Jobs that start at the same time must not share a session folder.
    let session = tempfile::tempdir().unwrap();
    let mut job = Command::new("mpirun")
        .env("TMPDIR", session.path())
        .args([
            "--oversubscribe",
            "-n",
            &ranks.to_string(),
            env!("CARGO_BIN_EXE_gang-mpi-scenario"),
            scenario,
        ])
        // Containers run as root, which mpirun only allows with both variables.
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        // mpirun waits forever for a lock in shared memory that a killed rank held.
        .env("PMIX_MCA_gds", "hash")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("mpirun is needed: install openmpi-bin");
    let collect = |mut pipe: Box<dyn Read + Send>| {
        thread::spawn(move || {
            let mut text = Vec::new();
            pipe.read_to_end(&mut text).unwrap();
            String::from_utf8_lossy(&text).into_owned()
        })
    };
    let out = collect(Box::new(job.stdout.take().unwrap()));
    let err = collect(Box::new(job.stderr.take().unwrap()));
    let status = loop {
        if let Some(status) = job.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > LIMIT {
            job.kill().unwrap();
            panic!("`{scenario}` on {ranks} ranks hangs:\n{}\n{}", out.join().unwrap(), err.join().unwrap());
        }
        thread::sleep(Duration::from_millis(20));
    };
    let output = out.join().unwrap() + &err.join().unwrap();
    Job { code: status.code(), output, took: begun.elapsed() }
}

impl Job {
    /// Asserts that each of these ranks printed this error.
    fn assert_error(&self, ranks: &[usize], error: &str) {
        assert_eq!(self.code, Some(3), "{}", self.output);
        for rank in ranks {
            let line = format!("rank {rank}: {error}");
            assert!(self.output.contains(&line), "rank {rank} did not print `{error}`:\n{}", self.output);
        }
    }

    /// Asserts that no other rank is said to hang.
    fn assert_names_only(&self, hung: usize) {
        assert_eq!(self.code, Some(3), "{}", self.output);
        assert!(self.took < Duration::from_secs(30), "{:?}", self.took);
        let blamed: Vec<&str> = self.output.lines().filter(|line| line.contains("did not join")).collect();
        let right = |line: &&str| line.contains(&format!(" rank {hung} did not join "));
        assert!(!blamed.is_empty() && blamed.iter().all(right), "rank {hung} hangs:\n{}", self.output);
    }
}

#[test]
fn mpi_conforms() {
    for scenario in ["conformance", "conformance-in-pieces"] {
        for ranks in [1, 2, 3, 4, 5] {
            let job = mpirun(ranks, scenario);
            assert_eq!(job.code, Some(0), "{}", job.output);
            for rank in 0..ranks {
                let line = job.output.lines().find(|line| line.starts_with(&format!("rank {rank}: ")));
                let cases =
                    line.and_then(|line| line.split(' ').nth(2)).and_then(|n| n.parse::<usize>().ok());
                assert!(cases.is_some_and(|cases| cases > 800), "{}", job.output);
            }
        }
    }
}

#[test]
fn bits_are_those_of_thread_ranks() {
    let job = mpirun(4, "bits");
    assert_eq!(job.code, Some(0), "{}", job.output);
    let awkward = |rank: usize, i: usize| {
        ((i * 31 + rank * 17) % 1000) as f32 * 0.1 * 10f32.powi((rank * 3 + i) as i32 % 7 - 3)
    };
    for length in [5, 3_000, 200_003] {
        let digests = threads::run(4, GangOptions::default(), |gang| {
            let mut values: Vec<f32> = (0..length).map(|i| awkward(gang.rank(), i)).collect();
            gang.all_reduce(&mut values, ReduceOp::Sum).unwrap();
            values.iter().fold(0u64, |hash, x| hash.wrapping_mul(31).wrapping_add(u64::from(x.to_bits())))
        })
        .unwrap();
        for (rank, digest) in digests.iter().enumerate() {
            let line = format!("rank {rank}: {length} {digest:016x}");
            assert!(job.output.contains(&line), "{line}\n{}", job.output);
        }
    }
}

#[test]
fn different_calls_are_named_on_every_rank() {
    let job = mpirun(4, "different-calls");
    job.assert_error(&[0, 1, 2, 3], "rank 1 called barrier, but rank 3 called all_reduce(sum) of 4 f32");
}

#[test]
fn different_sizes_are_named_on_every_rank() {
    let job = mpirun(4, "different-sizes");
    let error = "rank 0 called all_reduce(sum) of 4 f32, but rank 2 called all_reduce(sum) of 5 f32";
    job.assert_error(&[0, 1, 2, 3], error);
}

#[test]
fn different_counts_are_named_on_every_rank() {
    let job = mpirun(4, "different-counts");
    job.assert_error(&[0, 1, 2, 3], "in all_to_all, rank 1 sends 3 elements to rank 2, which expects 1");
}

#[test]
fn a_mismatch_in_a_sub_gang_names_root_ranks() {
    let job = mpirun(4, "sub-gang-mismatch");
    job.assert_error(
        &[2, 3],
        "rank 2 called barrier, but rank 3 called broadcast of 3 u8 with root 0 of its gang",
    );
}

#[test]
fn a_panicking_rank_ends_the_job() {
    let job = mpirun(4, "panic");
    assert_eq!(job.code, Some(3), "{}", job.output);
    assert!(job.output.contains("out of luck"), "{}", job.output);
    assert!(job.output.contains("error: rank 2 panicked; ending the job"), "{}", job.output);
}

#[test]
fn a_rank_that_leaves_early_is_named() {
    let job = mpirun(4, "leave");
    job.assert_error(&[0, 1, 2, 3], "rank 0 called barrier, but rank 2 called leave");
}

#[test]
fn a_rank_that_exits_ends_the_job() {
    let job = mpirun(4, "exit");
    assert_ne!(job.code, Some(0), "{}", job.output);
    assert!(job.output.contains("process rank 2"), "{}", job.output);
}

#[test]
fn a_killed_rank_ends_the_job() {
    for scenario in ["kill", "kill-busy"] {
        let job = mpirun(4, scenario);
        assert_ne!(job.code, Some(0), "{}", job.output);
        assert!(job.output.contains("process rank 2"), "{}", job.output);
        assert!(job.output.contains("signal 9"), "{}", job.output);
    }
}

#[test]
fn a_stuck_rank_is_named_after_the_timeout() {
    let job = mpirun(4, "stuck");
    job.assert_error(&[0, 1, 3], "rank 2 did not join barrier within 2 s");
    assert!(job.took < Duration::from_secs(30), "{:?}", job.took);
}

#[test]
fn a_stuck_rank_is_named_instead_of_a_late_one() {
    let job = mpirun(4, "late-and-stuck");
    job.assert_error(&[0, 1, 2], "rank 3 did not join barrier within 2 s");
    assert!(job.took < Duration::from_secs(30), "{:?}", job.took);
}

#[test]
fn a_rank_that_does_not_join_a_sub_gang_is_named() {
    let job = mpirun(3, "sub-gang-absent");
    job.assert_error(&[0, 1], "rank 2 did not join sub_gang within 2 s");
}

#[test]
fn abandoned_calls_do_not_block_the_end_of_the_job() {
    let job = mpirun(4, "abandoned");
    assert_eq!(job.code, Some(0), "{}", job.output);
}

#[test]
fn a_rank_frozen_while_data_moves_ends_the_job() {
    let job = mpirun(4, "freeze-busy");
    assert_eq!(job.code, Some(3), "{}", job.output);
    // Noticed between calls by the agreement, or inside one by the watchdog.
    assert!(job.output.contains("rank 2 did not join all_reduce(avg)"), "{}", job.output);
    job.assert_names_only(2);
    assert!(job.took < Duration::from_secs(30), "{:?}", job.took);
}

/// A rank hangs, and others wait for ranks that wait for it.
#[test]
fn the_rank_that_hangs_is_named_wherever_the_others_wait() {
    for (scenario, rank, call) in [
        ("stuck-beside-sub-gang", 1, "barrier"),
        ("frozen-beside-sub-gang", 1, "barrier"),
        ("stuck-before-message", 2, ""),
        ("stuck-in-background", 2, "all_reduce(sum) of 1000 f32"),
        ("frozen-in-background", 2, "all_reduce(sum) of 1000 f32"),
        ("stuck-before-leave", 2, "leave"),
        ("frozen-after-leave", 2, "leave"),
    ] {
        let job = mpirun(4, scenario);
        job.assert_names_only(rank);
        assert!(job.output.contains(&format!("did not join {call}")), "{scenario}: {}", job.output);
    }
}

/// Before MPI has started, no rank knows the others.
#[test]
fn a_rank_that_does_not_start_ends_the_job() {
    let job = mpirun(4, "stuck-before-join");
    assert_eq!(job.code, Some(3), "{}", job.output);
    assert!(job.output.contains("error: not all ranks have joined the MPI job"), "{}", job.output);
    assert!(job.took < Duration::from_secs(30), "{:?}", job.took);
}
