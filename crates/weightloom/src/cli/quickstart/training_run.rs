//! Training runs of the tour, on thread ranks.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use weightloom::checkpoint::{Section, Source};
use weightloom::errors::Hint;
use weightloom::gang::GangOptions;
use weightloom::hub::Hub;
use weightloom::launch::Launch;
use weightloom::tensor::DeviceChoice;
use weightloom::train::callback::{Callback, CallbackResult, Control, TrainerState};
use weightloom::train::config::{Config, read_file};
use weightloom::train::engine::StepResult;
use weightloom::train::{End, TrainError, TrainRequest, train};

use crate::cli::failure::Failure;
use crate::cli::output::Output;

/// The result of a training run.
#[derive(Serialize)]
pub(super) struct TrainingRun {
    pub(super) file: PathBuf,
    pub(super) ranks: usize,
    /// Parallelism of the ranks.
    pub(super) mesh: String,
    /// Number of trained parameters.
    pub(super) parameters: u64,
    pub(super) steps: u64,
    pub(super) tokens: u64,
    pub(super) first_loss: f64,
    pub(super) last_loss: f64,
    pub(super) checkpoint: PathBuf,
    pub(super) metrics: PathBuf,
    pub(super) tokens_per_second: f64,
    pub(super) seconds: f64,
}

/// A training run that was interrupted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stopped at step {step} of {total}")]
struct Stopped {
    step: u64,
    total: u64,
    file: String,
    ranks: usize,
}

impl Hint for Stopped {
    fn hint(&self) -> Option<String> {
        Some(format!("resume with `weightloom train {} --ranks {}`", self.file, self.ranks))
    }
}

/// Shared settings of all training runs.
pub(super) struct RunContext<'a> {
    pub(super) hub: &'a Hub,
    pub(super) stop: &'a Arc<AtomicBool>,
    pub(super) device: DeviceChoice,
    pub(super) output: Output,
}

/// Trains from a config.
pub(super) fn run_config(
    file: &Path,
    ranks: usize,
    context: &RunContext<'_>,
) -> Result<TrainingRun, Failure> {
    let begun = Instant::now();
    let variable = |name: &str| std::env::var(name).ok();
    let mut config =
        read_file(file, &[], &variable).map_err(|error| Failure::from(TrainError::from(error)))?;
    config.train.device = context.device;
    let losses = Mutex::new(Losses::default());
    let work = |gang: Arc<dyn weightloom::gang::Gang>| {
        let mut callbacks: Vec<Box<dyn Callback + '_>> = Vec::new();
        if gang.rank() == 0 {
            callbacks.push(Box::new(LossWatcher { losses: &losses, bar: bar(&config, context.output) }));
        }
        train(TrainRequest {
            stop: Arc::clone(context.stop),
            callbacks,
            ..TrainRequest::new(&config, context.hub, gang)
        })
        .map_err(Failure::from)
    };
    let outcome = Launch::Threads { ranks }
        .run(GangOptions::default(), work, |failure| context.output.failure(failure))?
        .ok_or_else(|| Failure::check("no rank reported how the run ended".to_owned()))?;
    let Losses { first, last, seconds } = *losses.lock().unwrap_or_else(PoisonError::into_inner);
    let total = config.train.max_steps.unwrap_or(outcome.step);
    let (Some(first_loss), Some(last_loss), Some(checkpoint), End::Finished) =
        (first, last, outcome.checkpoint, outcome.end)
    else {
        let file = file.display().to_string();
        return Err(Failure::operational_with_hint(&Stopped { step: outcome.step, total, file, ranks }));
    };
    Ok(TrainingRun {
        file: file.to_owned(),
        ranks,
        mesh: mesh(&config, ranks),
        parameters: parameters(&checkpoint)?,
        steps: outcome.step,
        tokens: outcome.tokens,
        first_loss,
        last_loss,
        checkpoint,
        metrics: PathBuf::from(&config.train.checkpoint.output_dir).join("metrics.jsonl"),
        tokens_per_second: outcome.tokens as f64 / seconds.max(1e-9),
        seconds: begun.elapsed().as_secs_f64(),
    })
}

/// Parallelism of a config on so many ranks.
fn mesh(config: &Config, ranks: usize) -> String {
    let tp = config.train.accelerator.tp.max(1);
    match (ranks / tp, tp) {
        (data, 1) => format!("dp_shard={data}"),
        (data, tp) => format!("dp_shard={data} × tp={tp}"),
    }
}

/// Number of model parameters in a checkpoint, without optimizer state.
fn parameters(checkpoint: &Path) -> Result<u64, Failure> {
    let source = Source::open(checkpoint)?;
    let section =
        |name: &str| source.manifest.as_ref().and_then(|all| all.tensors.get(name)).map(|one| one.section);
    let tensors = source.index.tensors().iter().filter(|(name, _)| section(name) == Some(Section::Model));
    Ok(tensors.map(|(_, entry)| entry.shape.volume() as u64).sum())
}

fn bar(config: &Config, output: Output) -> ProgressBar {
    if output.is_quiet() {
        return ProgressBar::hidden();
    }
    let target = ProgressDrawTarget::stderr_with_hz(8);
    let bar = ProgressBar::with_draw_target(config.train.max_steps, target);
    let style = ProgressStyle::with_template("[{bar:28}] {pos}/{len} {msg}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("█▌ "))
}

/// First and last loss of a run.
#[derive(Clone, Copy, Default)]
struct Losses {
    first: Option<f64>,
    last: Option<f64>,
    /// Time spent in steps, without set-up and saving.
    seconds: f64,
}

/// Records losses and shows progress, on the first rank.
struct LossWatcher<'a> {
    losses: &'a Mutex<Losses>,
    bar: ProgressBar,
}

impl Callback for LossWatcher<'_> {
    fn on_step_end(&mut self, state: &TrainerState<'_>, result: &StepResult) -> CallbackResult {
        let mut losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        losses.first.get_or_insert(result.loss);
        losses.last = Some(result.loss);
        losses.seconds = self.bar.elapsed().as_secs_f64();
        self.bar.set_position(state.step);
        self.bar.set_message(format!("loss {:.3}", result.loss));
        Ok(Control::Continue)
    }

    fn on_train_begin(&mut self, _: &TrainerState<'_>) -> CallbackResult {
        self.bar.reset_elapsed();
        Ok(Control::Continue)
    }

    fn on_train_end(&mut self, _: &TrainerState<'_>) -> CallbackResult {
        self.bar.finish_and_clear();
        Ok(Control::Continue)
    }
}
