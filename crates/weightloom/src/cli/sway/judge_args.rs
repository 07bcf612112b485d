//! Options shared by the commands that run a suite.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use clap::ValueHint;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde_json::json;
use weightloom::Registry;
use weightloom::gang::{Gang, GangOptions};
use weightloom::hub::Hub;
use weightloom::launch::Launch;
use weightloom::sway::backend::ranks::{RankedBackend, follow};
use weightloom::sway::suite::{SuiteOverrides, SuiteReader};
use weightloom::sway::{BackendError, JudgeOptions, LocatedModels, PreparedSuite, Report, Statistics, Suite};

use super::super::failure::Failure;
use super::super::hub::ArgumentError;
use super::super::located::note;
use super::super::output::{Format, Output, counted, table};
use super::backend::{BackendArgs, build, check};
use super::files::{check_target, put};
use super::session::{CacheUse, prepare, run};

/// Stands for stdout in place of a file name.
const STDOUT: &str = "-";

#[derive(Args)]
pub(super) struct JudgeArgs {
    /// Write the report as JSON to this file; without a file, print it.
    #[arg(id = "json_file", long = "json", short = 'j', value_name = "FILE", num_args = 0..=1, default_missing_value = STDOUT, value_hint = ValueHint::FilePath)]
    json_file: Option<PathBuf>,

    /// The flag that other commands call `--json`. It has another name here
    /// because `--json` takes a file.
    #[arg(id = "json", long = "print-json", hide = true)]
    print_json: bool,

    /// Write the report as Markdown to this file.
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    markdown: Option<PathBuf>,

    /// Write the report as JUnit XML to this file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    junit: Option<PathBuf>,

    /// Write the report as a self-contained HTML page to this file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    html: Option<PathBuf>,

    /// Override the suite's category weights: adherence=0.5,ablation=0.
    #[arg(long, value_name = "K=V,…", value_hint = ValueHint::Other)]
    weights: Option<String>,

    /// Run only these entries and the noise they are compared with; repeatable.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_hint = ValueHint::Other)]
    only: Vec<String>,

    /// How to reach verdicts [default: as the suite says].
    #[arg(long, value_parser = statistics())]
    statistics: Option<Statistics>,

    /// Append every question to this file, one JSON object per line.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    trace: Option<PathBuf>,

    /// Ask every question again and cache no answers.
    #[arg(long)]
    no_cache: bool,

    /// Divide the questions among this many thread ranks, each with its own copy of the models; under
    /// mpirun, its processes are the ranks [default: 1].
    #[arg(long, value_name = "N", value_hint = ValueHint::Other)]
    ranks: Option<usize>,

    #[command(flatten)]
    backend: BackendArgs,
}

/// Parses `--statistics`.
pub(super) fn statistics() -> impl TypedValueParser<Value = Statistics> {
    let values = Statistics::ALL.map(|one| {
        PossibleValue::new(one.name()).help(match one {
            Statistics::Paired => "Paired tests against noise of the adapter's size",
            Statistics::Reference => "The rules of dlm-sway, probe by probe",
        })
    });
    PossibleValuesParser::new(values).try_map(|name| name.parse::<Statistics>())
}

impl JudgeArgs {
    /// The format of stdout.
    pub(super) fn output(&self, asked: Output) -> Output {
        let printed = self.print_json || self.json_file.as_deref() == Some(Path::new(STDOUT));
        if printed { asked.with_format(Format::Json) } else { asked }
    }

