//! Judges the adapter with a suite and writes its report.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use weightloom::Registry;
use weightloom::sway::{JudgeOptions, ProbeVerdict, Suite, Verdict};

use super::folder::TourFolder;
use super::training_run::RunContext;
use crate::cli::device::DeviceOverride;
use crate::cli::failure::Failure;
use crate::cli::hub::HubArgs;
use crate::cli::sway::{BackendArgs, SuiteProgress, build, failure, prepare};

/// The verdict of the suite.
#[derive(Serialize)]
pub(super) struct Judgement {
    pub(super) suite: PathBuf,
    pub(super) verdict: Verdict,
    pub(super) headline: String,
    pub(super) overall: f64,
    pub(super) probes: Vec<JudgedProbe>,
    pub(super) html: PathBuf,
    pub(super) json: PathBuf,
    pub(super) seconds: f64,
}

#[derive(Serialize)]
pub(super) struct JudgedProbe {
    pub(super) name: String,
    pub(super) verdict: ProbeVerdict,
}

/// Judges the adapter and writes the report as HTML and JSON.
pub(super) fn judge(
    folder: &TourFolder,
    model: &Path,
    adapter: &Path,
    registry: &Registry,
    context: &RunContext<'_>,
) -> Result<Judgement, Failure> {
    let begun = Instant::now();
    let file = folder.suite_file(model, adapter)?;
    let variable = |name: &str| std::env::var(name).ok();
    let suite = Suite::read_file(&file, &variable).map_err(|error| Failure::user(&error))?;
    let prepared = prepare(suite, None)?;
    let (device, output) = (DeviceOverride { device: Some(context.device) }, context.output);
    let args = BackendArgs::local(&HubArgs::default(), device);
    let mut backend = build(&prepared.suite, &args, registry, output)?;
    let mut progress = SuiteProgress::new(output);
    let report = weightloom::sway::judge(&prepared, &mut *backend, &JudgeOptions::default(), &mut progress)
        .map_err(failure)?;
    let (html, json) = (folder.report("html"), folder.report("json"));
    folder.write_report(&html, &report.to_html())?;
    folder.write_report(&json, &report.to_json())?;
    let verdict = |record: &weightloom::sway::Record| JudgedProbe {
        name: record.name.clone(),
        verdict: record.verdict,
    };
    Ok(Judgement {
        suite: file,
        headline: report.sentence(),
        overall: report.score.overall,
        probes: report.probes.iter().map(verdict).collect(),
        verdict: report.verdict,
        html,
        json,
        seconds: begun.elapsed().as_secs_f64(),
    })
}
