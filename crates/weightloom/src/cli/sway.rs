//! `weightloom sway`: what a fine-tuning changed.

mod answers;
mod backend;
mod check;
mod convert_adapter;
mod diff;
mod files;
mod gate;
mod interruption;
mod judging;
mod probes;
mod run;
mod same;
mod screen;
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
pub(super) use self::screen::Screen;
pub(super) use self::session::Session;

use self::files::{FileError, put, report_of, text_of};
use super::failure::Failure;
use super::hub::ArgumentError;
use super::output::{Output, table};

#[derive(Subcommand)]
pub(super) enum SwayCommand {
    /// Run a suite: ask both models, judge, and report.
    ///
    /// Exits with 0 whatever the verdicts are, unless `--fail-on` names some, and with 1 if the models
    /// could not be asked at all. Answers are kept, so that a run that was ended goes on where it was,
    /// and a second one asks nothing.
    #[command(after_help = "Examples:
  weightloom sway run sway.yaml
  weightloom sway run sway.yaml --json run.json --html run.html
  weightloom sway run sway.yaml --only change,leak --fail-on fail,error
  weightloom sway run sway.yaml --dry-run")]
    Run(run::RunArgs),

    /// Let a suite through, or not; or say whether two checkpoints are the same model.
    ///
    /// Exits with 1 if a probe failed or could not be carried out, or if the score is too low.
    #[command(after_help = "Examples:
  weightloom sway gate sway.yaml --junit gate.xml
  weightloom sway gate sway.yaml --threshold 0.7
  weightloom sway gate --same ./model model-Q8_0.gguf
  weightloom sway gate --same ./base ./merged --adapter ./adapter --margin 0.001")]
    Gate(gate::GateArgs),

    /// Take a quick look at an adapter: does it change the model at all?
    ///
    /// Exits with 1 if its change cannot be told from noise.
    #[command(after_help = "Examples:
  weightloom sway check runs/notes/adapter
  weightloom sway check runs/notes/adapter --base smollm2_135m --prompts prompts.txt")]
    Check(check::CheckArgs),

    /// Run one suite on two tunings, and compare.
    #[command(after_help = "Examples:
  weightloom sway diff sway.yaml --a runs/1/adapter --b runs/2/adapter
  weightloom sway diff sway.yaml --a old --b new --fail-on-regression 0.1")]
    Diff(diff::DiffArgs),

    /// List the kinds of probes, or show the fields of one.
    #[command(after_help = "Examples:
  weightloom sway probes
  weightloom sway probes delta_kl
  weightloom sway probes --json | jq -r '.[].kind'")]
    Probes(probes::ProbesArgs),

    /// Show a report that was kept, in another form.
    #[command(after_help = "Examples:
  weightloom sway report run.json
  weightloom sway report run.json --format html --out run.html")]
    Report(ReportArgs),

