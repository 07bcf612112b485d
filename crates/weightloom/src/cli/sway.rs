//! `weightloom sway`: judges what fine-tuning changed.

mod backend;
mod check;
mod convert_adapter;
mod diff;
mod files;
mod gate;
mod interruption;
mod judge_args;
mod probes;
mod progress;
mod run;
mod same;
mod session;
mod terminal;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use weightloom::sway::autogen::{Subject, autogen};
use weightloom::sway::report::compare::Comparison;
use weightloom::sway::report::trace::TraceSummary;
use weightloom::sway::sections::{Document, dlm_adapter};

pub(super) use self::backend::build;
pub(super) use self::progress::SuiteProgress;
pub(super) use self::session::{failure, prepare};

use self::files::{TargetError, put, report_of, text_of};
use super::failure::Failure;
use super::hub::ArgumentError;
use super::output::{Output, table};

#[derive(Subcommand)]
pub(super) enum SwayCommand {
    /// Run a suite and report.
    ///
    /// Exits with 0 for any verdict unless `--fail-on` names it, and with 1 if the models cannot be
    /// asked at all. Answers are cached: an interrupted run resumes, and a second run asks nothing.
    #[command(after_help = "Examples:
  weightloom sway run sway.yaml
  weightloom sway run sway.yaml --json run.json --html run.html
  weightloom sway run sway.yaml --only change,leak --fail-on fail,error
  weightloom sway run sway.yaml --dry-run")]
    Run(run::RunArgs),

    /// Pass or fail by a suite, or by whether two checkpoints are the same model.
    ///
    /// Exits with 1 if a probe fails or cannot run, or if the score is too low.
    #[command(after_help = "Examples:
  weightloom sway gate sway.yaml --junit gate.xml
  weightloom sway gate sway.yaml --threshold 0.7
  weightloom sway gate --same ./model model-Q8_0.gguf
  weightloom sway gate --same ./base ./merged --adapter ./adapter --margin 0.001")]
    Gate(gate::GateArgs),

    /// Check quickly whether an adapter changes the model at all.
    ///
    /// Exits with 1 if the change is indistinguishable from noise.
    #[command(after_help = "Examples:
  weightloom sway check runs/notes
  weightloom sway check runs/notes --base smollm2_135m --prompts prompts.txt")]
    Check(check::CheckArgs),

    /// Run one suite on two fine-tuned models and compare.
    #[command(after_help = "Examples:
  weightloom sway diff sway.yaml --a runs/1 --b runs/2
  weightloom sway diff sway.yaml --a old --b new --fail-on-regression 0.1")]
    Diff(diff::DiffArgs),

    /// List the probe kinds, or show the fields of one.
    #[command(after_help = "Examples:
  weightloom sway probes
  weightloom sway probes delta_kl
  weightloom sway probes --json | jq -r '.[].kind'")]
    Probes(probes::ProbesArgs),

    /// Convert a JSON report to another format.
    #[command(after_help = "Examples:
  weightloom sway report run.json
  weightloom sway report run.json --format html --out run.html")]
    Report(ReportArgs),

