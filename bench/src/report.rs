//! Rows of figures with their goals, printed as a table and saved as JSON.

use std::path::PathBuf;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

use crate::duration;
use crate::provenance::Provenance;

/// Variable with the folder that receives the rows of each benchmark.
pub const JSON_FOLDER: &str = "WEIGHTLOOM_BENCH_JSON";

/// What a ratio should be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Goal {
    AtMost(f64),
    AtLeast(f64),
    /// Lower is better, without a goal.
    Lower,
    /// Higher is better, without a goal.
    Higher,
}

impl Goal {
    /// Whether a ratio meets the goal; `None` without a goal.
    pub fn is_met(self, ratio: f64) -> Option<bool> {
        match self {
            Self::AtMost(most) => Some(ratio <= most),
            Self::AtLeast(least) => Some(ratio >= least),
            Self::Lower | Self::Higher => None,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtMost(most) => format!("≤ {most}"),
            Self::AtLeast(least) => format!("≥ {least}"),
            Self::Lower | Self::Higher => String::new(),
        }
    }
}

/// What a figure is compared with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Against {
    /// Another system that does the same work.
    Peer(String),
    /// The least that the hardware or a bare system call takes.
    Floor(String),
    /// A limit that we set.
    Limit,
}

impl Against {
    /// Another system.
    pub fn peer(name: &str) -> Self {
        Self::Peer(name.to_owned())
    }

    /// A hardware floor.
    pub fn floor(name: &str) -> Self {
        Self::Floor(name.to_owned())
    }
}

/// One figure of a benchmark.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the case.
    pub name: String,
    /// Our figure.
    pub measured: String,
    /// The comparison; `None` for a figure by itself.
    pub comparison: Option<Comparison>,
}

/// A figure beside ours.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Comparison {
    pub against: Against,
    pub reference: String,
    pub ratio: f64,
    pub goal: Goal,
}

impl Comparison {
    /// How many times better than the reference we are; below 1 is worse.
    pub fn advantage(&self) -> f64 {
        match self.goal {
            Goal::AtLeast(_) | Goal::Higher => self.ratio,
            Goal::AtMost(_) | Goal::Lower => 1.0 / self.ratio,
        }
    }
}

/// The rows of a benchmark, and where they were measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Results {
    pub bench: String,
    pub provenance: Provenance,
    pub rows: Vec<Row>,
}

/// Collects the rows of a benchmark.
pub struct Report {
    bench: String,
    rows: Vec<Row>,
}

impl Report {
    /// An empty report of the benchmark `bench`.
    pub fn new(bench: &str) -> Self {
        Self { bench: bench.to_owned(), rows: Vec::new() }
    }

    /// Adds a time that should be at most a limit.
    pub fn at_most(&mut self, name: &str, measured: Duration, limit: Duration) {
        let ratio = measured.as_secs_f64() / limit.as_secs_f64();
        let figures = [&*duration(measured), &*duration(limit)];
        self.compare(name, Against::Limit, figures, ratio, Goal::AtMost(1.0));
    }

    /// Adds a comparison of our figure with a reference. A ratio that is not
    /// finite leaves only our figure.
    pub fn compare(
        &mut self,
        name: &str,
        against: Against,
        [measured, reference]: [&str; 2],
        ratio: f64,
        goal: Goal,
    ) {
        if !ratio.is_finite() {
            return self.figure(name, measured);
        }
        let comparison = Comparison { against, reference: reference.to_owned(), ratio, goal };
        let (name, measured) = (name.to_owned(), measured.to_owned());
        self.rows.push(Row { name, measured, comparison: Some(comparison) });
    }

    /// Adds a figure without a comparison.
    pub fn figure(&mut self, name: &str, measured: &str) {
        self.rows.push(Row { name: name.to_owned(), measured: measured.to_owned(), comparison: None });
    }

    /// Prints the rows, and saves them as `BENCH.json` if [`JSON_FOLDER`] is
    /// set.
    #[expect(clippy::print_stdout, reason = "the output of a benchmark")]
    pub fn finish(self) {
        println!("{}", self.table());
        let missed = self.rows.iter().filter_map(|row| row.comparison.as_ref());
        let missed = missed.filter(|found| found.goal.is_met(found.ratio) == Some(false)).count();
        if missed > 0 {
            println!("{missed} goals missed");
        }
        if let Some(folder) = std::env::var_os(JSON_FOLDER).map(PathBuf::from) {
            let file = folder.join(format!("{}.json", self.bench));
            let results = Results { bench: self.bench, provenance: Provenance::collect(), rows: self.rows };
            let json = serde_json::to_string_pretty(&results).expect("rows are JSON");
            std::fs::create_dir_all(&folder).expect("the folder for rows can be created");
            std::fs::write(&file, json + "\n").expect("rows can be written");
        }
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::UTF8_FULL_CONDENSED);
        table.set_header(["case", "measured", "against", "reference", "ratio", "goal", ""]);
        for column in [1, 3, 4, 5] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        for row in &self.rows {
            let Some(found) = &row.comparison else {
                table.add_row([&row.name, &row.measured]);
                continue;
            };
            let against = match &found.against {
                Against::Peer(name) | Against::Floor(name) => name,
                Against::Limit => "limit",
            };
            let mark = match found.goal.is_met(found.ratio) {
                Some(true) => "met",
                Some(false) => "MISSED",
                None => "",
            };
            let (ratio, goal) = (format!("{:.2}", found.ratio), found.goal.text());
            table.add_row([&row.name, &row.measured, against, &found.reference, &ratio, &goal, mark]);
        }
        table
    }
}
