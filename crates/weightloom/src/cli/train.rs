//! `weightloom train`: train a model from a YAML config.

mod stop_signal;
mod sway_evaluator;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{Args, ValueHint};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use weightloom::Registry;
use weightloom::gang::Gang;
use weightloom::hub::CheckpointMismatch;
use weightloom::launch::Launch;
use weightloom::sway::backend::build::Programs;
use weightloom::train::callback::{
    Callback, CallbackResult, Control, Evaluation, Evaluator, Notice, RunSummary, SetLoss, TimeEstimate,
    TrainerState,
};
use weightloom::train::config::{Config, ConfigReader, dump, reference_with, schema_with};
use weightloom::train::data::{DocumentsRead, PromptStyle};
use weightloom::train::dry_run::DeviceMemory;
use weightloom::train::engine::StepResult;
use weightloom::train::metrics::{Event, EventKind, MetricsError, Record, SinkKind};
use weightloom::train::{ConfigChanges, DryRunRequest, End, Outcome, TrainError, TrainRequest, train};

use super::RankArgs;
use super::byte_size::ByteSize;
use super::data::{read_lines, summary_lines};
use super::device::{self, DeviceOverride};
use super::dry_run;
use super::failure::Failure;
use super::hub::{Downloads, HubArgs};
use super::listener::Listener;
use super::output::{Format, Output, bytes, counted};
use super::progress::Progress;
use super::sway::BackendArgs;
pub(super) use stop_signal::stop_signal;
use sway_evaluator::SwayEvaluator;

/// The exit code of a run that a signal ended before its last step: `EX_TEMPFAIL` of
/// sysexits.h, "run the same command again".
const STOPPED: u8 = 75;

#[derive(Args)]
pub(super) struct TrainArgs {
    /// YAML config of the run.
    #[arg(value_hint = ValueHint::FilePath, required_unless_present_any = ["schema", "reference"])]
    file: Option<PathBuf>,

    /// Override config values, such as train.optimizer.lr=1e-4.
    #[arg(value_name = "KEY=VALUE", value_hint = ValueHint::Other)]
    overrides: Vec<String>,

    /// Print memory, communication, pipeline and checkpoint size for this number of ranks, without data or
    /// weights, and exit.
    #[arg(long)]
    dry_run: bool,

    /// Check --dry-run against a GPU with this much memory, such as 80GB, for each rank.
    #[arg(long, value_name = "SIZE", requires = "dry_run", value_hint = ValueHint::Other)]
    memory: Option<ByteSize>,

    /// Resume although the config computes something else than that of the checkpoint.
    #[arg(long)]
    force_resume: bool,

    /// Print the resolved config and exit.
    #[arg(long)]
    dump_config: bool,

    /// Print the JSON schema of the config and exit.
    #[arg(long)]
    schema: bool,

    /// Print the config reference as Markdown and exit.
    #[arg(long)]
    reference: bool,

    /// Start the programs that the suite of train.eval.sway names with `kind: custom`.
    #[arg(long)]
    allow_programs: bool,

    #[command(flatten)]
    device: DeviceOverride,

    #[command(flatten)]
    ranks: RankArgs,

    #[command(flatten)]
    hub: HubArgs,
}

impl TrainArgs {
    /// Options of the models that the suite of the run compares.
    fn backend(&self) -> BackendArgs {
        let programs = if self.allow_programs { Programs::Allow } else { Programs::Deny };
        BackendArgs::new(&self.hub, self.device, programs)
    }
}

impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Self {
        if error.is_consequence() {
            return Self::operational_with_hint(&error).of_others();
        }
        if error.is_of_device() {
            return Self::operational_with_hint(&error);
        }
        match error {
            TrainError::Hub(error) => Self::from(error),
            TrainError::Checkpoint(error) => Self::from(error),
            TrainError::NotFinite { .. } | TrainError::Spike { .. } => Self::check_with_hint(&error),
            TrainError::Metrics(MetricsError::Unavailable { .. }) => Self::user(&error),
            TrainError::Gang(_)
            | TrainError::File(_)
            | TrainError::CheckpointFolder { .. }
            | TrainError::NoSpace { .. }
            | TrainError::Metrics(_) => Self::operational_with_hint(&error),
            TrainError::DamagedCheckpoint { .. } | TrainError::NoIntactCheckpoint { .. } => {
                Self::check_with_hint(&error)
            }
            other => Self::user(&other),
        }
    }
}

