//! `weightloom sway unpack`: a report, reproduced from a packed suite.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueHint};
use serde::Serialize;
use weightloom::Registry;
use weightloom::errors::FileError;
use weightloom::sway::Report;
use weightloom::sway::archive::Archive;

use super::super::failure::Failure;
use super::super::output::{Output, counted};
use super::files::{TargetError, put, put_bytes};
use super::pack::failed;
use super::terminal;

#[derive(Args)]
pub(in crate::cli) struct UnpackArgs {
    /// File written by `weightloom sway pack`.
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,

    /// Write the suite, its document and text packs, and the report to this new folder.
    #[arg(long, short, value_name = "DIR", value_hint = ValueHint::DirPath)]
    out: Option<PathBuf>,
}

#[derive(Serialize)]
struct UnpackOutput<'a> {
    /// Whether the answers give the packed report.
    reproduced: bool,
    /// The probes with other results.
    differences: Vec<String>,
    answers: usize,
    /// The version that packed the file.
    version: &'a str,
    fingerprints: &'a BTreeMap<String, String>,
    written: Vec<String>,
    report: &'a Report,
}

pub(super) fn run(args: &UnpackArgs, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    if let Some(folder) = args.out.as_deref().filter(|folder| folder.exists()) {
        return Err(Failure::user(&TargetError::Exists { file: folder.display().to_string() }));
    }
    let archive = Archive::read_file(&args.file)
        .map_err(|error| failed(error).about(&args.file.display().to_string()))?;
    let report = archive.reproduce_with(registry.judging()).map_err(failed)?;
    let differences = archive.differences(&report);
    let written = match &args.out {
        Some(folder) => write(&archive, &report, folder)?,
        None => Vec::new(),
    };
    let shown = UnpackOutput {
        reproduced: differences.is_empty(),
        differences,
        answers: archive.answer_count(),
        version: &archive.manifest.version,
        fingerprints: &archive.manifest.fingerprints,
        written,
        report: &report,
    };
    output.show(&shown, text)?;
    Ok(if shown.reproduced { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn text(shown: &UnpackOutput<'_>) -> String {
    let mut lines = vec![terminal::render(shown.report), String::new()];
    for (role, fingerprint) in shown.fingerprints {
        lines.push(format!("fingerprint of {role}: {fingerprint}"));
    }
    let answers = counted(shown.answers, "answer");
    lines.push(match shown.reproduced {
        true => format!("reproduced from {answers}: every result is as packed"),
        false => format!(
            "NOT reproduced from {answers}: packed by version {}, other results of {}",
            shown.version,
            shown.differences.join(", ")
        ),
    });
    if !shown.written.is_empty() {
        lines.push(format!("written: {}", shown.written.join(", ")));
    }
    lines.join("\n")
}

/// Writes the files to a new folder. Their names were checked with the archive.
fn write(archive: &Archive, report: &Report, folder: &Path) -> Result<Vec<String>, Failure> {
    let made = std::fs::create_dir(folder).map_err(FileError::while_trying_to("create", folder));
    made.map_err(|error| Failure::user(&error))?;
    let suite = folder.join(&archive.manifest.suite);
    put(&suite, &archive.suite)?;
    let packs = folder.join("packs.json");
    put(&packs, &archive.packs_json())?;
    let mut files = vec![suite, packs];
    if let (Some(name), Some(document)) = (&archive.manifest.document, &archive.document) {
        let document_file = folder.join(name);
        put_bytes(&document_file, document)?;
        files.push(document_file);
    }
    for (name, text) in [("report.json", report.to_json()), ("report.html", report.to_html())] {
        put(&folder.join(name), &text)?;
        files.push(folder.join(name));
    }
    Ok(files.iter().map(|file| file.display().to_string()).collect())
}
