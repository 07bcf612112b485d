//! `weightloom sway diff`: one suite, two tunings.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueHint};
use weightloom::sway::report::compare::Comparison;
use weightloom::sway::suite::{SuiteOverrides, TunedSide};
use weightloom::sway::{Backend, Report, Verdict};

use super::super::failure::Failure;
use super::super::hub::HubArgs;
use super::super::output::Output;
use super::answers::{Answers, answers};
use super::backend::build;
use super::interruption::Interruption;
use super::judging::{StatisticsArgument, read_suite};
use super::screen::Screen;
use super::session::Session;
use super::{LossLimit, comparison_text};

/// Losses of a score that are counted.
const LOSSES: [f64; 2] = [0.10, 0.20];

#[derive(Args)]
pub(in crate::cli) struct DiffArgs {
    /// The suite, a `sway.yaml`.
    #[arg(value_hint = ValueHint::FilePath)]
    spec: PathBuf,

    /// The folder of one adapter, or of a whole model.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    a: PathBuf,

    /// The folder of the other.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    b: PathBuf,

    /// What categories count, over those of the suite: adherence=0.5,ablation=0.
    #[arg(long, value_name = "K=V,…", value_hint = ValueHint::Other)]
    weights: Option<String>,

    /// How verdicts are reached [default: what the suite says].
    #[arg(long, value_enum)]
    statistics: Option<StatisticsArgument>,

    /// Exit with 1 if a probe's score is so much lower for B, or cannot be had any more; 0 is never.
    #[arg(long, value_name = "F", default_value_t = 0.0)]
    fail_on_regression: f64,

    #[command(flatten)]
    hub: HubArgs,
}

pub(super) fn run(args: &DiffArgs, output: Output) -> Result<ExitCode, Failure> {
    let limit = LossLimit::of(args.fail_on_regression)?;
    // Both are looked at before one is asked.
    let (first, second) = (prepared(args, &args.a, output)?, prepared(args, &args.b, output)?);
    let runs = [("a", judged(first, output)?), ("b", judged(second, output)?)]
        .map(|(label, report)| (label.to_owned(), report));
    let comparison = Comparison::of(&runs, limit.threshold());
    if output == Output::Json {
        Output::Text.show(&comparison.to_json(), |text| text.trim_end().to_owned())?;
    } else {
        let lost = |least: f64| {
            let pairs = runs[0].1.probes.iter().zip(&runs[1].1.probes);
            pairs.filter(|(a, b)| a.score.zip(b.score).is_some_and(|(a, b)| a - b > least)).count()
        };
        let counts = LOSSES.map(|least| format!("{} lost more than {least:.2}", lost(least)));
        let mut lines = vec![
            format!("a  {}", args.a.display()),
            format!("b  {}", args.b.display()),
            comparison_text(&comparison),
            counts.join(", "),
        ];
        for (label, report) in &runs {
            let failed = report.probes.iter().filter(|record| record.verdict == Verdict::Error);
            lines.extend(failed.map(|record| format!("{label}: {}: {}", record.name, record.message)));
            lines.extend(report.warnings.iter().map(|warning| format!("{label}: warning: {warning}")));
        }
        output.show(&lines.join("\n"), Clone::clone)?;
    }
    // Where one could not be asked at all, there is nothing to compare.
    if runs.iter().any(|(_, report)| report.preflight_failed()) {
        return Ok(ExitCode::from(1));
    }
    Ok(limit.exit(&comparison))
}

/// The suite with another tuning in its place, and what answers for it.
fn prepared(args: &DiffArgs, folder: &Path, output: Output) -> Result<(Session, Box<dyn Backend>), Failure> {
    let overrides = SuiteOverrides {
        statistics: args.statistics.map(Into::into),
        tuned: Some(side(folder)),
        ..SuiteOverrides::default()
    };
    let session = Session::new(read_suite(&args.spec, &overrides)?, args.weights.as_deref())?;
    let backend = build(&session.suite, &args.hub, output)?;
    Ok((session, backend))
}

/// Its report. What the base says is kept, so that the next one need not ask.
fn judged((session, mut backend): (Session, Box<dyn Backend>), output: Output) -> Result<Report, Failure> {
    let (mut cache, warnings) = answers(&*backend, Answers::Kept);
    let mut screen = Screen::quiet(output);
    screen.notes.extend(warnings);
    let _interruption = Interruption::watch(cache.as_ref(), output);
    session.run(&[], &mut *backend, cache.as_mut(), &mut screen)
}

/// An adapter, unless the folder holds a model.
fn side(folder: &Path) -> TunedSide {
    let name = folder.display().to_string();
    let there = |file: &str| folder.join(file).exists();
    if there("config.json") && !there("adapter_config.json") {
        TunedSide::Model(name)
    } else {
        TunedSide::Adapter(name)
    }
}
