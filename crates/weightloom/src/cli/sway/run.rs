//! `weightloom sway run`: a suite, from its file to its report.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum, ValueHint};
use weightloom::sway::{Report, Verdict};

use super::super::failure::Failure;
use super::super::output::Output;
use super::judging::JudgingArgs;
use super::terminal;

#[derive(Args)]
pub(in crate::cli) struct RunArgs {
    /// The suite, a `sway.yaml`.
    #[arg(value_hint = ValueHint::FilePath)]
    spec: PathBuf,

    /// Check everything and show what would be run; load nothing.
    #[arg(long)]
    dry_run: bool,

    /// Exit with 1 if a probe ends so; may be given several times [default: exit with 0 whatever comes out].
    #[arg(long, value_enum, value_name = "VERDICT", value_delimiter = ',')]
    fail_on: Vec<FailOn>,

    #[command(flatten)]
    judging: JudgingArgs,
}

/// A verdict that a user takes for a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FailOn {
    Fail,
    Warn,
    Error,
    Inconclusive,
}

impl FailOn {
    fn verdict(self) -> Verdict {
        match self {
            Self::Fail => Verdict::Fail,
            Self::Warn => Verdict::Warn,
            Self::Error => Verdict::Error,
            Self::Inconclusive => Verdict::Inconclusive,
        }
    }
}

pub(super) fn run(args: &RunArgs, output: Output) -> Result<ExitCode, Failure> {
    let output = args.judging.output(output);
    let session = args.judging.session(&args.spec)?;
    if args.dry_run {
        return args.judging.rehearse(&session, output);
    }
    let report = args.judging.judge(&session, output)?;
    // Shown first: what cannot be written is not lost so.
    show(&report, output)?;
    args.judging.keep(&report, output)?;
    let refused = |verdict: Verdict| args.fail_on.iter().any(|one| one.verdict() == verdict);
    let failed = report.preflight_failed() || report.probes.iter().any(|record| refused(record.verdict));
    Ok(if failed { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// Prints a report.
pub(super) fn show(report: &Report, output: Output) -> Result<ExitCode, Failure> {
    let text = match output {
        Output::Text => terminal::render(report),
        Output::Json => report.to_json(),
    };
    Output::Text.show(&text, |text| text.trim_end().to_owned())
}