    /// Refuses options that only suites use, which `--same` would ignore.
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
        let fact = format!("cannot combine {} with --same", given.join(", "));
        let fix = "leave it out; --json without a file prints the result as JSON".to_owned();
        Err(Failure::user(&ArgumentError { fact, fix: Some(fix) }))
    }

    pub(super) fn hub(&self, registry: &Registry) -> Result<Hub, Failure> {
        self.backend.hub(registry)
    }

    pub(super) fn prepare(
        &self,
        file: &Path,
        registry: &Registry,
        output: Output,
    ) -> Result<PreparedSuite, Failure> {
        let overrides = SuiteOverrides { statistics: self.statistics, ..SuiteOverrides::default() };
        let suite = read_suite(file, overrides, (registry, &self.hub(registry)?), output)?;
        prepare(suite, self.weights.as_deref())
    }

    /// Checks the names and files that the command line gives.
    fn check(&self, prepared: &PreparedSuite) -> Result<(), Failure> {
        self.targets().into_iter().try_for_each(check_target)?;
        prepared.check_names(&self.only).map_err(|error| Failure::user(&error))
    }

    /// Checks everything that can be checked without loading a model.
    pub(super) fn dry_run(
        &self,
        prepared: &PreparedSuite,
        registry: &Registry,
        output: Output,
    ) -> Result<ExitCode, Failure> {
        self.check(prepared)?;
        check(&prepared.suite, &self.backend, registry)?;
        show_dry_run(prepared, output)
    }

    /// Runs a suite, and returns the report on the process of rank 0. Reports
    /// mistakes of the command line before it starts.
    pub(super) fn judge(
        &self,
        mut prepared: PreparedSuite,
        registry: &Registry,
        output: Output,
    ) -> Result<Option<Report>, Failure> {
        self.check(&prepared)?;
        let launch = Launch::detect(self.ranks, 1)?;
        let cache = if self.no_cache { CacheUse::Fresh } else { CacheUse::Cached };
        let options = JudgeOptions {
            only: self.only.clone(),
            cache: cache.folder(&mut prepared),
            trace: self.trace.clone(),
            ..JudgeOptions::default()
        };
        if launch == (Launch::Threads { ranks: 1 }) {
            let mut backend = build(&prepared.suite, &self.backend, registry, output)?;
            return run(&prepared, &mut *backend, &options, output).map(Some);
        }
        let on_rank = |gang: Arc<dyn Gang>| {
            let failed = |error: BackendError| Failure::operational_with_hint(&error);
            if gang.rank() > 0 {
                let backend = self.backend.on_rank(gang.rank());
                let mut backend = build(&prepared.suite, &backend, registry, output.quiet())?;
                return follow(&mut *backend, &*gang).map(|()| None).map_err(failed);
            }
            let mut backend =
                RankedBackend::new(build(&prepared.suite, &self.backend, registry, output)?, gang);
            let report = run(&prepared, &mut backend, &options, output);
            backend.finish().map_err(failed)?;
            report.map(Some)
        };
        Ok(launch.run(GangOptions::default(), on_rank, |failure| output.failure(failure))?.flatten())
    }

    /// Writes the report to the files asked for. A file that cannot be written
    /// does not stop the others.
    pub(super) fn write(&self, report: &Report, output: Output) -> Result<(), Failure> {
        let mut written = Vec::new();
        let mut failure = None;
        for (file, text) in self.files(report) {
            match put(file, &text) {
                Ok(_) => written.push(file.display().to_string()),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        if !written.is_empty() {
            output.status(&format!("written: {}", written.join(", ")));
        }
        failure.map_or(Ok(()), Err)
    }

    /// The files asked for.
    fn targets(&self) -> Vec<&Path> {
        let json = self.json_file.as_deref().filter(|file| *file != Path::new(STDOUT));
        [json, self.markdown.as_deref(), self.junit.as_deref(), self.html.as_deref()]
            .into_iter()
            .flatten()
            .collect()
    }

    /// The files asked for, with their contents.
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

/// Reads a suite from its file, with the newest checkpoints of run folders.
pub(super) fn read_suite(
    file: &Path,
    overrides: SuiteOverrides,
    (registry, hub): (&Registry, &Hub),
    output: Output,
) -> Result<Suite, Failure> {
    let variable = |name: &str| std::env::var(name).ok();
    let read = |overrides: SuiteOverrides| {
        let reader = SuiteReader { overrides, ..SuiteReader::new(registry.judging(), &variable) };
        reader.read_file(file).map_err(|error| Failure::user(&error))
    };
    let suite = read(overrides.clone())?;
    let located = LocatedModels::of(&suite, hub).map_err(|error| Failure::user(&error))?;
    if located.overrides == SuiteOverrides::default() {
        return Ok(suite);
    }
    note(&located.steps, output);
    read(SuiteOverrides {
        statistics: overrides.statistics,
        base: located.overrides.base.or(overrides.base),
        tuned: located.overrides.tuned.or(overrides.tuned),
    })
}

/// Shows what a suite would run.
fn show_dry_run(prepared: &PreparedSuite, output: Output) -> Result<ExitCode, Failure> {
    let suite = &prepared.suite;
    let sections = prepared.document.as_ref().map_or(0, |document| document.sections.len());
    let entries: Vec<_> = prepared
        .entries
        .iter()
        .map(|entry| {
            json!({"name": entry.name, "kind": entry.kind, "category": entry.category(),
                   "enabled": entry.enabled, "weight": entry.weight})
        })
        .collect();
    let answer = json!({
        "suite": suite.file, "base": suite.base, "ft": suite.tuned, "statistics": suite.defaults.statistics,
        "sections": sections, "packs": prepared.packs.version(), "weights": prepared.weights.by_name(),
        "entries": entries, "warnings": prepared.warnings,
    });
    output.show(&answer, |_| {
        let mut table = table(&["probe", "kind", "category", "weight", ""], &[3]);
        for entry in &prepared.entries {
            let state = if entry.enabled { "" } else { "disabled" };
            let weight = format!("{:.2}", entry.weight);
            table.add_row([&entry.name, &entry.kind, entry.category().name(), &weight, state]);
        }
        let mut lines = vec![
            format!("{} is valid: {}", suite.file, counted(prepared.entries.len(), "probe")),
            format!("base        {}", suite.base.base),
            match &suite.tuned.adapter {
                Some(adapter) => format!("fine-tuned  {} with {adapter}", suite.tuned.base),
                None => format!("fine-tuned  {}", suite.tuned.base),
            },
            format!(
                "{} statistics, {} in the document",
                suite.defaults.statistics,
                counted(sections, "section")
            ),
            table.to_string(),
        ];
        lines.extend(prepared.warnings.iter().map(|warning| format!("warning: {warning}")));
        lines.join("\n")
    })
}
