//! `weightloom sway check`: a quick check of an adapter.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueHint};
use serde::Serialize;
use weightloom::Registry;
use weightloom::hub::{Hub, HubError, LocateError};
use weightloom::sway::backend::build::check_adapter;
use weightloom::sway::quick_check::{Light, QuickCheck};
use weightloom::sway::{JudgeOptions, ProbeVerdict, Report, Statistics};

use super::super::device::DeviceOverride;
use super::super::failure::Failure;
use super::super::hub::{ArgumentError, HubArgs};
use super::super::located::{OpenedModel, locate_checkpoint, location_text, note};
use super::super::output::Output;
use super::backend::{BackendArgs, build};
use super::files::text_of;
use super::judge_args::statistics;
use super::session::{CacheUse, prepare, run as run_suite};
use super::terminal;

#[derive(Args)]
pub(in crate::cli) struct CheckArgs {
    /// Adapter in PEFT's or MLX's format, or fine-tuned model: folder, run, or org/name.
    #[arg(value_hint = ValueHint::DirPath)]
    adapter: String,

    /// Base model [default: the one that adapter_config.json names].
    #[arg(long, value_name = "NAME", value_hint = ValueHint::AnyPath)]
    base: Option<String>,

    /// File with one prompt per line [default: built-in prompts].
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    prompts: Option<PathBuf>,

    /// How to reach verdicts.
    #[arg(long, value_parser = statistics(), default_value = "paired")]
    statistics: Statistics,

    #[command(flatten)]
    device: DeviceOverride,

    #[command(flatten)]
    hub: HubArgs,
}

#[derive(Serialize)]
struct CheckOutput<'a> {
    light: Light,
    sentence: String,
    report: &'a Report,
}

pub(super) fn run(args: &CheckArgs, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    let hub = args.hub.hub(registry)?;
    let tuned = TunedModel::locate(&hub, &args.adapter, args.base.as_deref(), output)?;
    let check = QuickCheck {
        adapter: &tuned.path,
        base: tuned.base,
        prompts: args.prompts.as_deref().map(prompts_of).transpose()?,
        statistics: args.statistics,
    };
    let variable = |name: &str| std::env::var(name).ok();
    let suite = check.suite(&variable).map_err(|error| Failure::user(&error))?;
    let mut prepared = prepare(suite, None)?;
    let mut backend = build(&prepared.suite, &BackendArgs::local(&args.hub, args.device), registry, output)?;
    let options = JudgeOptions { cache: CacheUse::Cached.folder(&mut prepared), ..JudgeOptions::default() };
    let report = run_suite(&prepared, &mut *backend, &options, output)?;
    let light = Light::of(&report);
    let shown = CheckOutput { light, sentence: sentence(light, &report), report: &report };
    output.show(&shown, |shown| format!("{}\n\n{}", shown.sentence, terminal::render_evidence(&report)))?;
    Ok(if light == Light::Red { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// A fine-tuned model with its base.
struct TunedModel {
    path: PathBuf,
    base: Option<String>,
}

impl TunedModel {
    /// Locates an adapter or a model, and its base.
    fn locate(hub: &Hub, name: &str, base: Option<&str>, output: Output) -> Result<Self, Failure> {
        let located = locate_checkpoint(hub, name, output)?;
        let path = PathBuf::from(location_text(&located));
        let base = match base {
            Some(base) => Some(OpenedModel::name(hub, base, output)?),
            // The card of an adapter names its base, too.
            None if located.is_adapter() && hub.cards.knows(name) => Some(hub.locate(name, &())?.model),
            None if located.is_adapter() => match hub.locate(&location_text(&located), &()) {
                Ok(found) => {
                    note(&found.steps, output);
                    Some(found.model)
                }
                // Reported with the option of this command.
                Err(HubError::Locate(LocateError::NoBase { .. })) => None,
                Err(error) => return Err(error.into()),
            },
            None => None,
        };
        if located.is_adapter() || !path.join("config.json").is_file() {
            check_adapter("ADAPTER", &path).map_err(|error| Failure::user(&error))?;
        }
        Ok(Self { path, base })
    }
}

/// The lines of a file that are not blank.
pub(super) fn prompts_of(file: &Path) -> Result<Vec<String>, Failure> {
    let text = text_of(file)?;
    let prompts: Vec<String> =
        text.lines().map(str::trim_end).filter(|line| !line.trim().is_empty()).map(str::to_owned).collect();
    if prompts.is_empty() {
        let fact = format!("`{}` has no prompts", file.display());
        return Err(Failure::user(&ArgumentError {
            fact,
            fix: Some("write one prompt per line".to_owned()),
        }));
    }
    Ok(prompts)
}

fn sentence(light: Light, report: &Report) -> String {
    if report.probes.iter().any(|record| record.verdict == ProbeVerdict::Error) {
        return "RED: the adapter could not be checked".to_owned();
    }
    let colour = match light {
        Light::Green => "GREEN",
        Light::Yellow => "YELLOW",
        Light::Red => "RED",
    };
    format!("{colour}: {}", report.sentence())
}
