//! The program of one rank in each test of `tests/it`, started by `mpirun`.
//!
//! Usage: `gang-mpi-scenario NAME`. Every rank prints one line per error.

#![expect(clippy::print_stdout, reason = "the test reads what ranks print")]
#![allow(clippy::unwrap_used, reason = "a rank that panics is a failed test")]

use std::error::Error as _;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::Duration;

use weightloom_gang::{Gang, GangError, GangExt, GangOptions, conformance};
use weightloom_gang_mpi::{MpiOptions, MpiWorld};
use weightloom_layout::ReduceOp;

/// Scenarios in which a rank hangs.
const HANGS: [&str; 12] = [
    "stuck",
    "freeze-busy",
    "late-and-stuck",
    "sub-gang-absent",
    "stuck-beside-sub-gang",
    "frozen-beside-sub-gang",
    "stuck-before-message",
    "stuck-in-background",
    "frozen-in-background",
    "stuck-before-leave",
    "frozen-after-leave",
    "stuck-before-join",
];

fn main() -> ExitCode {
    let scenario = std::env::args().nth(1).unwrap_or_default();
    let timeout = Duration::from_secs(if HANGS.contains(&&*scenario) { 2 } else { 300 });
    let max_message = if scenario == "conformance-in-pieces" { 1000 } else { 1 << 30 };
    if scenario == "stuck-before-join" && std::env::var("OMPI_COMM_WORLD_RANK").as_deref() == Ok("2") {
        thread::sleep(Duration::from_secs(600));
    }
    let world = MpiWorld::join(MpiOptions { gang: GangOptions { timeout }, max_message }).unwrap();
    let gang = world.root();
    let rank = gang.rank();
    let outcome = match scenario.as_str() {
        "conformance" | "conformance-in-pieces" => {
            let summary =
                conformance::check(&*gang).unwrap_or_else(|error| panic!("{error}: {:?}", error.source()));
            println!("rank {rank}: {} cases", summary.cases);
            Ok(())
        }
        "bits" => bits(&*gang),
        "different-calls" => match rank {
            1 => gang.barrier(),
            _ => gang.all_reduce(&mut [0f32; 4], ReduceOp::Sum),
        },
        "different-sizes" => gang.all_reduce(&mut vec![0f32; if rank == 2 { 5 } else { 4 }], ReduceOp::Sum),
        "different-counts" => {
            let size = gang.size();
            let mut send_counts = vec![1; size];
            if rank == 1 {
                send_counts[2] = 3;
            }
            let send = vec![0u8; send_counts.iter().sum()];
            gang.all_to_all(&send, &send_counts, &mut vec![0u8; size], &vec![1; size])
        }
        "panic" => {
            assert!(rank != 2, "out of luck");
            gang.barrier()
        }
        "leave" => match rank {
            2 => Ok(()),
            _ => gang.barrier(),
        },
        "exit" => {
            if rank == 2 {
                std::process::exit(0);
            }
            gang.barrier()
        }
        "kill" => {
            gang.barrier().unwrap();
            if rank == 2 {
                signal_myself("-9", 0.0);
                thread::sleep(Duration::from_secs(600));
            }
            gang.barrier()
        }
        "kill-busy" => busy_until(&*gang, "-9"),
        "freeze-busy" => busy_until(&*gang, "-STOP"),
        "stuck" => {
            if rank == 2 {
                thread::sleep(Duration::from_secs(600));
            }
            gang.barrier()
        }
        // A child of a late rank is stuck: the error must name the child.
        "late-and-stuck" => {
            match rank {
                1 => thread::sleep(Duration::from_millis(1500)),
                3 => thread::sleep(Duration::from_secs(600)),
                _ => {}
            }
            gang.barrier()
        }
        // Rank 0 waits in its pair, and the others for rank 0: the error must name rank 1.
        "stuck-beside-sub-gang" | "frozen-beside-sub-gang" => {
            let pair = gang.sub_gang(&[rank / 2 * 2, rank / 2 * 2 + 1]).unwrap();
            match rank {
                0 => pair.barrier(),
                1 => hang(&scenario),
                _ => gang.barrier(),
            }
        }
        // Rank 0 waits for a message of rank 1, which waits in a pair for rank 2.
        "stuck-before-message" => {
            let pair = if rank == 1 || rank == 2 { Some(gang.sub_gang(&[1, 2]).unwrap()) } else { None };
            match rank {
                0 => gang.recv(&mut [0u8; 1], 1, 7),
                1 => pair.unwrap().barrier().and_then(|()| gang.send_slice(&[1u8], 0, 7)),
                2 => hang(&scenario),
                _ => gang.barrier(),
            }
        }
        "stuck-in-background" | "frozen-in-background" => {
            let background = gang.sub_gang(&[0, 1, 2, 3]).unwrap();
            if rank == 2 {
                hang(&scenario).unwrap();
            }
            background.start_all_reduce(vec![1f32; 1000], ReduceOp::Sum).wait().map(drop)
        }
        "stuck-before-leave" => {
            gang.barrier().unwrap();
            if rank == 2 { hang(&scenario) } else { Ok(()) }
        }
        "frozen-after-leave" => {
            drop(gang);
            world.leave().unwrap();
            if rank == 2 {
                hang(&scenario).unwrap();
            }
            return ExitCode::SUCCESS;
        }
        "stuck-before-join" => gang.barrier(),
        "abandoned" => {
            // Abandoned operations must not block the end of the job.
            drop(gang.start_recv::<u8>(1, (rank + 1) % gang.size(), 1));
            drop(gang.start_all_reduce(vec![1f32; 100_000], ReduceOp::Sum));
            let pair = gang.sub_gang(&[rank / 2 * 2, rank / 2 * 2 + 1]).unwrap();
            std::mem::forget(pair);
            Ok(())
        }
        "sub-gang-absent" => match rank {
            0 | 1 => gang.sub_gang(&[0, 1, 2]).map(drop),
            _ => {
                thread::sleep(Duration::from_secs(600));
                Ok(())
            }
        },
        "sub-gang-mismatch" => {
            let pair = gang.sub_gang(&[rank / 2 * 2, rank / 2 * 2 + 1]).unwrap();
            if rank == 2 { pair.barrier() } else { pair.broadcast(&mut [0u8; 3], 0) }
        }
        other => panic!("unknown scenario `{other}`"),
    };
    drop(gang);
    match outcome.and_then(|()| world.leave()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("rank {rank}: {error}");
            // Let the other ranks print their errors before the job ends.
            thread::sleep(Duration::from_millis(500));
            world.abort(3)
        }
    }
}

