//! `weightloom sway compare`: reports of several runs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use clap::{Args, ValueHint};
use thiserror::Error;
use weightloom::errors::Hint;
use weightloom::sway::report::compare::{Comparison, Margins, TradeOff};

use super::super::failure::Failure;
use super::super::output::{Output, table};
use super::TableFormat;
use super::files::{check_target, put, report_of};

#[derive(Args)]
pub(in crate::cli) struct CompareArgs {
    /// Reports, as JSON.
    #[arg(value_hint = ValueHint::FilePath, num_args = 2.., required = true)]
    reports: Vec<PathBuf>,

    /// Output format.
    #[arg(long, value_enum, default_value = "terminal")]
    format: TableFormat,

    #[command(flatten)]
    regression: RegressionArgs,

    /// Plot learning against forgetting, run by run, to this file: `.svg` or `.html`.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    plot: Option<PathBuf>,
}

#[derive(Args)]
pub(super) struct RegressionArgs {
    /// Exit with 1 on a proven loss larger than MARGIN in the last run, or if a probe newly fails to run.
    ///
    /// MARGIN is in the unit of each probe's items. Without a number, it is 0.1 nats per token, 0.5
    /// nats, or 0.1 for shares, and at least a third of what training changed. Probes without items
    /// regress if their score drops by 0.05, or by MARGIN, and they newly fail.
    #[arg(long, value_name = "MARGIN", num_args = 0..=1, default_missing_value = "default")]
    fail_on_regression: Option<RegressionMargin>,
}

impl RegressionArgs {
    /// The largest losses that pass.
    pub(super) fn margins(&self) -> Margins {
        match self.fail_on_regression {
            Some(RegressionMargin::All(margin)) => Margins::all(margin),
            Some(RegressionMargin::Default) | None => Margins::default(),
        }
    }

    pub(super) fn exit(&self, comparison: &Comparison) -> ExitCode {
        let failed = self.fail_on_regression.is_some() && comparison.is_worse();
        if failed { ExitCode::from(1) } else { ExitCode::SUCCESS }
    }
}

/// The value of `--fail-on-regression`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum RegressionMargin {
    /// The margin of each unit.
    Default,
    /// The same number in every unit.
    All(f64),
}

/// A value that is not a margin.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("use a number of at least 0, or `default`")]
struct MarginError;

impl FromStr for RegressionMargin {
    type Err = MarginError;

    fn from_str(text: &str) -> Result<Self, MarginError> {
        match text.parse::<f64>() {
            Ok(margin) if margin.is_finite() && margin >= 0.0 => Ok(Self::All(margin)),
            _ if text == "default" => Ok(Self::Default),
            _ => Err(MarginError),
        }
    }
}

/// Why a plot cannot be drawn.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
enum PlotError {
    #[error("cannot plot to `{file}`: unknown file type")]
    FileType { file: String },
    #[error("cannot plot `{file}`: no run measured both learning and forgetting")]
    NoPoints { file: String },
}

impl Hint for PlotError {
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::FileType { .. } => "name a file that ends in .svg or .html".to_owned(),
            Self::NoPoints { .. } => {
                "run suites with `section_internalization` and `external_perplexity`, and write their reports \
                 with this version"
                    .to_owned()
            }
        })
    }
}

/// The format of a plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlotFormat {
    Svg,
    Html,
}

impl PlotFormat {
    fn of(file: &Path) -> Result<Self, Failure> {
        let ending = file.extension().map(|ending| ending.to_string_lossy().to_lowercase());
        match ending.as_deref() {
            Some("svg") => Ok(Self::Svg),
            Some("html" | "htm") => Ok(Self::Html),
            _ => Err(Failure::user(&PlotError::FileType { file: file.display().to_string() })),
        }
    }
}

pub(super) fn run(args: &CompareArgs, output: Output) -> Result<ExitCode, Failure> {
    if let Some(file) = &args.plot {
        PlotFormat::of(file)?;
        check_target(file)?;
    }
    let mut runs = Vec::new();
    for (label, file) in labels(&args.reports).into_iter().zip(&args.reports) {
        runs.push((label, report_of(file)?));
    }
    let comparison = Comparison::of(&runs, args.regression.margins());
    let format = if output.is_json() { TableFormat::Json } else { args.format };
    let text = match format {
        TableFormat::Json => comparison.to_json(),
        TableFormat::Markdown => comparison.to_markdown(),
        TableFormat::Terminal => comparison_text(&comparison),
    };
    output.show_text(&text)?;
    if let Some(file) = &args.plot {
        plot(&comparison, file)?;
    }
    Ok(args.regression.exit(&comparison))
}

fn plot(comparison: &Comparison, file: &Path) -> Result<ExitCode, Failure> {
    let drawn = match PlotFormat::of(file)? {
        PlotFormat::Svg => comparison.trade_off.as_ref().map(TradeOff::to_svg),
        PlotFormat::Html => comparison.to_html(),
    };
    let no_points = || Failure::user(&PlotError::NoPoints { file: file.display().to_string() });
    put(file, &drawn.ok_or_else(no_points)?)
}

/// Labels of files: the file stem, or the whole path where stems are equal.
fn labels(files: &[PathBuf]) -> Vec<String> {
    let stem = |file: &PathBuf| file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let label = |file: &PathBuf| {
        let equal = files.iter().filter(|other| stem(other) == stem(file)).count();
        if equal > 1 { file.display().to_string() } else { stem(file) }
    };
    files.iter().map(label).collect()
}

/// A comparison for the terminal.
pub(super) fn comparison_text(comparison: &Comparison) -> String {
    let columns = comparison.columns();
    let heads: Vec<&str> = columns.iter().map(String::as_str).collect();
    // All between the unit and the result.
    let numbers: Vec<usize> = (2..heads.len() - 1).collect();
    let mut table = table(&heads, &numbers);
    for row in comparison.rows() {
        table.add_row(row);
    }
    let mut lines = vec![table.to_string()];
    lines.extend(comparison.sentences());
    lines.extend(comparison.notes.iter().map(|note| format!("note: {note}")));
    lines.join("\n")
}
