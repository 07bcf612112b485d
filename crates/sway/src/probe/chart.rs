//! Charts of evidence, as data. The HTML report draws them.

/// A chart of a record's evidence.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// How to read the chart.
    pub about: &'static str,
    /// What it shows, after the name of the entry.
    pub caption: String,
    /// The marks.
    pub shape: Shape,
}

/// The marks of a chart.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// A line through points.
    Curve {
        /// At least two points.
        points: Vec<(f64, f64)>,
        /// Labels of the horizontal and the vertical axis.
        axes: [&'static str; 2],
        /// A vertical line with a label.
        mark: Option<(f64, String)>,
    },
    /// A bar for each row.
    Bars {
        /// Headings of the labels and of the values.
        columns: [&'static str; 2],
        /// The rows.
        bars: Vec<ChartBar>,
    },
}

/// A bar with its label.
#[derive(Clone, Debug, PartialEq)]
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
    pub fn curve(x: &[f64], y: &[f64], axes: [&'static str; 2]) -> Option<Self> {
        let drawable = x.len() == y.len() && x.len() > 1 && x.iter().chain(y).all(|one| one.is_finite());
        let points = x.iter().copied().zip(y.iter().copied()).collect();
        drawable.then_some(Self::Curve { points, axes, mark: None })
    }
}

/// A table of a record's evidence, for the Markdown report.
#[derive(Clone, Debug, PartialEq)]
pub struct EvidenceTable {
    /// What it shows, before the name of the entry.
    pub title: &'static str,
    /// Headings, with the alignment as Markdown writes it.
    pub columns: Vec<(&'static str, &'static str)>,
    /// The cells of each row.
    pub rows: Vec<Vec<String>>,
}
