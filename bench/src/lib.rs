//! Measuring, and showing ratios.
//!
//! Machines are shared and noisy: every figure is a median over repetitions,
//! and what counts is the ratio to a floor or a peer measured in the same run.

mod peer;
mod process;
mod turns;

use std::hint::black_box;
use std::time::{Duration, Instant};

use comfy_table::{CellAlignment, Table, presets};

pub use peer::Peer;
pub use process::{asked, gigabytes, middle_figure, number, peak, seconds};
pub use turns::Turns;

/// The median time of `work`, repeated for about `budget`.
pub fn median(budget: Duration, mut work: impl FnMut()) -> Duration {
    work();
    let started = Instant::now();
    let mut times = Vec::new();
    while times.len() < 5 || (started.elapsed() < budget && times.len() < 10_000) {
        let begin = Instant::now();
        work();
        times.push(begin.elapsed());
    }
    middle(&mut times)
}

/// The median time of one of `count` calls made in a row, for work too short
/// to time by itself.
pub fn median_of_many<T>(budget: Duration, count: u32, mut work: impl FnMut(u32) -> T) -> Duration {
    median(budget, || {
        for number in 0..count {
            black_box(work(black_box(number)));
        }
    }) / count
}

/// The middle one of several times.
pub fn middle(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// What a ratio should be.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// This or less.
    AtMost(f64),
    /// This or more.
    AtLeast(f64),
}

/// Rows of figures with their goals.
pub struct Report {
    table: Table,
    missed: usize,
}

impl Report {
    /// An empty report.
    pub fn new() -> Self {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_header(["what", "measured", "beside", "ratio", "goal", ""]);
        for column in 1..=4 {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        Self { table, missed: 0 }
    }

    /// A time that should be at most a limit.
    pub fn at_most(&mut self, what: &str, measured: Duration, limit: Duration) {
        let ratio = measured.as_secs_f64() / limit.as_secs_f64();
        self.row(what, [&short(measured), &format!("limit {}", short(limit))], ratio, Goal::AtMost(1.0));
    }

    /// A ratio of what was measured to what was measured beside it.
    pub fn ratio(&mut self, what: &str, [measured, beside]: [&str; 2], ratio: f64, goal: Goal) {
        self.row(what, [measured, beside], ratio, goal);
    }

    /// A figure without a goal.
    pub fn note(&mut self, what: &str, [measured, beside]: [&str; 2], ratio: f64) {
        self.table.add_row([what, measured, beside, &format!("{ratio:.2}"), "", ""]);
    }

    fn row(&mut self, what: &str, [measured, beside]: [&str; 2], ratio: f64, goal: Goal) {
        let (text, met) = match goal {
            Goal::AtMost(most) => (format!("≤ {most}"), ratio <= most),
            Goal::AtLeast(least) => (format!("≥ {least}"), ratio >= least),
        };
        self.missed += usize::from(!met);
        let mark = if met { "met" } else { "MISSED" };
        self.table.add_row([what, measured, beside, &format!("{ratio:.2}"), &text, mark]);
    }

    /// Prints the report.
    #[expect(clippy::print_stdout, reason = "printing is what a benchmark is for")]
    pub fn print(&self) {
        println!("{}", self.table);
        if self.missed > 0 {
            println!("{} goals missed", self.missed);
        }
    }
}

impl Default for Report {
    fn default() -> Self {
        Self::new()
    }
}

/// A duration in the unit that suits it.
pub fn short(time: Duration) -> String {
    let nanos = time.as_secs_f64() * 1e9;
    match nanos {
        _ if nanos < 1e3 => format!("{nanos:.0} ns"),
        _ if nanos < 1e6 => format!("{:.1} µs", nanos / 1e3),
        _ if nanos < 1e9 => format!("{:.1} ms", nanos / 1e6),
        _ => format!("{:.2} s", nanos / 1e9),
    }
}

/// Bytes per second, in GB/s.
pub fn rate(bytes: usize, time: Duration) -> String {
    format!("{:.2} GB/s", bytes as f64 / time.as_secs_f64() / 1e9)
}
