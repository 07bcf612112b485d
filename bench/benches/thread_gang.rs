//! Collectives of thread ranks against `memcpy` of the same bytes.

use std::time::{Duration, Instant};

use weightloom_bench::{Against, Goal, Report, duration, median, median_time, throughput};
use weightloom_gang::{GangExt, GangOptions, threads};
use weightloom_layout::ReduceOp;

const RANKS: usize = 2;

fn main() {
    let mut report = Report::new("thread_gang");
    for (name, bytes, repeats) in
        [("4 KiB", 4 << 10, 2_000), ("1 MiB", 1 << 20, 200), ("64 MiB", 64 << 20, 15)]
    {
        let source = vec![1u8; bytes];
        let mut target = vec![0u8; bytes];
        let copy = median(Duration::from_millis(500), || {
            target.copy_from_slice(std::hint::black_box(&source));
            std::hint::black_box(&mut target);
        });
        let reduce = all_reduce(bytes, repeats);
        let ratio = copy.as_secs_f64() / reduce.as_secs_f64();
        let what = format!("all-reduce of {name} f32 over {RANKS} thread ranks");
        let measured = format!("{} ({})", throughput(bytes, reduce), duration(reduce));
        let goal = if bytes >= 64 << 20 { Goal::AtLeast(0.5) } else { Goal::Higher };
        report.compare(&what, Against::floor("memcpy"), [&measured, &throughput(bytes, copy)], ratio, goal);
    }
    report.finish();
}

/// Median time of an all-reduce on the slowest rank.
fn all_reduce(bytes: usize, repeats: usize) -> Duration {
    let times = threads::run(RANKS, GangOptions::default(), |gang| {
        let mut values = vec![0.0f32; bytes / 4];
        (0..repeats + 2)
            .map(|_| {
                gang.barrier().expect("a barrier");
                let begin = Instant::now();
                gang.all_reduce(&mut values, ReduceOp::Sum).expect("a sum");
                begin.elapsed()
            })
            .skip(2)
            .collect::<Vec<_>>()
    })
    .expect("no rank panics");
    let mut slowest: Vec<Duration> =
        (0..repeats).map(|repeat| times.iter().map(|rank| rank[repeat]).max().unwrap_or_default()).collect();
    median_time(&mut slowest)
}
