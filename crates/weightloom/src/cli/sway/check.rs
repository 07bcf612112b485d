//! `weightloom sway check`: a quick look at an adapter.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueHint};
use serde::Serialize;
use serde_json::{Value, json};
use weightloom::sway::backend::build::check_adapter;
use weightloom::sway::packs::Packs;
use weightloom::sway::{Report, Statistics, Suite, Verdict};

use super::super::failure::Failure;
use super::super::hub::{ArgumentError, HubArgs};
use super::super::output::Output;
use super::answers::{Answers, answers};
use super::backend::build;
use super::files::text_of;
use super::interruption::Interruption;
use super::judging::StatisticsArgument;
use super::screen::Screen;
use super::session::Session;
use super::terminal;

/// The least change of next words that a look takes for one.
const LEAST_CHANGE: f64 = 0.01;
/// Plain facts that are asked.
const FACTS: usize = 10;
/// Runs of noise, where noise is a run of its own.
const NOISE_RUNS: u64 = 3;

#[derive(Args)]
pub(in crate::cli) struct CheckArgs {
    /// The folder of the adapter, PEFT's or MLX's.
    #[arg(value_hint = ValueHint::DirPath)]
    adapter: PathBuf,

    /// The base model [default: what adapter_config.json names].
    #[arg(long, value_name = "ID", value_hint = ValueHint::AnyPath)]
    base: Option<String>,

    /// A file with prompts, one to a line [default: prompts of our own].
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    prompts: Option<PathBuf>,

    /// How verdicts are reached.
    #[arg(long, value_enum, default_value = "paired")]
    statistics: StatisticsArgument,

    #[command(flatten)]
    hub: HubArgs,
}

/// What a quick look says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Light {
    /// It changes the model, clearly.
    Green,
    /// It may.
    Yellow,
    /// It cannot be told from noise, or cannot be run.
    Red,
}

#[derive(Serialize)]
struct Answer<'a> {
    light: Light,
    sentence: String,
    report: &'a Report,
}

pub(super) fn run(args: &CheckArgs, output: Output) -> Result<ExitCode, Failure> {
    let session = Session::new(suite(args)?, None)?;
    let mut backend = build(&session.suite, &args.hub, output)?;
    let (mut cache, warnings) = answers(&*backend, Answers::Kept);
    let mut screen = Screen::quiet(output);
    screen.notes.extend(warnings);
    let _interruption = Interruption::watch(cache.as_ref(), output);
    let report = session.run(&[], &mut *backend, cache.as_mut(), &mut screen)?;
    drop(screen);
    let light = light(&report);
    let answer = Answer { light, sentence: sentence(light, &report), report: &report };
    output.show(&answer, |answer| format!("{}\n\n{}", answer.sentence, terminal::render(&report)))?;
    Ok(if light == Light::Red { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// A small suite for an adapter.
fn suite(args: &CheckArgs) -> Result<Suite, Failure> {
    check_adapter("ADAPTER", &args.adapter).map_err(|error| Failure::user(&error))?;
    let folder = std::path::absolute(&args.adapter).unwrap_or_else(|_| args.adapter.clone());
    let base = match &args.base {
        Some(base) => base.clone(),
        None => base_of(&folder).ok_or_else(|| {
            let fact = format!("{} does not say which model it belongs to", args.adapter.display());
            Failure::user(&ArgumentError { fact, fix: Some("name the base with --base".to_owned()) })
        })?,
    };
    let prompts = match &args.prompts {
        Some(file) => prompts_of(file)?,
        None => Packs::own().check_quick_prompts.clone(),
    };
    let entries = json!([
        {"name": "noise", "kind": "null_adapter", "runs": NOISE_RUNS},
        {"name": "change", "kind": "delta_kl", "prompts": prompts, "assert_mean_gte": LEAST_CHANGE},
        {"name": "knowledge", "kind": "calibration_drift", "items_limit": FACTS},
    ]);
    let text = json!({
        "models": {"base": {"base": base}, "ft": {"base": base, "adapter": folder}},
        "defaults": {"statistics": Statistics::from(args.statistics)},
        "suite": entries,
    });
    let variable = |name: &str| std::env::var(name).ok();
    let name = args.adapter.join("check");
    // Its paths are told from where the user is.
    let mut suite = Suite::read(&text.to_string(), Path::new("check"), &variable)
        .map_err(|error| Failure::user(&error))?;
    suite.file = name.display().to_string();
    Ok(suite)
}

/// The model that an adapter says it belongs to.
fn base_of(folder: &Path) -> Option<String> {
    let text = std::fs::read_to_string(folder.join("adapter_config.json")).ok()?;
    let config: Value = serde_json::from_str(&text).ok()?;
    // PEFT's word, then MLX's.
    let named = config.get("base_model_name_or_path").or_else(|| config.get("model"))?.as_str()?;
    (!named.trim().is_empty()).then(|| named.to_owned())
}

/// The lines of a file that say something.
pub(super) fn prompts_of(file: &Path) -> Result<Vec<String>, Failure> {
    let text = text_of(file)?;
    let prompts: Vec<String> =
        text.lines().map(str::trim_end).filter(|line| !line.trim().is_empty()).map(str::to_owned).collect();
    if prompts.is_empty() {
        let fact = format!("{} has no prompts", file.display());
        return Err(Failure::user(&ArgumentError { fact, fix: Some("write one to a line".to_owned()) }));
    }
    Ok(prompts)
}

/// What the report comes to. A deviation decides if there is one, as in
/// dlm-sway; a test if there was one; else the score.
fn light(report: &Report) -> Light {
    if report.probes.iter().any(|record| record.verdict == Verdict::Error) {
        return Light::Red;
    }
    let Some(change) = report.probes.iter().find(|record| record.kind == "delta_kl") else {
        return Light::Red;
    };
    match (report.statistics, change.z_score) {
        (Statistics::Paired, _) => match change.verdict {
            Verdict::Pass => Light::Green,
            Verdict::Fail => Light::Red,
            _ => Light::Yellow,
        },
        (_, Some(z)) if z >= 3.0 => Light::Green,
        (_, Some(z)) if z >= 1.0 => Light::Yellow,
        (_, Some(_)) => Light::Red,
        (_, None) if report.score.overall >= 0.6 => Light::Green,
        (_, None) if report.score.overall >= 0.3 => Light::Yellow,
        (_, None) => Light::Red,
    }
}

fn sentence(light: Light, report: &Report) -> String {
    if report.probes.iter().any(|record| record.verdict == Verdict::Error) {
        return "RED: the adapter could not be looked at".to_owned();
    }
    match light {
        Light::Green => "GREEN: the adapter changes the model, and not as noise would".to_owned(),
        Light::Yellow => "YELLOW: the adapter may change the model, but this look does not decide".to_owned(),
        Light::Red => "RED: the adapter's change cannot be told from noise".to_owned(),
    }
}
