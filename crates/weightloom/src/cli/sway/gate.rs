//! `weightloom sway gate`: whether a suite, or a checkpoint, is let through.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueHint};
use serde::Serialize;
use weightloom::sway::score::{Refusal, refusals};

use super::super::failure::Failure;
use super::super::hub::ArgumentError;
use super::super::output::Output;
use super::judging::JudgingArgs;
use super::same::{self, SameArgs};
use super::terminal;

#[derive(Args)]
pub(in crate::cli) struct GateArgs {
    /// The suite, a `sway.yaml`.
    #[arg(value_hint = ValueHint::FilePath, required_unless_present = "same")]
    spec: Option<PathBuf>,

    /// The least score that is let through [default: what the suite says].
    #[arg(long, value_name = "F", value_hint = ValueHint::Other)]
    threshold: Option<f64>,

    #[command(flatten)]
    same: SameArgs,

    #[command(flatten)]
    judging: JudgingArgs,
}

/// What a gate says.
#[derive(Serialize)]
struct Answer {
    passed: bool,
    overall: f64,
    threshold: f64,
    refusals: Vec<Refusal>,
}

pub(super) fn run(args: &GateArgs, output: Output) -> Result<ExitCode, Failure> {
    let output = args.judging.output(output);
    let Some(spec) = &args.spec else {
        args.judging.only_for_suites()?;
        return same::run(&args.same, &args.judging, output);
    };
    if let Some(threshold) = args.threshold.filter(|threshold| !(0.0..=1.0).contains(threshold)) {
        let fact = format!("a threshold of {threshold} is no score");
        return Err(Failure::user(&ArgumentError { fact, fix: Some("give one from 0 to 1".to_owned()) }));
    }
    let session = args.judging.session(spec)?;
    if session.entries.iter().all(|entry| !entry.enabled) {
        // Nothing that was looked at is nothing that is known.
        let fact = format!("{} runs no probe, so there is nothing to let through", spec.display());
        let fix = Some("add one: `weightloom sway probes` lists them".to_owned());
        return Err(Failure::user(&ArgumentError { fact, fix }));
    }
    let report = args.judging.judge(&session, output)?;
    let threshold = args.threshold.unwrap_or(session.suite.defaults.coverage_threshold);
    let refusals = refusals(&report.probes, &report.score, threshold);
    let answer = Answer { passed: refusals.is_empty(), overall: report.score.overall, threshold, refusals };
    output.show(&answer, |answer| {
        let mut lines = vec![terminal::render(&report), String::new()];
        match answer.passed {
            true => lines.push(format!("passed: the score is {:.2}, at least {threshold}", answer.overall)),
            false => {
                lines.push("refused:".to_owned());
                lines.extend(answer.refusals.iter().map(|refusal| format!("  {refusal}")));
            }
        }
        lines.join("\n")
    })?;
    args.judging.keep(&report, output)?;
    Ok(if answer.passed { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