    /// Compare reports of several runs, the oldest first.
    ///
    /// Exits with 1 if `--fail-on-regression` is given and a probe lost as much in the last run, or could
    /// not be carried out any more.
    #[command(after_help = "Examples:
  weightloom sway compare monday.json tuesday.json
  weightloom sway compare runs/*.json --fail-on-regression 0.1")]
    Compare(CompareArgs),

    /// Sum up what a run asked, from its trace.
    ///
    /// Exits with 1 if there is nothing in it.
    #[command(after_help = "Examples:
  weightloom sway trace run.jsonl --slowest 20")]
    Trace(TraceArgs),

    /// Write a suite for a document.
    #[command(after_help = "Examples:
  weightloom sway autogen notes.dlm
  weightloom sway autogen notes.md --base smollm2_135m --adapter runs/notes/adapter -o sway.yaml")]
    Autogen(AutogenArgs),

    /// Write an adapter of PEFT in the form of MLX, or back.
    #[command(after_help = "Examples:
  weightloom sway convert-adapter runs/notes/adapter adapter-mlx --to mlx
  weightloom sway convert-adapter adapter-mlx adapter-peft --to peft --overwrite")]
    ConvertAdapter(convert_adapter::ConvertAdapterArgs),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    Terminal,
    #[value(alias = "md")]
    Markdown,
    Junit,
    Json,
    Html,
}

#[derive(Args)]
pub(super) struct ReportArgs {
    /// A report, as JSON.
    #[arg(value_hint = ValueHint::FilePath)]
    report: PathBuf,

    /// The form.
    #[arg(long, value_enum, default_value = "terminal")]
    format: Form,

    /// Write it to this file instead of showing it.
    #[arg(long, short, value_hint = ValueHint::FilePath)]
    out: Option<PathBuf>,
}

#[derive(Args)]
pub(super) struct CompareArgs {
    /// Reports, as JSON.
    #[arg(value_hint = ValueHint::FilePath, num_args = 2.., required = true)]
    reports: Vec<PathBuf>,

    /// The form.
    #[arg(long, value_enum, default_value = "terminal")]
    format: Plain,

    /// Exit with 1 if a probe lost so much in the last run, or could not be carried out any more; 0 is never.
    #[arg(long, value_name = "F", default_value_t = 0.0)]
    fail_on_regression: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Plain {
    Terminal,
    #[value(alias = "md")]
    Markdown,
    Json,
}

#[derive(Args)]
pub(super) struct TraceArgs {
    /// A trace, one JSON object to a line.
    #[arg(value_hint = ValueHint::FilePath)]
    trace: PathBuf,

    /// The form.
    #[arg(long, value_enum, default_value = "terminal")]
    format: Plain,

    /// How many of the slowest questions are shown.
    #[arg(long, default_value_t = 10)]
    slowest: usize,
}

#[derive(Args)]
pub(super) struct AutogenArgs {
    /// A `.dlm` document, or Markdown.
    #[arg(value_hint = ValueHint::FilePath)]
    document: PathBuf,

    /// The base model [default: what the document names].
    #[arg(long)]
    base: Option<String>,

    /// The folder of the adapter [default: the one that dlm keeps].
    #[arg(long, value_hint = ValueHint::DirPath)]
    adapter: Option<PathBuf>,

    /// The file that is written. Paths in it are told from its folder.
    #[arg(long, short, default_value = "sway.yaml", value_hint = ValueHint::FilePath)]
    out: PathBuf,

    /// Overwrite the file if it is there.
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
    let form = if output == Output::Json { Form::Json } else { args.format };
    let text = match form {
        Form::Terminal => terminal::render(&report) + "\n",
        Form::Markdown => report.to_markdown(),
        Form::Junit => report.to_junit(),
        Form::Json => report.to_json(),
        Form::Html => report.to_html(),
    };
    match &args.out {
        Some(file) => put(file, &text),
        None => Output::Text.show(&text, |text| text.trim_end().to_owned()),
    }
}

fn compare(args: &CompareArgs, output: Output) -> Result<ExitCode, Failure> {
    let limit = LossLimit::of(args.fail_on_regression)?;
    let mut runs = Vec::new();
    for (label, file) in labels(&args.reports).into_iter().zip(&args.reports) {
        runs.push((label, report_of(file)?));
    }
    let comparison = Comparison::of(&runs, limit.threshold());
    let form = if output == Output::Json { Plain::Json } else { args.format };
    let text = match form {
        Plain::Json => comparison.to_json(),
        Plain::Markdown => comparison.to_markdown(),
        Plain::Terminal => comparison_text(&comparison),
    };
    Output::Text.show(&text, |text| text.trim_end().to_owned())?;
    Ok(limit.exit(&comparison))
}

/// What files are called: by their names alone, or in full where these are the
/// same.
fn labels(files: &[PathBuf]) -> Vec<String> {
    let stem = |file: &PathBuf| file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let label = |file: &PathBuf| {
        let alike = files.iter().filter(|other| stem(other) == stem(file)).count();
        if alike > 1 { file.display().to_string() } else { stem(file) }
    };
    files.iter().map(label).collect()
}

/// From which loss on a comparison fails.
#[derive(Clone, Copy, Debug, PartialEq)]
enum LossLimit {
    /// It never does.
    Never,
    From(f64),
}

impl LossLimit {
    /// As it was asked for; 0 is never.
    fn of(asked: f64) -> Result<Self, Failure> {
        match asked {
            0.0 => Ok(Self::Never),
            _ if asked > 0.0 && asked <= 1.0 => Ok(Self::From(asked)),
            _ => {
                let fact = format!("--fail-on-regression {asked} is no loss of a score");
                let fix = Some("give one from 0 to 1; 0 is never".to_owned());
                Err(Failure::user(&ArgumentError { fact, fix }))
            }
        }
    }

    /// From which loss on a change is told.
    fn threshold(self) -> f64 {
        match self {
            Self::Never => Comparison::USUAL_THRESHOLD,
            Self::From(loss) => loss,
        }
    }

    fn exit(self, comparison: &Comparison) -> ExitCode {
        let failed = self != Self::Never && comparison.is_worse();
        if failed { ExitCode::from(1) } else { ExitCode::SUCCESS }
    }
}

/// A comparison as a terminal shows it.
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
    lines.extend(comparison.latest_errors.iter().map(|name| format!("{name} could not be carried out")));
    lines.extend(comparison.notes.iter().map(|note| format!("note: {note}")));
    lines.join("\n")
}

fn trace(args: &TraceArgs, output: Output) -> Result<ExitCode, Failure> {
    let summary = TraceSummary::of(&text_of(&args.trace)?, args.slowest);
    let form = if output == Output::Json { Plain::Json } else { args.format };
    let text = match form {
        Plain::Json => summary.to_json(),
        // Its tables read well as they are.
        Plain::Markdown | Plain::Terminal => summary.to_markdown(),
    };
    Output::Text.show(&text, |text| text.trim_end().to_owned())?;
    Ok(if summary.total_events == 0 { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn write_suite(args: &AutogenArgs, output: Output) -> Result<ExitCode, Failure> {
    if args.out.exists() && !args.overwrite {
        return Err(Failure::user(&FileError::Exists { file: args.out.display().to_string() }));
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
        adapter: adapter.map(|adapter| files::seen_from(&args.out, &adapter)),
        source: files::seen_from(&args.out, &args.document),
    };
    let text = autogen(&document, &subject).map_err(|error| Failure::user(&error))?;
    put(&args.out, &text)?;
    let written = args.out.display().to_string();
    let warnings: Vec<String> = document.warnings.iter().map(ToString::to_string).collect();
    let answer = serde_json::json!({ "written": written, "warnings": warnings });
    output.show(&answer, |_| {
        let lines: Vec<String> = warnings.iter().map(|warning| format!("\nwarning: {warning}")).collect();
        format!("{written} is written{}", lines.concat())
    })
}