/// Computes for ever, or stops the whole process.
fn hang(scenario: &str) -> Result<(), GangError> {
    if scenario.starts_with("frozen") {
        signal_myself("-STOP", 0.0);
    }
    thread::sleep(Duration::from_secs(600));
    Ok(())
}

/// Reduces repeatedly until rank 2 gets a signal at an arbitrary time.
fn busy_until(gang: &dyn Gang, signal: &str) -> Result<(), GangError> {
    if gang.rank() == 2 {
        signal_myself(signal, 0.5);
    }
    let mut values = vec![1f32; 1 << 20];
    (0..1_000_000).try_for_each(|_| gang.all_reduce(&mut values, ReduceOp::Avg))
}

/// Sends this process a signal after some seconds, by a shell: `kill` is built
/// in where the system has no such program.
fn signal_myself(signal: &str, after: f64) {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("sleep {after}; kill {signal} {}", std::process::id())]);
    thread::spawn(move || shell.status().unwrap());
}

/// Prints a digest of sums that depend on the order of addition; the test
/// compares it with thread ranks.
fn bits(gang: &dyn Gang) -> Result<(), GangError> {
    for length in [5, 3_000, 200_003] {
        let mut values: Vec<f32> = (0..length).map(|i| awkward(gang.rank(), i)).collect();
        gang.all_reduce(&mut values, ReduceOp::Sum)?;
        let digest =
            values.iter().fold(0u64, |hash, x| hash.wrapping_mul(31).wrapping_add(u64::from(x.to_bits())));
        println!("rank {}: {length} {digest:016x}", gang.rank());
    }
    Ok(())
}

fn awkward(rank: usize, i: usize) -> f32 {
    ((i * 31 + rank * 17) % 1000) as f32 * 0.1 * 10f32.powi((rank * 3 + i) as i32 % 7 - 3)
}