    /// Compare the reports of several runs, oldest first.
    ///
    /// With `--fail-on-regression`, exits with 1 if a probe lost that much in the last run or newly
    /// failed to run.
    #[command(after_help = "Examples:
  weightloom sway compare monday.json tuesday.json
  weightloom sway compare runs/*.json --fail-on-regression 0.1")]
    Compare(CompareArgs),

    /// Summarize the trace of a run.
    ///
    /// Exits with 1 if the trace is empty.
    #[command(after_help = "Examples:
  weightloom sway trace run.jsonl --slowest 20")]
    Trace(TraceArgs),

    /// Generate a suite from a document.
    #[command(after_help = "Examples:
  weightloom sway autogen notes.dlm
  weightloom sway autogen notes.md --base smollm2_135m --adapter runs/notes -o sway.yaml")]
    Autogen(AutogenArgs),

    /// Convert an adapter between PEFT and MLX.
    #[command(after_help = "Examples:
  weightloom sway convert-adapter runs/notes adapter-mlx --to mlx
  weightloom sway convert-adapter adapter-mlx adapter-peft --to peft --overwrite")]
    ConvertAdapter(convert_adapter::ConvertAdapterArgs),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReportFormat {
    Terminal,
    #[value(alias = "md")]
    Markdown,
    Junit,
    Json,
    Html,
}

#[derive(Args)]
pub(super) struct ReportArgs {
    /// Report, as JSON.
    #[arg(value_hint = ValueHint::FilePath)]
    report: PathBuf,

    /// Output format.
    #[arg(long, value_enum, default_value = "terminal")]
    format: ReportFormat,

    /// Write to this file instead of printing.
    #[arg(long, short, value_hint = ValueHint::FilePath)]
    out: Option<PathBuf>,
}

#[derive(Args)]
pub(super) struct CompareArgs {
    /// Reports, as JSON.
    #[arg(value_hint = ValueHint::FilePath, num_args = 2.., required = true)]
    reports: Vec<PathBuf>,

    /// Output format.
    #[arg(long, value_enum, default_value = "terminal")]
    format: TableFormat,

    /// Exit with 1 if a probe lost this much in the last run, or newly failed to run; 0 disables.
    #[arg(long, value_name = "F", default_value_t = 0.0)]
    fail_on_regression: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TableFormat {
    Terminal,
    #[value(alias = "md")]
    Markdown,
    Json,
}

#[derive(Args)]
pub(super) struct TraceArgs {
    /// Trace file, one JSON object per line.
    #[arg(value_hint = ValueHint::FilePath)]
    trace: PathBuf,

    /// Output format.
    #[arg(long, value_enum, default_value = "terminal")]
    format: TableFormat,

    /// Show this many of the slowest questions.
    #[arg(long, default_value_t = 10)]
    slowest: usize,
}

#[derive(Args)]
pub(super) struct AutogenArgs {
    /// Document: `.dlm` or Markdown.
    #[arg(value_hint = ValueHint::FilePath)]
    document: PathBuf,

    /// Base model [default: the one the document names].
    #[arg(long)]
    base: Option<String>,

    /// Folder of the adapter [default: the latest one that dlm trained].
    #[arg(long, value_hint = ValueHint::DirPath)]
    adapter: Option<PathBuf>,

    /// Suite file to write. Its paths are relative to its folder.
    #[arg(long, short, default_value = "sway.yaml", value_hint = ValueHint::FilePath)]
    out: PathBuf,

    /// Replace an existing file.
    #[arg(long)]
    overwrite: bool,
}

pub(super) fn run(command: &SwayCommand, output: Output) -> Result<ExitCode, Failure> {
    match command {
        SwayCommand::Run(args) => run::run(args, output),
        SwayCommand::Gate(args) => gate::run(args, output),
        SwayCommand::Check(args) => check::run(args, output),
        SwayCommand::Diff(args) => diff::run(args, output),
        SwayCommand::Probes(args) => probes::run(args, output),
        SwayCommand::Report(args) => report(args, output),
        SwayCommand::Compare(args) => compare(args, output),
        SwayCommand::Trace(args) => trace(args, output),
        SwayCommand::Autogen(args) => write_suite(args, output),
        SwayCommand::ConvertAdapter(args) => convert_adapter::run(args, output),
    }
}

fn report(args: &ReportArgs, output: Output) -> Result<ExitCode, Failure> {
    let report = report_of(&args.report)?;
    let format = if output.is_json() { ReportFormat::Json } else { args.format };
    let text = match format {
        ReportFormat::Terminal => terminal::render(&report) + "\n",
        ReportFormat::Markdown => report.to_markdown(),
        ReportFormat::Junit => report.to_junit(),
        ReportFormat::Json => report.to_json(),
        ReportFormat::Html => report.to_html(),
    };
    match &args.out {
        Some(file) => put(file, &text),
        None => Output::TEXT.show(&text, |text| text.trim_end().to_owned()),
    }
}

fn compare(args: &CompareArgs, output: Output) -> Result<ExitCode, Failure> {
    let limit = LossLimit::of(args.fail_on_regression)?;
    let mut runs = Vec::new();
    for (label, file) in labels(&args.reports).into_iter().zip(&args.reports) {
        runs.push((label, report_of(file)?));
    }
    let comparison = Comparison::of(&runs, limit.threshold());
    let format = if output.is_json() { TableFormat::Json } else { args.format };
    let text = match format {
        TableFormat::Json => comparison.to_json(),
        TableFormat::Markdown => comparison.to_markdown(),
        TableFormat::Terminal => comparison_text(&comparison),
    };
    Output::TEXT.show(&text, |text| text.trim_end().to_owned())?;
    Ok(limit.exit(&comparison))
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

/// The loss from which a comparison fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum LossLimit {
    Never,
    From(f64),
}

impl LossLimit {
    /// The value of `--fail-on-regression`.
    fn of(asked: f64) -> Result<Self, Failure> {
        match asked {
            0.0 => Ok(Self::Never),
            _ if asked > 0.0 && asked <= 1.0 => Ok(Self::From(asked)),
            _ => {
                let fact = format!("--fail-on-regression {asked} is outside the range of scores");
                let fix = Some("give a loss from 0 to 1; 0 disables the check".to_owned());
                Err(Failure::user(&ArgumentError { fact, fix }))
            }
        }
    }

    /// The loss from which a probe is listed.
    fn threshold(self) -> f64 {
        match self {
            Self::Never => Comparison::DEFAULT_THRESHOLD,
            Self::From(loss) => loss,
        }
    }

    fn exit(self, comparison: &Comparison) -> ExitCode {
        let failed = self != Self::Never && comparison.is_worse();
        if failed { ExitCode::from(1) } else { ExitCode::SUCCESS }
    }
}

/// A comparison for the terminal.
fn comparison_text(comparison: &Comparison) -> String {
    let columns = comparison.columns();
    let heads: Vec<&str> = columns.iter().map(String::as_str).collect();
    let numbers: Vec<usize> = (1..heads.len()).collect();
    let mut table = table(&heads, &numbers);
    for row in comparison.rows() {
        table.add_row(row);
    }
    let mut lines = vec![table.to_string()];
    lines.extend(
        comparison.latest_regressions.iter().map(|one| format!("{} lost {:.2}", one.name, -one.delta)),
    );
    lines.extend(comparison.latest_errors.iter().map(|name| format!("{name} could not run")));
    lines.extend(comparison.notes.iter().map(|note| format!("note: {note}")));
    lines.join("\n")
}

fn trace(args: &TraceArgs, output: Output) -> Result<ExitCode, Failure> {
    let summary = TraceSummary::of(&text_of(&args.trace)?, args.slowest);
    let format = if output.is_json() { TableFormat::Json } else { args.format };
    let text = match format {
        TableFormat::Json => summary.to_json(),
        // Markdown tables read well in a terminal.
        TableFormat::Markdown | TableFormat::Terminal => summary.to_markdown(),
    };
    Output::TEXT.show(&text, |text| text.trim_end().to_owned())?;
    Ok(if summary.total_events == 0 { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn write_suite(args: &AutogenArgs, output: Output) -> Result<ExitCode, Failure> {
    if args.out.exists() && !args.overwrite {
        return Err(Failure::user(&TargetError::Exists { file: args.out.display().to_string() }));
    }
    let document = Document::read_file(&args.document).map_err(|error| Failure::user(&error))?;
    let look = |name: &str| std::env::var(name).ok();
    let adapter = match (&args.adapter, &document.id) {
        (Some(adapter), _) => Some(adapter.clone()),
        (None, Some(id)) => dlm_adapter(id, &look),
        (None, None) => None,
    };
    let base = args.base.clone().or_else(|| document.base_model.clone()).unwrap_or_default();
    let subject = Subject {
        base,
        adapter: adapter.map(|adapter| files::relative_to(&args.out, &adapter)),
        source: files::relative_to(&args.out, &args.document),
    };
    let text = autogen(&document, &subject).map_err(|error| Failure::user(&error))?;
    put(&args.out, &text)?;
    let written = args.out.display().to_string();
    let warnings: Vec<String> = document.warnings.iter().map(ToString::to_string).collect();
    let answer = serde_json::json!({ "written": written, "warnings": warnings });
    output.show(&answer, |_| {
        let lines: Vec<String> = warnings.iter().map(|warning| format!("\nwarning: {warning}")).collect();
        format!("wrote {written}{}", lines.concat())
    })
}
