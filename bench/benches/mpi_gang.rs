//! All-reduce of MPI ranks against a bare MPI call.
//!
//! Starts itself under `mpirun` with two ranks.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use mpi::collective::SystemOperation;
use mpi::topology::SimpleCommunicator;
use mpi::traits::CommunicatorCollectives;
use weightloom_bench::{Against, Goal, Report, duration, median_time, throughput};
use weightloom_gang::GangExt;
use weightloom_gang_mpi::{MpiOptions, MpiWorld};
use weightloom_layout::ReduceOp;

fn main() -> ExitCode {
    if std::env::var_os("OMPI_COMM_WORLD_SIZE").is_some() {
        ranks();
        return ExitCode::SUCCESS;
    }
    let program = std::env::current_exe().expect("a path to this program");
    let status = Command::new("mpirun")
        .args(["--bind-to", "core", "-n", "2"])
        .arg(program)
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .status()
        .expect("mpirun is needed: install openmpi-bin");
    if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn ranks() {
    let world = MpiWorld::join(MpiOptions::default()).expect("an MPI job");
    let gang = world.root();
    let bare = SimpleCommunicator::world();
    let mut report = Report::new("mpi_gang");
    for (name, bytes, repeats) in
        [("4 KiB", 4 << 10, 3_000), ("1 MiB", 1 << 20, 300), ("64 MiB", 64 << 20, 15)]
    {
        let mut values = vec![0.0f32; bytes / 4];
        let mut sums = vec![0.0f32; bytes / 4];
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..repeats + 2 {
            gang.barrier().expect("a barrier");
            let begin = Instant::now();
            gang.all_reduce(&mut values, ReduceOp::Sum).expect("a sum");
            ours.push(begin.elapsed());
            gang.barrier().expect("a barrier");
            let begin = Instant::now();
            bare.all_reduce_into(&values[..], &mut sums[..], SystemOperation::sum());
            theirs.push(begin.elapsed());
        }
        let (ours, theirs) = (slowest_median(&*gang, &ours), slowest_median(&*gang, &theirs));
        let what = format!("all-reduce of {name} f32 over 2 MPI ranks");
        let ratio = ours.as_secs_f64() / theirs.as_secs_f64();
        let shown = |time: Duration| format!("{} ({})", duration(time), throughput(bytes, time));
        let goal = if bytes >= 1 << 20 { Goal::AtMost(1.1) } else { Goal::Lower };
        let against = Against::floor("MPI_Allreduce");
        report.compare(&what, against, [&shown(ours), &shown(theirs)], ratio, goal);
    }
    if gang.rank() == 0 {
        report.finish();
    }
    drop(gang);
    world.leave().expect("all ranks end together");
}

/// Median over repetitions of the slowest rank's time.
fn slowest_median(gang: &dyn weightloom_gang::Gang, times: &[Duration]) -> Duration {
    let mut nanos: Vec<u64> = times[2..].iter().map(|time| time.as_nanos() as u64).collect();
    gang.all_reduce(&mut nanos, ReduceOp::Max).expect("a maximum");
    let mut times: Vec<Duration> = nanos.into_iter().map(Duration::from_nanos).collect();
    median_time(&mut times)
}
