//! `weightloom sway gate`: whether a suite, or a checkpoint, passes.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueHint};
use serde::Serialize;
use weightloom::Registry;
use weightloom::sway::Verdict;
use weightloom::sway::score::{Refusal, refusals};

use super::super::failure::Failure;
use super::super::hub::ArgumentError;
use super::super::output::Output;
use super::judge_args::JudgeArgs;
use super::same::{self, SameArgs};
use super::terminal;

#[derive(Args)]
pub(in crate::cli) struct GateArgs {
    /// Suite file, a `sway.yaml`.
    #[arg(value_hint = ValueHint::FilePath, required_unless_present = "same")]
    spec: Option<PathBuf>,

    /// Lowest score that passes, from 0 to 1 [default: as the suite says].
    #[arg(long, value_name = "F", value_hint = ValueHint::Other)]
    threshold: Option<f64>,

    #[command(flatten)]
    same: SameArgs,

    #[command(flatten)]
    judge: JudgeArgs,
}

#[derive(Serialize)]
struct GateOutput {
    passed: bool,
    verdict: Verdict,
    overall: f64,
    threshold: f64,
    refusals: Vec<Refusal>,
}

impl GateArgs {
    /// Whether the command runs a suite.
    pub(super) fn uses_ranks(&self) -> bool {
        self.spec.is_some()
    }
}

pub(super) fn run(args: &GateArgs, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    let output = args.judge.output(output);
    let Some(spec) = &args.spec else {
        args.judge.only_for_suites()?;
        return same::run(&args.same, &args.judge, registry, output);
    };
    if let Some(threshold) = args.threshold.filter(|threshold| !(0.0..=1.0).contains(threshold)) {
        let fact = format!("--threshold {threshold} is outside the range of scores");
        return Err(Failure::user(&ArgumentError { fact, fix: Some("give a score from 0 to 1".to_owned()) }));
    }
    let prepared = args.judge.prepare(spec, registry, output)?;
    if prepared.entries.iter().all(|entry| !entry.enabled) {
        // A gate that measures nothing must not pass.
        let fact = format!("`{}` runs no probe, so the gate cannot pass", spec.display());
        let fix = Some("add a probe: `weightloom sway probes` lists them".to_owned());
        return Err(Failure::user(&ArgumentError { fact, fix }));
    }
    let threshold = args.threshold.unwrap_or(prepared.suite.defaults.coverage_threshold);
    let Some(report) = args.judge.judge(prepared, registry, output)? else { return Ok(ExitCode::SUCCESS) };
    let refusals = refusals(&report, threshold);
    let shown = GateOutput {
        passed: refusals.is_empty(),
        verdict: report.verdict.clone(),
        overall: report.score.overall,
        threshold,
        refusals,
    };
    output.show(&shown, |shown| {
        let mut lines = vec![terminal::render(&report), String::new()];
        match shown.passed {
            true => lines.push(format!("passed: score {:.2} is at least {threshold}", shown.overall)),
            false => {
                lines.push("refused:".to_owned());
                lines.extend(shown.refusals.iter().map(|refusal| format!("  {refusal}")));
            }
        }
        lines.join("\n")
    })?;
    args.judge.write(&report, output)?;
    Ok(if shown.passed { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
