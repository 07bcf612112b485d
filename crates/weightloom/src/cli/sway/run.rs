//! `weightloom sway run`: a suite, from its file to its report.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum, ValueHint};
use weightloom::Registry;
use weightloom::sway::{ProbeVerdict, Report};

use super::super::failure::Failure;
use super::super::output::{Format, Output};
use super::judge_args::JudgeArgs;
use super::terminal;

#[derive(Args)]
pub(in crate::cli) struct RunArgs {
    /// Suite file, a `sway.yaml`.
    #[arg(value_hint = ValueHint::FilePath)]
    spec: PathBuf,

    /// Check everything and list the probes, without loading a model.
    #[arg(long)]
    dry_run: bool,

    /// Exit with 1 if a probe has this verdict; repeatable [default: exit with 0 for any verdict].
    #[arg(long, value_enum, value_name = "VERDICT", value_delimiter = ',')]
    fail_on: Vec<FailOn>,

    #[command(flatten)]
    judge: JudgeArgs,
}

/// A verdict that makes the command fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FailOn {
    Fail,
    Warn,
    Error,
    Inconclusive,
}

impl FailOn {
    fn verdict(self) -> ProbeVerdict {
        match self {
            Self::Fail => ProbeVerdict::Fail,
            Self::Warn => ProbeVerdict::Warn,
            Self::Error => ProbeVerdict::Error,
            Self::Inconclusive => ProbeVerdict::Inconclusive,
        }
    }
}

impl RunArgs {
    /// Whether the command asks models.
    pub(super) fn uses_ranks(&self) -> bool {
        !self.dry_run
    }
}

pub(super) fn run(args: &RunArgs, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    let output = args.judge.output(output);
    let prepared = args.judge.prepare(&args.spec, registry, output)?;
    if args.dry_run {
        return args.judge.dry_run(&prepared, registry, output);
    }
    let Some(report) = args.judge.judge(prepared, registry, output)? else { return Ok(ExitCode::SUCCESS) };
    // Show the report first: a file that cannot be written must not lose it.
    show(&report, output)?;
    args.judge.write(&report, output)?;
    let refused = |verdict: ProbeVerdict| args.fail_on.iter().any(|one| one.verdict() == verdict);
    let failed = report.preflight_failed() || report.probes.iter().any(|record| refused(record.verdict));
    Ok(if failed { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// Prints a report.
pub(super) fn show(report: &Report, output: Output) -> Result<ExitCode, Failure> {
    let text = match output.format {
        Format::Text => terminal::render(report),
        Format::Json => report.to_json(),
    };
    output.show_text(&text)
}
