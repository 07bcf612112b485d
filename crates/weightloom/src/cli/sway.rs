//! `weightloom sway`: judges what fine-tuning changed.

mod backend;
mod check;
mod compare;
mod convert_adapter;
mod diff;
mod files;
mod gate;
mod interruption;
mod judge_args;
mod mine;
mod pack;
mod probes;
mod progress;
mod run;
mod same;
mod session;
mod terminal;
mod unpack;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use weightloom::Registry;
use weightloom::hub::adapter_folder;
use weightloom::sway::autogen::{Provenance, Subject, autogen};
use weightloom::sway::quick_check::base_of;
use weightloom::sway::report::trace::TraceSummary;
use weightloom::sway::sections::{Document, dlm_adapter};

pub(super) use self::backend::{BackendArgs, build, check_programs};
pub(super) use self::progress::SuiteProgress;
pub(super) use self::session::{failure, prepare};

use self::files::{TargetError, put, report_of, text_of};
use super::failure::Failure;
use super::output::Output;

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
  weightloom sway run sway.yaml --dry-run
  mpirun -n 4 weightloom sway run sway.yaml     on MPI ranks (build with --features mpi)")]
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
  weightloom sway diff sway.yaml --a old --b new --fail-on-regression")]
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
    /// All runs of a suite answer the same items, so changes are paired: each has an interval, a
    /// test and its unit. With `--fail-on-regression`, exits with 1 on a proven loss larger than the
    /// margin, or if a probe newly fails to run.
    #[command(after_help = "Examples:
  weightloom sway compare monday.json tuesday.json
  weightloom sway compare before.json after.json --fail-on-regression
  weightloom sway compare step-*.json --plot progress.html")]
    Compare(compare::CompareArgs),

    /// Summarize the trace of a run.
    ///
    /// Exits with 1 if the trace is empty.
    #[command(after_help = "Examples:
  weightloom sway trace run.jsonl --slowest 20")]
    Trace(TraceArgs),

    /// Generate a suite from a document or from training data.
    ///
    /// Training data are chats (`messages`, or ShareGPT's `conversations`), prompts with completions,
    /// or preferences (`chosen` and `rejected`). Answers are held out if the adapter's training record
    /// does not name the file.
    #[command(after_help = "Examples:
  weightloom sway autogen notes.dlm
  weightloom sway autogen chats.jsonl --adapter runs/chats
  weightloom sway autogen notes.md --base smollm2_135m --adapter runs/notes -o sway.yaml")]
    Autogen(AutogenArgs),

    /// Judge each checkpoint of a training run as it is saved.
    ///
    /// Prints one line per checkpoint, and writes the reports to `RUN/sway/`. Ends when the run ends, or
    /// with Ctrl-C. Exits with 1 if a checkpoint could not be judged.
    #[command(after_help = "Examples:
  weightloom sway watch runs/notes
  weightloom sway watch runs/notes --suite notes.yaml --json | jq -r '[.step, .headline] | @tsv'")]
    Watch(watch::WatchArgs),

    /// Find the prompts in your data on which an adapter changes the model most.
    ///
    /// Selects on one half of the data, tests on the other half, and writes a suite of prompts from the
    /// tested half.
    #[command(after_help = "Examples:
  weightloom sway mine data.jsonl --adapter runs/notes/adapter
  weightloom sway mine prompts.txt --adapter out --base smollm2_135m --top 32 --out mined.yaml")]
    Mine(mine::MineArgs),

    /// Pack a suite, its answers and its report into one file.
    ///
    /// Runs the suite first, from cached answers where there are any. The file reproduces the report
    /// without the models: `weightloom sway unpack`.
    #[command(after_help = "Examples:
  weightloom sway pack sway.yaml
  weightloom sway pack sway.yaml --out notes.swaypack --overwrite")]
    Pack(pack::PackArgs),

    /// Verify a packed suite and reproduce its report without the models.
    ///
    /// Exits with 1 if the file is damaged, or if the answers give another report.
    #[command(after_help = "Examples:
  weightloom sway unpack notes.swaypack
  weightloom sway unpack notes.swaypack --out notes
  weightloom sway unpack notes.swaypack --json | jq .fingerprints")]
    Unpack(unpack::UnpackArgs),

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
    /// Document (`.dlm` or Markdown), or training data (`.jsonl` or `.json`).
    #[arg(value_hint = ValueHint::FilePath)]
    document: PathBuf,

    /// Base model [default: the one that the document or the adapter names].
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

impl SwayCommand {
    /// Whether the processes of an MPI job are ranks of the command.
    pub(super) fn uses_ranks(&self) -> bool {
        match self {
            Self::Run(args) => args.uses_ranks(),
            Self::Gate(args) => args.uses_ranks(),
            _ => false,
        }
    }
}

pub(super) fn run(command: &SwayCommand, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    match command {
        SwayCommand::Run(args) => run::run(args, registry, output),
        SwayCommand::Gate(args) => gate::run(args, registry, output),
        SwayCommand::Check(args) => check::run(args, registry, output),
        SwayCommand::Diff(args) => diff::run(args, registry, output),
        SwayCommand::Probes(args) => probes::run(args, registry, output),
        SwayCommand::Report(args) => report(args, output),
        SwayCommand::Compare(args) => compare::run(args, output),
        SwayCommand::Trace(args) => trace(args, output),
        SwayCommand::Autogen(args) => write_suite(args, output),
        SwayCommand::Mine(args) => mine::run(args, registry, output),
        SwayCommand::Pack(args) => pack::run(args, registry, output),
        SwayCommand::Unpack(args) => unpack::run(args, registry, output),
        SwayCommand::Watch(args) => watch::run(args, registry, output),
        SwayCommand::ConvertAdapter(args) => convert_adapter::run(args, registry, output),
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
        None => output.show_text(&text),
    }
}

fn trace(args: &TraceArgs, output: Output) -> Result<ExitCode, Failure> {
    let summary = TraceSummary::of(&text_of(&args.trace)?, args.slowest);
    let format = if output.is_json() { TableFormat::Json } else { args.format };
    let text = match format {
        TableFormat::Json => summary.to_json(),
        // Markdown tables read well in a terminal.
        TableFormat::Markdown | TableFormat::Terminal => summary.to_markdown(),
    };
    output.show_text(&text)?;
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
    // The folder of a run means its newest checkpoint, in the suite too.
    let folder = adapter.as_deref().map(adapter_folder).transpose()?;
    let named = || folder.as_deref().and_then(base_of);
    let base = args.base.clone().or_else(|| document.base_model.clone()).or_else(named).unwrap_or_default();
    let provenance = Provenance::of(&args.document, folder.as_deref());
    let subject = Subject {
        base,
        provenance: provenance.map_err(|error| Failure::user(&error))?,
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
        format!("wrote {written}{}\nrun it: weightloom sway run {written} --html report.html", lines.concat())
    })
}