impl TrainArgs {
    /// The memory that a rank of a dry run should fit into: the given one, or that of
    /// the device of the run.
    fn device_memory(&self, config: &Config, output: Output) -> Option<DeviceMemory> {
        if let Some(ByteSize(bytes)) = self.memory {
            return Some(DeviceMemory::of_bytes(bytes));
        }
        match DeviceMemory::of(config.train.device, self.ranks.ranks.unwrap_or(1)) {
            Ok(memory) => memory,
            Err(error) => {
                output.note(&format!("{error}; use `--memory` to check another device"));
                None
            }
        }
    }

    /// Whether the command trains, rather than printing something.
    pub(super) fn uses_ranks(&self) -> bool {
        !(self.schema || self.reference || self.dump_config || self.dry_run)
    }
}

pub(super) fn run(args: &TrainArgs, registry: &Registry, output: Output) -> Result<ExitCode, Failure> {
    if args.schema {
        return output.show(&schema_with(registry.training()), |schema| {
            serde_json::to_string_pretty(schema).unwrap_or_default()
        });
    }
    if args.reference {
        return output.show(&reference_with(registry.training()), |page| page.trim_end().to_owned());
    }
    let mut config = read_config(args, registry)?;
    if let Some(device) = args.device.device {
        config.train.device = device;
    }
    if args.dump_config {
        return output.show(&config, |config| dump(config).trim_end().to_owned());
    }
    if args.dry_run {
        SwayEvaluator::new(&config, &args.backend(), registry, output)?;
        let report = weightloom::train::dry_run(DryRunRequest {
            config: &config,
            hub: &args.hub.hub(registry)?,
            extensions: registry.training(),
            world: args.ranks.ranks.unwrap_or(1),
            memory: args.device_memory(&config, output),
        })?;
        dry_run::warn_if_too_large(&report, output);
        return output.show(&report, dry_run::render);
    }
    // Report errors in the suite once, not on every rank.
    SwayEvaluator::new(&config, &args.backend(), registry, output)?;
    device::resolve(config.train.device, 0, output)?;
    let stop = match output.listener() {
        // Signals are its caller's.
        Some(_) => Arc::default(),
        None => stop_signal()?,
    };
    let outcome = match output.listener().and_then(|listener| listener.gang()) {
        Some(gang) => Some(run_rank(args, registry, &config, &stop, gang, output)?),
        None => Launch::detect(args.ranks.ranks, 1)?.run(
            args.ranks.options(),
            |gang| run_rank(args, registry, &config, &stop, gang, output),
            |failure| output.failure(failure),
        )?,
    };
    let Some(outcome) = outcome else { return Ok(ExitCode::SUCCESS) };
    let summary = Summary::new(&config, &outcome, registry);
    let text = |summary: &Summary| text(summary, output.program, &args.hub.model_options());
    match output.format {
        Format::Text => output.show(&summary, text)?,
        // One line, like the records before it.
        Format::Json => output.last_line(&summary, text)?,
    };
    Ok(match outcome.end {
        End::Finished | End::EarlyStopped => ExitCode::SUCCESS,
        // Otherwise `train && deploy` would deploy half of a run.
        End::Stopped => ExitCode::from(STOPPED),
    })
}

fn read_config(args: &TrainArgs, registry: &Registry) -> Result<Config, Failure> {
    let file = args.file.as_deref().unwrap_or(Path::new(""));
    let variable = |name: &str| std::env::var(name).ok();
    let reader = ConfigReader::new(registry.training(), &variable);
    let read = ConfigReader { overrides: &args.overrides, ..reader }.read_file(file);
    read.map_err(|error| Failure::user(&TrainError::from(error)))
}

fn run_rank(
    args: &TrainArgs,
    registry: &Registry,
    config: &Config,
    stop: &Arc<AtomicBool>,
    gang: Arc<dyn Gang>,
    output: Output,
) -> Result<Outcome, Failure> {
    let hub = args.hub.hub(registry)?;
    let first = gang.rank() == 0;
    // Only the first rank reports.
    let quiet = if first { output } else { output.quiet() };
    let downloads = Downloads::new(quiet);
    let progress = Progress::new(quiet);
    let listener = output.listener();
    let mut callbacks: Vec<Box<dyn Callback>> = Vec::new();
    if let Some(listener) = &listener {
        callbacks.push(Box::new(Cancellation(Arc::clone(listener))));
    }
    let mut evaluators: Vec<Box<dyn Evaluator + '_>> = Vec::new();
    if first {
        callbacks.push(Box::new(Reporter::new(output)));
        callbacks.extend(listener.iter().flat_map(|listener| listener.callbacks()));
        if let Some(evaluator) = SwayEvaluator::new(config, &args.backend(), registry, output)? {
            evaluators.push(Box::new(evaluator));
        }
    }
    let config_changes = if args.force_resume { ConfigChanges::Accept } else { ConfigChanges::Refuse };
    Ok(train(TrainRequest {
        config_changes,
        stop: Arc::clone(stop),
        callbacks,
        evaluators,
        extensions: registry.training().clone(),
        fetching: &downloads,
        reading: &progress,
        ..TrainRequest::new(config, &hub, gang)
    })?)
}

