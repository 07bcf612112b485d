//! `weightloom sway watch`: judges the checkpoints of a run as they are saved.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, ValueHint};
use serde::Serialize;
use weightloom::Registry;
use weightloom::checkpoint::SavedCheckpoint;
use weightloom::sway::runner::{CancelFlag, RunError};
use weightloom::sway::suite::{SuiteOverrides, SuiteReader};
use weightloom::sway::watch::RunWatch;
use weightloom::sway::{Decision, JudgeError, JudgeOptions, Report, judge};
use weightloom::train::is_running;

use super::super::failure::Failure;
use super::super::hub::ArgumentError;
use super::super::output::Output;
use super::super::train::stop_signal;
use super::backend::{BackendArgs, build};
use super::diff::side;
use super::judge_args::read_suite;
use super::progress::SuiteProgress;
use super::session::{CacheUse, failure, prepare};

/// How soon a signal ends the wait for the next checkpoint.
const POLL: Duration = Duration::from_millis(100);

#[derive(Args)]
pub(in crate::cli) struct WatchArgs {
    /// Folder of the run, its `train.checkpoint.output_dir`.
    #[arg(value_hint = ValueHint::DirPath)]
    run: PathBuf,

    /// Suite file. Its fine-tuned model is replaced by each checkpoint.
    #[arg(long, value_name = "FILE", default_value = "sway.yaml", value_hint = ValueHint::FilePath)]
    suite: PathBuf,

    /// Seconds between two looks at the folder.
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_hint = ValueHint::Other)]
    interval: f64,

    #[command(flatten)]
    backend: BackendArgs,
}

/// The line of a checkpoint.
#[derive(Serialize)]
#[serde(untagged)]
enum CheckpointLine {
    Judged {
        step: u64,
        checkpoint: PathBuf,
        headline: String,
        changed: Decision,
        learned: Decision,
        memorized: Decision,
        lost: Decision,
        score: f64,
        report: PathBuf,
        page: PathBuf,
    },
    Failed {
        step: u64,
        checkpoint: PathBuf,
        error: String,
    },
}

impl CheckpointLine {
    fn text(&self) -> String {
        match self {
            Self::Judged { step, headline, learned, lost, page, .. } => {
                format!("step {step}  {headline}  (learned: {learned}, lost: {lost})  {}", page.display())
            }
            Self::Failed { step, error, .. } => format!("step {step}  cannot judge: {error}"),
        }
    }
}

/// Why no line was printed for a checkpoint.
enum Unjudged {
    Stopped,
    Failed(Failure),
}

impl From<Failure> for Unjudged {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

pub(super) fn run(args: &WatchArgs, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    let interval = Duration::try_from_secs_f64(args.interval).map_err(|_| {
        let fact = format!("--interval {} is not a duration", args.interval);
        Failure::user(&ArgumentError { fact, fix: Some("give seconds, such as 5".to_owned()) })
    })?;
    let mut watch = RunWatch::new(&args.run).map_err(|error| Failure::user(&error))?;
    // Report errors in the suite now, not after the first checkpoint. The run may
    // have none yet, so models are not looked for.
    let variable = |name: &str| std::env::var(name).ok();
    let suite = SuiteReader::new(registry.judging(), &variable).read_file(&args.suite);
    prepare(suite.map_err(|error| Failure::user(&error))?, None)?;
    let stop = stop_signal()?;
    let mut exit = ExitCode::SUCCESS;
    loop {
        // Ask first: what the run saves before it ends is then seen below.
        let running = is_running(watch.run());
        while !stop.load(Ordering::Relaxed)
            && let Some(saved) = watch.next_checkpoint()?
        {
            let line = match judged((args, registry), &watch, &saved, &stop, output) {
                Ok(line) => line,
                Err(Unjudged::Stopped) => break,
                // The run deletes old checkpoints.
                Err(Unjudged::Failed(_)) if !saved.path.is_dir() => {
                    output.status(&format!("step {} was deleted before it was judged", saved.step));
                    continue;
                }
                Err(Unjudged::Failed(failure)) => {
                    exit = ExitCode::from(1);
                    let error = failure.to_string().trim_start_matches("error: ").replace('\n', "; ");
                    CheckpointLine::Failed { step: saved.step, checkpoint: saved.path, error }
                }
            };
            if output.line(&line, CheckpointLine::text).is_err() {
                // Nobody reads on. An error other than that is reported at the end of the program.
                return Ok(exit);
            }
        }
        if stop.load(Ordering::Relaxed) || !running {
            return Ok(exit);
        }
        wait(interval, &stop);
    }
}

fn judged(
    (args, registry): (&WatchArgs, &Registry),
    watch: &RunWatch,
    saved: &SavedCheckpoint,
    stop: &Arc<AtomicBool>,
    output: Output,
) -> Result<CheckpointLine, Unjudged> {
    let report = report(args, registry, &saved.path, stop, output)?;
    if let Some(record) = report.probes.first().filter(|_| report.preflight_failed()) {
        return Err(Failure::check(record.message.clone()).into());
    }
    let written = watch.write_report(saved.step, &report);
    let [json, page] = written.map_err(|error| Failure::operational_with_hint(&error))?;
    Ok(line(saved, &report, json, page))
}

fn report(
    args: &WatchArgs,
    registry: &Registry,
    checkpoint: &Path,
    stop: &Arc<AtomicBool>,
    output: Output,
) -> Result<Report, Unjudged> {
    let hub = args.backend.hub(registry)?;
    let tuned = side(&hub, &checkpoint.display().to_string(), output.quiet())?;
    let overrides = SuiteOverrides { tuned: Some(tuned), ..SuiteOverrides::default() };
    let mut prepared = prepare(read_suite(&args.suite, overrides, (registry, &hub), output.quiet())?, None)?;
    let mut backend = build(&prepared.suite, &args.backend, registry, output)?;
    let options = JudgeOptions {
        cache: CacheUse::Cached.folder(&mut prepared),
        cancel: CancelFlag::from(Arc::clone(stop)),
        ..JudgeOptions::default()
    };
    let judged = judge(&prepared, &mut *backend, &options, &mut SuiteProgress::new(output));
    judged.map_err(|error| match error {
        JudgeError::Run(RunError::Cancelled) => Unjudged::Stopped,
        other => Unjudged::Failed(failure(other)),
    })
}

fn line(saved: &SavedCheckpoint, report: &Report, json: PathBuf, page: PathBuf) -> CheckpointLine {
    let verdict = &report.verdict;
    CheckpointLine::Judged {
        step: saved.step,
        checkpoint: saved.path.clone(),
        headline: verdict.label().to_owned(),
        changed: verdict.changed.decision,
        learned: verdict.learned.decision,
        memorized: verdict.memorized.decision,
        lost: verdict.damaged.decision,
        score: report.score.overall,
        report: json,
        page,
    }
}

/// Waits for an interval, or until a signal arrives.
fn wait(interval: Duration, stop: &AtomicBool) {
    let started = Instant::now();
    while !stop.load(Ordering::Relaxed)
        && let Some(left) = interval.checked_sub(started.elapsed())
    {
        thread::sleep(left.min(POLL));
    }
}
