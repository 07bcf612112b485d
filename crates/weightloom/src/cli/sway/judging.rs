//! Options that all commands that run a suite take, and what they come to.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum, ValueHint};
use serde_json::json;
use weightloom::hub::Hub;
use weightloom::sway::suite::SuiteOverrides;
use weightloom::sway::{Category, Report, Statistics, Suite};

use super::super::failure::Failure;
use super::super::hub::{ArgumentError, HubArgs};
use super::super::output::{Output, counted, table};
use super::answers::{Answers, answers};
use super::backend::{build, check};
use super::files::{check_target, put};
use super::interruption::Interruption;
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

    /// Refuses what says something about suites alone, where there is none: it
    /// would go unheard.
    pub(super) fn only_for_suites(&self) -> Result<(), Failure> {
        let json = self.json_file.as_deref().is_some_and(|file| file != Path::new(STDOUT));
        let given = [
            ("--json FILE", json),
            ("--markdown", self.markdown.is_some()),
            ("--junit", self.junit.is_some()),
            ("--html", self.html.is_some()),
            ("--weights", self.weights.is_some()),
            ("--only", !self.only.is_empty()),
            ("--statistics", self.statistics.is_some()),
            ("--trace", self.trace.is_some()),
        ];
        let given: Vec<&str> = given.into_iter().filter(|(_, is)| *is).map(|(name, _)| name).collect();
        if given.is_empty() {
            return Ok(());
        }
        let fact = format!("{} and --same do not go together", given.join(", "));
        let fix = "leave it out; --json alone prints what was found, for programs".to_owned();
        Err(Failure::user(&ArgumentError { fact, fix: Some(fix) }))
    }

    pub(super) fn hub(&self) -> Result<Hub, Failure> {
        self.hub.hub()
    }

    pub(super) fn session(&self, file: &Path) -> Result<Session, Failure> {
        let overrides =
            SuiteOverrides { statistics: self.statistics.map(Statistics::from), ..SuiteOverrides::default() };
        Session::new(read_suite(file, &overrides)?, self.weights.as_deref())
    }

    /// Whether what the command names is there: entries, and room for files.
    fn check(&self, session: &Session) -> Result<(), Failure> {
        self.targets().into_iter().try_for_each(check_target)?;
        session.check_names(&self.only)
    }

    /// Checks everything that can be checked without loading a model.
    pub(super) fn rehearse(&self, session: &Session, output: Output) -> Result<ExitCode, Failure> {
        self.check(session)?;
        check(&session.suite, &self.hub()?)?;
        rehearsal(session, output)
    }

    /// Runs a suite. What is wrong with the command is told before it begins.
    pub(super) fn judge(&self, session: &Session, output: Output) -> Result<Report, Failure> {
        self.check(session)?;
        let mut backend = build(&session.suite, &self.hub, output)?;
        let kept = if self.no_cache { Answers::Fresh } else { Answers::Kept };
        let (mut cache, warnings) = answers(&*backend, kept);
        let mut screen = Screen::new(output, self.trace.as_deref())?;
        screen.notes.extend(warnings);
        let _interruption = Interruption::watch(cache.as_ref(), output);
        let report = session.run(&self.only, &mut *backend, cache.as_mut(), &mut screen)?;
        drop(screen);
        Ok(report)
    }

    /// Writes the files that were asked for. One that cannot be written does not
    /// keep the others from it.
    pub(super) fn keep(&self, report: &Report, output: Output) -> Result<(), Failure> {
        let mut written = Vec::new();
        let mut failure = None;
        for (file, text) in self.files(report) {
            match put(file, &text) {
                Ok(_) => written.push(file.display().to_string()),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        if output == Output::Text && !written.is_empty() {
            output.show(&written, |written| format!("written: {}", written.join(", ")))?;
        }
        failure.map_or(Ok(()), Err)
    }

    /// The files that were asked for.
    fn targets(&self) -> Vec<&Path> {
        let json = self.json_file.as_deref().filter(|file| *file != Path::new(STDOUT));
        [json, self.markdown.as_deref(), self.junit.as_deref(), self.html.as_deref()]
            .into_iter()
            .flatten()
            .collect()
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
}

/// Reads a suite from its file.
pub(super) fn read_suite(file: &Path, overrides: &SuiteOverrides) -> Result<Suite, Failure> {
    let variable = |name: &str| std::env::var(name).ok();
    Suite::read_file_with(file, overrides, &variable).map_err(|error| Failure::user(&error))
}

/// What a suite would do.
fn rehearsal(session: &Session, output: Output) -> Result<ExitCode, Failure> {
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
