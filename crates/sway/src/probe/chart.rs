//! Charts and tables of evidence, as data. The HTML report draws charts, and the
//! Markdown report writes tables.
//!
//! The record of a probe that is not built in keeps its chart and its table, so
//! that a program without the probe can show them.

use serde::{Deserialize, Serialize};

/// A chart of a record's evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chart {
    /// How to read the chart.
    pub about: String,
    /// What it shows, after the name of the entry.
    pub caption: String,
    /// The marks.
    pub shape: Shape,
}

/// The marks of a chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// A line through points.
    Curve {
        /// At least two points.
        points: Vec<(f64, f64)>,
        /// Labels of the horizontal and the vertical axis.
        axes: [String; 2],
        /// A vertical line with a label.
        mark: Option<(f64, String)>,
    },
    /// A bar for each row.
    Bars {
        /// Headings of the labels and of the values.
        columns: [String; 2],
        /// The rows.
        bars: Vec<ChartBar>,
    },
}

/// A bar with its label.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChartBar {
    /// The label.
    pub label: String,
    /// Its length.
    pub value: f64,
    /// 95 % confidence interval of the value.
    pub interval: Option<[f64; 2]>,
}

impl Shape {
    /// A line through points; none for fewer than two, for lists of different
    /// lengths, or for numbers that are not finite.
    pub fn curve(x: &[f64], y: &[f64], axes: [&str; 2]) -> Option<Self> {
        let points = x.iter().copied().zip(y.iter().copied()).collect();
        let curve = Self::Curve { points, axes: axes.map(str::to_owned), mark: None };
        (x.len() == y.len() && curve.is_drawable()).then_some(curve)
    }

    /// Whether there are enough finite numbers to draw. The author of
    /// a probe or of a report file may fill in anything.
    pub fn is_drawable(&self) -> bool {
        match self {
            Self::Curve { points, mark, .. } => {
                let marked = mark.iter().map(|(at, _)| *at);
                let mut numbers = points.iter().flat_map(|(x, y)| [*x, *y]).chain(marked);
                points.len() > 1 && numbers.all(f64::is_finite)
            }
            Self::Bars { bars, .. } => bars.iter().any(|bar| bar.value.is_finite()),
        }
    }
}

/// A table of a record's evidence, for the Markdown report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvidenceTable {
    /// What it shows, before the name of the entry.
    pub title: String,
    /// The columns.
    pub columns: Vec<TableColumn>,
    /// The cells of each row.
    pub rows: Vec<Vec<String>>,
}

/// A column of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct TableColumn {
    pub heading: String,
    pub align: Align,
}

/// The side at which the cells of a column begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Align {
    Left,
    Right,
}

impl TableColumn {
    /// A column of texts.
    pub fn text(heading: &str) -> Self {
        Self { heading: heading.to_owned(), align: Align::Left }
    }

    /// A column of numbers.
    pub fn number(heading: &str) -> Self {
        Self { heading: heading.to_owned(), align: Align::Right }
    }
}
