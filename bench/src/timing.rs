//! Medians, and figures as text.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Median time of `work`, repeated for about `budget`.
pub fn median(budget: Duration, mut work: impl FnMut()) -> Duration {
    work();
    let started = Instant::now();
    let mut times = Vec::new();
    while times.len() < 5 || (started.elapsed() < budget && times.len() < 10_000) {
        let begin = Instant::now();
        work();
        times.push(begin.elapsed());
    }
    median_time(&mut times)
}

/// Median time of one of `count` successive calls, for work too short to time
/// by itself.
pub fn median_of_many<T>(budget: Duration, count: u32, mut work: impl FnMut(u32) -> T) -> Duration {
    median(budget, || {
        for number in 0..count {
            black_box(work(black_box(number)));
        }
    }) / count
}

/// Median of several times.
///
/// # Panics
///
/// Panics if there are none.
pub fn median_time(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// A duration in the unit that suits it.
pub fn duration(time: Duration) -> String {
    let nanos = time.as_secs_f64() * 1e9;
    match nanos {
        _ if nanos < 1e3 => format!("{nanos:.0} ns"),
        _ if nanos < 1e6 => format!("{:.1} µs", nanos / 1e3),
        _ if nanos < 1e9 => format!("{:.1} ms", nanos / 1e6),
        _ => format!("{:.2} s", nanos / 1e9),
    }
}

/// Seconds in the unit that suits them.
pub fn seconds(value: f64) -> String {
    duration(Duration::from_secs_f64(value))
}

/// Bytes per second, in GB/s.
pub fn throughput(bytes: usize, time: Duration) -> String {
    format!("{:.2} GB/s", bytes as f64 / time.as_secs_f64() / 1e9)
}

/// Bytes, in GB.
pub fn gigabytes(bytes: f64) -> String {
    format!("{:.2} GB", bytes / 1e9)
}