/// Ends a run that the program that called the command cancels.
struct Cancellation(Arc<dyn Listener>);

impl Callback for Cancellation {
    fn on_step_end(&mut self, _: &TrainerState<'_>, _: &StepResult) -> CallbackResult {
        Ok(if self.0.is_cancelled() { Control::Stop } else { Control::Continue })
    }
}

/// Prints the progress of a run.
struct Reporter {
    output: Output,
    bar: ProgressBar,
}

impl Reporter {
    fn new(output: Output) -> Self {
        Self { output, bar: ProgressBar::hidden() }
    }

    /// Prints a line above the progress bar.
    fn print(&self, line: &str) {
        self.bar.suspend(|| self.output.status(line));
    }
}

pub(super) fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0).round() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds:02}s"),
        (hours, minutes, _) => format!("{hours}h{minutes:02}m"),
    }
}

pub(super) fn rate(tokens: f64) -> String {
    if tokens < 1e4 { format!("{tokens:.0} tok/s") } else { format!("{:.1}k tok/s", tokens / 1e3) }
}

fn log_line(record: &Record, state: &TrainerState<'_>) -> String {
    let width = state.total_steps.to_string().len();
    let mut parts = vec![format!("step {:>width$}/{}", record.step, state.total_steps)];
    let number =
        |name: &str, value: Option<f64>, digits: usize| value.map(|value| format!("{name} {value:.digits$}"));
    parts.extend(number("loss", record.loss, 4));
    parts.extend(number("accuracy", record.scalars.get("rewards/accuracies").copied(), 2));
    parts.extend(number("margin", record.scalars.get("rewards/margins").copied(), 3));
    parts.extend(record.learning_rate.map(|rate| format!("lr {rate:.2e}")));
    parts.extend(number("norm", record.gradient_norm, 3));
    parts.extend(record.tokens_per_second.map(rate));
    parts.extend(record.mfu.map(|share| format!("{:.1}% of peak", 100.0 * share)));
    parts.extend(record.memory.map(bytes));
    parts.extend(state.seconds_left.map(|left| format!("{} left", duration(left))));
    parts.join("  ")
}

