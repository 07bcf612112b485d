//! `weightloom sway diff`: one suite, two fine-tuned models.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueHint};
use weightloom::Registry;
use weightloom::hub::Hub;
use weightloom::sway::report::compare::Comparison;
use weightloom::sway::suite::{SuiteOverrides, TunedSide};
use weightloom::sway::{Backend, JudgeOptions, PreparedSuite, ProbeVerdict, Report, Statistics};

use super::super::failure::Failure;
use super::super::located::{locate_checkpoint, location_text};
use super::super::output::Output;
use super::backend::{BackendArgs, build};
use super::compare::{RegressionArgs, comparison_text};
use super::judge_args::{read_suite, statistics};
use super::session::{CacheUse, prepare, run as run_suite};

#[derive(Args)]
pub(in crate::cli) struct DiffArgs {
    /// Suite file, a `sway.yaml`.
    #[arg(value_hint = ValueHint::FilePath)]
    spec: PathBuf,

    /// First adapter or model: folder, run, card or org/name.
    #[arg(long, value_name = "NAME", value_hint = ValueHint::DirPath)]
    a: String,

    /// Second adapter or model.
    #[arg(long, value_name = "NAME", value_hint = ValueHint::DirPath)]
    b: String,

    /// Override the suite's category weights: adherence=0.5,ablation=0.
    #[arg(long, value_name = "K=V,…", value_hint = ValueHint::Other)]
    weights: Option<String>,

    /// How to reach verdicts [default: as the suite says].
    #[arg(long, value_parser = statistics())]
    statistics: Option<Statistics>,

    #[command(flatten)]
    regression: RegressionArgs,

    #[command(flatten)]
    backend: BackendArgs,
}

pub(super) fn run(args: &DiffArgs, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    // Check both before asking either.
    let (first, second) =
        (prepared(args, registry, &args.a, output)?, prepared(args, registry, &args.b, output)?);
    let runs = [("a", judged(first, output)?), ("b", judged(second, output)?)]
        .map(|(label, report)| (label.to_owned(), report));
    let comparison = Comparison::of(&runs, args.regression.margins());
    if output.is_json() {
        output.show_text(&comparison.to_json())?;
    } else {
        let mut lines =
            vec![format!("a  {}", args.a), format!("b  {}", args.b), comparison_text(&comparison)];
        for (label, report) in &runs {
            let failed = report.probes.iter().filter(|record| record.verdict == ProbeVerdict::Error);
            lines.extend(failed.map(|record| format!("{label}: {}: {}", record.name, record.message)));
            lines.extend(report.warnings.iter().map(|warning| format!("{label}: warning: {warning}")));
        }
        output.show(&lines.join("\n"), Clone::clone)?;
    }
    // A side that could not be asked at all leaves nothing to compare.
    if runs.iter().any(|(_, report)| report.preflight_failed()) {
        return Ok(ExitCode::from(1));
    }
    Ok(args.regression.exit(&comparison))
}

/// The suite with another fine-tuned model, and its backend.
fn prepared(
    args: &DiffArgs,
    registry: &Registry,
    name: &str,
    output: Output,
) -> Result<(PreparedSuite, Box<dyn Backend>), Failure> {
    let hub = args.backend.hub(registry)?;
    let overrides = SuiteOverrides {
        statistics: args.statistics,
        tuned: Some(side(&hub, name, output)?),
        ..SuiteOverrides::default()
    };
    let suite = read_suite(&args.spec, overrides, (registry, &hub), output)?;
    let prepared = prepare(suite, args.weights.as_deref())?;
    let backend = build(&prepared.suite, &args.backend, registry, output)?;
    Ok((prepared, backend))
}

/// Judges one side. Answers of the base are cached, so the second side reuses
/// them.
fn judged(
    (mut prepared, mut backend): (PreparedSuite, Box<dyn Backend>),
    output: Output,
) -> Result<Report, Failure> {
    let options = JudgeOptions { cache: CacheUse::Cached.folder(&mut prepared), ..JudgeOptions::default() };
    run_suite(&prepared, &mut *backend, &options, output)
}

/// An adapter, unless the name is that of a model.
pub(super) fn side(hub: &Hub, name: &str, output: Output) -> Result<TunedSide, Failure> {
    let located = locate_checkpoint(hub, name, output)?;
    let place = location_text(&located);
    // A folder with neither config is reported as an adapter that lacks one.
    let is_model = !located.is_adapter() && Path::new(&place).join("config.json").exists();
    Ok(if is_model { TunedSide::Model(place) } else { TunedSide::Adapter(place) })
}
