//! Options that all commands that run a suite take, and what they come to.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum, ValueHint};
use serde_json::json;
use shardloom::hub::Hub;
use shardloom::sway::suite::SuiteOverrides;
use shardloom::sway::{Category, Report, Statistics, Suite};

use super::super::failure::Failure;
use super::super::hub::HubArgs;
use super::super::output::{Output, counted, table};
use super::answers::{Answers, answers};
use super::backend::build;
use super::files::put;
use super::screen::Screen;
use super::session::Session;

/// What stands for stdout in the place of a file.
const STDOUT: &str = "-";

#[derive(Args)]
pub(super) struct JudgingArgs {
    /// Write the report as JSON to this file; without one, print it.
    #[arg(id = "json_file", long = "json", short = 'j', value_name = "FILE", num_args = 0..=1, default_missing_value = STDOUT, value_hint = ValueHint::FilePath)]
    json_file: Option<PathBuf>,

    /// The flag that other commands call --json. Its own name here leaves that
    /// one to the file.
    #[arg(id = "json", long = "print-json", hide = true)]
    print_json: bool,

    /// Write the report as Markdown to this file.
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    markdown: Option<PathBuf>,

    /// Write the report as JUnit's XML to this file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    junit: Option<PathBuf>,

    /// Write the report as one HTML page to this file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    html: Option<PathBuf>,

    /// What categories count, over those of the suite: adherence=0.5,ablation=0.
    #[arg(long, value_name = "K=V,…", value_hint = ValueHint::Other)]
    weights: Option<String>,

    /// Run only these entries, and the noise that they are measured by; may be given several times.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_hint = ValueHint::Other)]
    only: Vec<String>,

    /// How verdicts are reached [default: what the suite says].
    #[arg(long, value_enum)]
    statistics: Option<StatisticsArgument>,

    /// Add what is asked to this file, one JSON object to a line.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    trace: Option<PathBuf>,

    /// Ask everything anew, and keep no answers.
    #[arg(long)]
    no_cache: bool,

    #[command(flatten)]
    hub: HubArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum StatisticsArgument {
    /// By paired tests against noise of the adapter's own size.
    Paired,
    /// As dlm-sway does, number by number.
    Reference,
}

impl From<StatisticsArgument> for Statistics {
    fn from(given: StatisticsArgument) -> Self {
        match given {
            StatisticsArgument::Paired => Self::Paired,
            StatisticsArgument::Reference => Self::Reference,
        }
    }
}

impl JudgingArgs {
    /// The form of what goes to stdout.
    pub(super) fn output(&self, asked: Output) -> Output {
        let printed = self.print_json || self.json_file.as_deref() == Some(Path::new(STDOUT));
        if printed { Output::Json } else { asked }
    }

    pub(super) fn hub(&self) -> Result<Hub, Failure> {
        self.hub.hub()
    }

    pub(super) fn session(&self, file: &Path) -> Result<Session, Failure> {
        let overrides =
            SuiteOverrides { statistics: self.statistics.map(Statistics::from), ..SuiteOverrides::default() };
        Session::new(read_suite(file, &overrides)?, self.weights.as_deref())
    }

    /// Runs a suite, and writes the files that were asked for.
    pub(super) fn judge(&self, session: &Session, output: Output) -> Result<Report, Failure> {
        let mut backend = build(&session.suite, &self.hub, output)?;
        let kept = if self.no_cache { Answers::Fresh } else { Answers::Kept };
        let (mut cache, warnings) = answers(&*backend, kept);
        let mut screen = Screen::new(output, self.trace.as_deref())?;
        screen.notes.extend(warnings);
        let report = session.run(&self.only, &mut *backend, cache.as_mut(), &mut screen)?;
        drop(screen);
        for (file, text) in self.files(&report) {
            put(file, &text)?;
        }
        Ok(report)
    }

    /// The files that were asked for, with what goes there.
    fn files(&self, report: &Report) -> Vec<(&Path, String)> {
        let json = self.json_file.as_deref().filter(|file| *file != Path::new(STDOUT));
        let mut files = Vec::new();
        files.extend(json.map(|file| (file, report.to_json())));
        files.extend(self.markdown.as_deref().map(|file| (file, report.to_markdown())));
        files.extend(self.junit.as_deref().map(|file| (file, report.to_junit())));
        files.extend(self.html.as_deref().map(|file| (file, report.to_html())));
        files
    }

    /// Where the report can be read again, in a line; empty if nowhere.
    pub(super) fn written(&self) -> String {
        let json = self.json_file.as_deref().filter(|file| *file != Path::new(STDOUT));
        let files = [json, self.markdown.as_deref(), self.junit.as_deref(), self.html.as_deref()];
        let names: Vec<String> = files.into_iter().flatten().map(|file| file.display().to_string()).collect();
        if names.is_empty() { String::new() } else { format!("\nwritten: {}", names.join(", ")) }
    }
}

/// Reads a suite from its file.
pub(super) fn read_suite(file: &Path, overrides: &SuiteOverrides) -> Result<Suite, Failure> {
    let variable = |name: &str| std::env::var(name).ok();
    Suite::read_file_with(file, overrides, &variable).map_err(|error| Failure::user(&error))
}

/// What a suite would do.
pub(super) fn rehearsal(session: &Session, output: Output) -> Result<std::process::ExitCode, Failure> {
    let suite = &session.suite;
    let sections = session.document.as_ref().map_or(0, |document| document.sections.len());
    let entries: Vec<_> = session
        .entries
        .iter()
        .map(|entry| {
            let category = Category::of_kind(&entry.kind).name();
            json!({"name": entry.name, "kind": entry.kind, "category": category,
                   "enabled": entry.enabled, "weight": entry.weight})
        })
        .collect();
    let answer = json!({
        "suite": suite.file, "base": suite.base, "ft": suite.tuned, "statistics": suite.defaults.statistics,
        "sections": sections, "packs": session.packs.version(), "weights": session.weights.by_name(),
        "entries": entries, "warnings": session.warnings,
    });
    output.show(&answer, |_| {
        let mut table = table(&["probe", "kind", "category", "weight", ""], &[3]);
        for entry in &session.entries {
            let state = if entry.enabled { "" } else { "disabled" };
            let category = Category::of_kind(&entry.kind).name();
            let weight = format!("{:.2}", entry.weight);
            table.add_row([&entry.name, &entry.kind, category, &weight, state]);
        }
        let mut lines = vec![
            format!("{} can be run: {}", suite.file, counted(session.entries.len(), "probe")),
            format!("base   {}", suite.base.base),
            match &suite.tuned.adapter {
                Some(adapter) => format!("tuned  {} with {adapter}", suite.tuned.base),
                None => format!("tuned  {}", suite.tuned.base),
            },
            format!(
                "{} statistics, {} of a document",
                suite.defaults.statistics,
                counted(sections, "section")
            ),
            table.to_string(),
        ];
        lines.extend(session.warnings.iter().map(|warning| format!("warning: {warning}")));
        lines.join("\n")
    })
}