impl Callback for Reporter {
    fn on_init_end(&mut self, state: &TrainerState<'_>) -> CallbackResult {
        let stage = state.engine.stages().first();
        let parameters = stage.map_or(0, |stage| stage.model.definition().parameter_count());
        let what = match stage.is_some_and(|stage| stage.adapter.is_some()) {
            true => "a LoRA adapter for ",
            false => "",
        };
        self.print(&format!(
            "training {what}{} ({} parameters) for {} on {}, from step {}",
            state.config.model.name,
            millions(parameters),
            counted(state.total_steps as usize, "step"),
            counted(state.world, "rank"),
            state.step,
        ));
        if !self.output.is_quiet() {
            let target = ProgressDrawTarget::stderr_with_hz(8);
            self.bar = ProgressBar::with_draw_target(Some(state.total_steps), target);
            let style = ProgressStyle::with_template("[{bar:28}] {pos}/{len} {msg}");
            self.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("█▌ "));
            self.bar.set_position(state.step);
        }
        Ok(Control::Continue)
    }

    fn on_step_begin(&mut self, state: &TrainerState<'_>) -> CallbackResult {
        self.bar.set_position(state.step);
        Ok(Control::Continue)
    }

    fn on_log(&mut self, state: &TrainerState<'_>, record: &Record) -> CallbackResult {
        match self.output.format {
            Format::Json => {
                let _ = self.output.line(record, |_| String::new());
            }
            Format::Text => self.print(&log_line(record, state)),
        }
        if let Some(left) = state.seconds_left {
            self.bar.set_message(format!("{} left", duration(left)));
        }
        Ok(Control::Continue)
    }

    fn on_evaluate(&mut self, state: &TrainerState<'_>, evaluation: &Evaluation) -> CallbackResult {
        if let Some(loss) = evaluation.loss {
            let perplexity = evaluation.has_perplexity().then(|| format!("perplexity {:.2}", loss.exp()));
            let metrics = evaluation.metrics.iter().map(|(name, value)| format!("{name} {value:.4}"));
            let tokens = format!("over {}", counted(evaluation.targets as usize, "token"));
            let more: Vec<String> = perplexity.into_iter().chain(metrics).chain([tokens]).collect();
            self.print(&format!("step {}: eval loss {loss:.4}, {}", state.step, more.join(", ")));
        }
        for (name, set) in &evaluation.sets {
            self.print(&format!("step {}: eval loss of {name} {:.4}", state.step, set.loss));
        }
        for (prompt, text) in &evaluation.samples {
            self.print(&format!("  {prompt:?} → {text:?}"));
        }
        if self.output.is_json() {
            let record = EvalRecord {
                step: state.step,
                eval_loss: evaluation.loss,
                metrics: &evaluation.metrics,
                sets: &evaluation.sets,
                samples: &evaluation.samples,
            };
            let _ = self.output.line(&record, |_| String::new());
        }
        Ok(Control::Continue)
    }

    fn on_reference_logprobs(&mut self, done: u64, total: u64) -> CallbackResult {
        // Every tenth, and the end.
        let tenths = |documents: u64| 10 * documents / total.max(1);
        if tenths(done) > tenths(done.saturating_sub(1)) || done == total {
            let documents = counted(total as usize, "document");
            self.print(&format!("log-probabilities of the initial model: {done} of {documents}"));
        }
        Ok(Control::Continue)
    }

    fn on_save(&mut self, _: &TrainerState<'_>, checkpoint: &Path) -> CallbackResult {
        self.print(&format!("saved {}", checkpoint.display()));
        Ok(Control::Continue)
    }

    fn on_resume(&mut self, state: &TrainerState<'_>, checkpoint: &Path) -> CallbackResult {
        self.print(&format!("resuming from {} at step {}", checkpoint.display(), state.step));
        Ok(Control::Continue)
    }

    fn on_train_end(&mut self, _: &TrainerState<'_>) -> CallbackResult {
        self.bar.finish_and_clear();
        Ok(Control::Continue)
    }

    fn on_summary(&mut self, summary: &RunSummary) -> CallbackResult {
        for line in run_summary(summary) {
            self.print(&line);
        }
        if self.output.is_json() {
            let event = Event { step: summary.first_step, what: EventKind::Start(Box::new(summary.clone())) };
            let _ = self.output.line(&event, |_| String::new());
        }
        Ok(Control::Continue)
    }

    fn on_estimate(&mut self, estimate: &TimeEstimate) -> CallbackResult {
        let TimeEstimate { measured_steps, steps_left, seconds_left } = *estimate;
        self.print(&format!(
            "estimated time: {} for {}, measured over the first {measured_steps}",
            duration(seconds_left),
            counted(steps_left as usize, "step")
        ));
        Ok(Control::Continue)
    }

    fn on_notice(&mut self, notice: &Notice) -> CallbackResult {
        self.print(&match notice {
            Notice::Warning(warning) => {
                self.bar.suspend(|| self.output.warning(&warning.to_string()));
                return Ok(Control::Continue);
            }
            Notice::ConfigChanged { changes } => {
                let list: Vec<String> = changes.iter().map(ToString::to_string).collect();
                format!("note: the config changed since the checkpoint: {}", list.join(", "))
            }
            Notice::NoRecordedConfig => {
                "note: the checkpoint does not record its config; changes are not noticed".to_owned()
            }
            Notice::DataRestarted { reason } => {
                format!("note: the data starts from the beginning: {reason}")
            }
        });
        Ok(Control::Continue)
    }
}

/// What a run is about to do, for people.
fn run_summary(summary: &RunSummary) -> Vec<String> {
    let mut lines = summary.data.as_ref().map_or_else(Vec::new, summary_lines);
    lines.extend(summary.dataset.iter().map(|name| format!("dataset: {name}")));
    lines.extend(summary.weights_mismatch.iter().flat_map(mismatch_lines));
    lines.extend(summary.eval.iter().flat_map(|eval| read_lines("evaluation data", eval)));
    let sets = summary.eval_sets.iter();
    lines.extend(sets.flat_map(|(name, eval)| read_lines(&format!("evaluation data {name}"), eval)));
    let share = 100.0 * summary.trainable_parameters as f64 / summary.parameters.max(1) as f64;
    lines.push(format!(
        "trainable parameters: {} of {} ({share:.2}%)",
        millions(summary.trainable_parameters),
        millions(summary.parameters)
    ));
    lines
}

