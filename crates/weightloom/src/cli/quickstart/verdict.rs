//! What the adapter changed, judged by a suite, and left as a page to look at.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use weightloom::sway::{JudgeOptions, Suite, Verdict as Outcome};

use super::material::Material;
use crate::cli::failure::Failure;
use crate::cli::hub::HubArgs;
use crate::cli::output::Output;
use crate::cli::sway::{SuiteProgress, build, failure, prepare};

/// What a suite says of the adapter.
#[derive(Serialize)]
pub(super) struct Verdict {
    pub(super) suite: PathBuf,
    pub(super) overall: f64,
    pub(super) band: String,
    /// The band in words.
    pub(super) meaning: &'static str,
    pub(super) probes: Vec<Judged>,
    pub(super) html: PathBuf,
    pub(super) json: PathBuf,
    pub(super) seconds: f64,
}

/// One probe.
#[derive(Serialize)]
pub(super) struct Judged {
    pub(super) name: String,
    pub(super) verdict: Outcome,
}

/// Judges the adapter, and writes the report.
pub(super) fn judge(
    material: &Material,
    model: &Path,
    adapter: &Path,
    output: Output,
) -> Result<Verdict, Failure> {
    let begun = Instant::now();
    let file = material.suite_file(model, adapter)?;
    let variable = |name: &str| std::env::var(name).ok();
    let suite = Suite::read_file(&file, &variable).map_err(|error| Failure::user(&error))?;
    let prepared = prepare(suite, None)?;
    let mut backend = build(&prepared.suite, &HubArgs::default(), output)?;
    let mut progress = SuiteProgress::new(output);
    let report = weightloom::sway::judge(&prepared, &mut *backend, &JudgeOptions::default(), &mut progress)
        .map_err(failure)?;
    let (html, json) = (material.report("html"), material.report("json"));
    material.write_report(&html, &report.to_html())?;
    material.write_report(&json, &report.to_json())?;
    let judged =
        |record: &weightloom::sway::Record| Judged { name: record.name.clone(), verdict: record.verdict };
    Ok(Verdict {
        suite: file,
        overall: report.score.overall,
        band: report.score.band.to_string(),
        meaning: report.score.band.meaning(),
        probes: report.probes.iter().map(judged).collect(),
        html,
        json,
        seconds: begun.elapsed().as_secs_f64(),
    })
}