/// What was done with tensors of the weights that did not match, for people.
fn mismatch_lines(mismatch: &CheckpointMismatch) -> impl Iterator<Item = String> {
    mismatch.outcomes().into_iter().map(|line| format!("weights: {line}"))
}

pub(super) fn millions(count: u64) -> String {
    match count {
        0..1_000_000 => format!("{:.0}k", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}M", count as f64 / 1e6),
        _ => format!("{:.1}B", count as f64 / 1e9),
    }
}

#[derive(Serialize)]
struct EvalRecord<'a> {
    step: u64,
    eval_loss: Option<f64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    metrics: &'a BTreeMap<String, f64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    sets: &'a BTreeMap<String, SetLoss>,
    samples: &'a [(String, String)],
}

/// The summary of a finished run.
#[derive(Serialize)]
struct Summary {
    end: &'static str,
    step: u64,
    steps_done: u64,
    tokens: u64,
    loss: Option<f64>,
    eval_loss: Option<f64>,
    checkpoint: Option<PathBuf>,
    save_stall_seconds: f64,
    output_dir: String,
    /// Where to find the metrics.
    metrics: Vec<String>,
    adapter: bool,
    weights: Option<String>,
    /// Whether prompts are user messages.
    chat: bool,
    /// Whether checkpoints have a tokenizer.
    #[serde(skip)]
    has_tokenizer: bool,
    /// The documents read.
    data: Option<DocumentsRead>,
    /// Tensors of the initial weights that were initialized or ignored.
    #[serde(skip_serializing_if = "Option::is_none")]
    weights_mismatch: Option<CheckpointMismatch>,
    /// What the run survived.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

impl Summary {
    fn new(config: &Config, outcome: &Outcome, registry: &Registry) -> Self {
        Self {
            end: match outcome.end {
                End::Finished => "finished",
                End::EarlyStopped => "stopped early",
                End::Stopped => "stopped",
            },
            step: outcome.step,
            steps_done: outcome.step - outcome.began,
            tokens: outcome.tokens,
            loss: outcome.loss,
            eval_loss: outcome.eval_loss,
            checkpoint: outcome.checkpoint.clone(),
            save_stall_seconds: outcome.stall,
            output_dir: config.train.checkpoint.output_dir.clone(),
            metrics: {
                let folder = &config.train.checkpoint.output_dir;
                let sinks = &registry.training().sinks;
                let view = |sink: &SinkKind| {
                    sinks.how_to_view(sink, folder).unwrap_or_else(|| sink.name().to_owned())
                };
                config.train.logging.report_to.iter().map(view).collect()
            },
            adapter: config.model.lora.is_some(),
            weights: config.model.weights_path.clone(),
            has_tokenizer: outcome.has_tokenizer,
            chat: outcome.prompt_style == PromptStyle::Chat,
            data: outcome.data.clone(),
            weights_mismatch: outcome.weights_mismatch.clone(),
            warnings: outcome.warnings.iter().map(ToString::to_string).collect(),
        }
    }
}

fn text(summary: &Summary, program: &str, options: &str) -> String {
    let mut lines = vec![format!(
        "{} at step {} after {} tokens{}",
        summary.end,
        summary.step,
        summary.tokens,
        summary.loss.map_or_else(String::new, |loss| format!(", loss {loss:.4}")),
    )];
    if summary.steps_done == 0 {
        lines[0] = format!("nothing to do: the run is already at step {}", summary.step);
    }
    if summary.end == "stopped" {
        lines.push("run the same command again to resume".to_owned());
    }
    if let Some(checkpoint) = summary.checkpoint.as_ref().filter(|_| !summary.has_tokenizer) {
        lines.push(format!("saved {}, without a tokenizer", checkpoint.display()));
    }
    if let Some(checkpoint) = summary.checkpoint.as_ref().filter(|_| summary.has_tokenizer) {
        let path = checkpoint.display();
        let options = format!("{}{options}", if summary.chat { " --chat" } else { "" });
        lines.push(match (summary.adapter, &summary.weights) {
            (true, Some(weights)) => {
                format!("try it: {program} generate {weights} 'Hello' --adapter {path}{options}")
            }
            _ => format!("try it: {program} generate {path} 'Hello'{options}"),
        });
    }
    if summary.steps_done > 0 {
        lines.extend(summary.data.iter().flat_map(|data| read_lines("data", data)));
    }
    lines.extend(summary.weights_mismatch.iter().flat_map(mismatch_lines));
    lines.extend(summary.warnings.iter().map(|warning| format!("warning: {warning}")));
    if !summary.metrics.is_empty() {
        lines.push(format!("metrics: {}", summary.metrics.join(", ")));
    }
    lines.join("\n")
}
