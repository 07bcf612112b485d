//! `weightloom train`: a run as its file says.

mod judge;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{Args, ValueHint};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use weightloom::gang::Gang;
use weightloom::launch::Launch;
use weightloom::train::callback::{Callback, Control, Evaluation, Remark, View};
use weightloom::train::config::{Config, dump, read_file, reference, schema};
use weightloom::train::metrics::Record;
use weightloom::train::spec::Specs;
use weightloom::train::{End, Outcome, TrainError, TrainRequest, rehearse, train};

use super::RankArgs;
use super::dry_run;
use super::failure::Failure;
use super::hub::{Downloads, HubArgs};
use super::output::{Output, bytes, counted};
use super::progress::Progress;
use judge::Judge;

#[derive(Args)]
pub(super) struct TrainArgs {
    /// The run's file.
    #[arg(value_hint = ValueHint::FilePath, required_unless_present_any = ["schema", "reference"])]
    file: Option<PathBuf>,

    /// Changes to it, such as train.optimizer.lr=1e-4.
    #[arg(value_name = "KEY=VALUE", value_hint = ValueHint::Other)]
    overrides: Vec<String>,

    /// Say what the run would do on so many ranks, without data or weights, and stop: memory, communication,
    /// pipeline, checkpoint.
    #[arg(long)]
    dry_run: bool,

    /// Print the file as it is meant, with all defaults, and stop.
    #[arg(long)]
    dump_config: bool,

    /// Print the JSON schema of such files, and stop.
    #[arg(long)]
    schema: bool,

    /// Print all keys with their meanings as Markdown, and stop.
    #[arg(long)]
    reference: bool,

    #[command(flatten)]
    ranks: RankArgs,

    #[command(flatten)]
    hub: HubArgs,
}

impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Self {
        if error.is_consequence() {
            return Self::operational_with_hint(&error).of_others();
        }
        match error {
            TrainError::Hub(error) => Self::from(error),
            TrainError::Checkpoint(error) => Self::from(error),
            TrainError::NotFinite { .. } => Self::check_with_hint(&error),
            TrainError::Gang(_) | TrainError::Folder { .. } | TrainError::Metrics(_) => {
                Self::operational_with_hint(&error)
            }
            other => Self::user(&other),
        }
    }
}

pub(super) fn run(args: &TrainArgs, output: Output) -> Result<ExitCode, Failure> {
    if args.schema {
        return output.show(&schema(), |schema| serde_json::to_string_pretty(schema).unwrap_or_default());
    }
    if args.reference {
        return output.show(&reference(), |page| page.trim_end().to_owned());
    }
    let config = read_config(args)?;
    if args.dump_config {
        return output.show(&config, |config| dump(config).trim_end().to_owned());
    }
    if args.dry_run {
        let world = args.ranks.ranks.unwrap_or(1);
        let plan = rehearse(&config, &args.hub.hub()?, &Specs::new(), world)?;
        return output.show(&plan, dry_run::render);
    }
    // What is wrong with its suite is told once, not by every rank.
    Judge::of(&config, &args.hub, output)?;
    let stop = stop_signal()?;
    let launch = Launch::detect(args.ranks.ranks, 1)?;
    let outcome = launch.run(
        args.ranks.options(),
        |gang| run_rank(args, &config, &stop, gang, output),
        |failure| output.failure(failure),
    )?;
    let Some(outcome) = outcome else { return Ok(ExitCode::SUCCESS) };
    let ended = Ended::new(&config, &outcome);
    let text = |ended: &Ended| text(ended, &args.hub.model_options());
    match output {
        Output::Text => output.show(&ended, text),
        // One line, as the records before it.
        Output::Json => {
            output.line(&ended, text).map_err(|error| Failure::operational(&error))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn read_config(args: &TrainArgs) -> Result<Config, Failure> {
    let file = args.file.as_deref().unwrap_or(Path::new(""));
    let variable = |name: &str| std::env::var(name).ok();
    read_file(file, &args.overrides, &variable).map_err(|error| Failure::user(&TrainError::from(error)))
}

/// Set when the user or the system wants the run to end. A second signal ends
/// the program at once.
pub(super) fn stop_signal() -> Result<Arc<AtomicBool>, Failure> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::flag;

    const BY_SIGNAL: i32 = 130;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let asked = flag::register_conditional_shutdown(signal, BY_SIGNAL, Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)));
        asked.map_err(|error| Failure::operational(&error).about("cannot watch for signals"))?;
    }
    Ok(stop)
}

fn run_rank(
    args: &TrainArgs,
    config: &Config,
    stop: &Arc<AtomicBool>,
    gang: Arc<dyn Gang>,
    output: Output,
) -> Result<Outcome, Failure> {
    let hub = args.hub.hub()?;
    let first = gang.rank() == 0;
    // One rank speaks for all.
    let quiet = if first { output } else { Output::Json };
    let downloads = Downloads::new(quiet);
    let progress = Progress::new(quiet);
    let mut callbacks: Vec<Box<dyn Callback>> = Vec::new();
    if first {
        callbacks.push(Box::new(Teller::new(output)));
        if let Some(judge) = Judge::of(config, &args.hub, output)? {
            callbacks.push(Box::new(judge));
        }
    }
    Ok(train(TrainRequest {
        config,
        hub: &hub,
        specs: &Specs::new(),
        gang,
        stop: Arc::clone(stop),
        callbacks,
        fetching: &downloads,
        reading: &progress,
    })?)
}

/// Tells a run's user how it goes.
struct Teller {
    output: Output,
    bar: ProgressBar,
}

impl Teller {
    fn new(output: Output) -> Self {
        Self { output, bar: ProgressBar::hidden() }
    }

    /// A line that stays, above the bar.
    fn say(&self, line: &str) {
        if self.output == Output::Text {
            self.bar.suspend(|| {
                // Whoever has seen enough is no reason to end a run.
                let _ = self.output.line(&line, |line| (*line).to_owned());
            });
        }
    }
}

fn duration(seconds: f64) -> String {
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

fn line(record: &Record, view: &View<'_>) -> String {
    let width = view.total_steps.to_string().len();
    let mut parts = vec![format!("step {:>width$}/{}", record.step, view.total_steps)];
    let number =
        |name: &str, value: Option<f64>, digits: usize| value.map(|value| format!("{name} {value:.digits$}"));
    parts.extend(number("loss", record.loss, 4));
    parts.extend(record.learning_rate.map(|rate| format!("lr {rate:.2e}")));
    parts.extend(number("norm", record.gradient_norm, 3));
    parts.extend(record.tokens_per_second.map(rate));
    parts.extend(record.mfu.map(|share| format!("{:.1}% of peak", 100.0 * share)));
    parts.extend(record.memory.map(bytes));
    parts.extend(view.seconds_left.map(|left| format!("{} left", duration(left))));
    parts.join("  ")
}

impl Callback for Teller {
    fn init_end(&mut self, view: &View<'_>) -> Result<Control, TrainError> {
        let stage = view.engine.stages().first();
        let parameters = stage.map_or(0, |stage| stage.decoder.config().parameter_count());
        let what = match stage.is_some_and(|stage| stage.adapter.is_some()) {
            true => "an adapter of ",
            false => "",
        };
        self.say(&format!(
            "training {what}{} ({} parameters) for {} on {}, from step {}",
            view.config.model.name,
            millions(parameters),
            counted(view.total_steps as usize, "step"),
            counted(view.world, "rank"),
            view.step,
        ));
        if self.output == Output::Text {
            let target = ProgressDrawTarget::stderr_with_hz(8);
            self.bar = ProgressBar::with_draw_target(Some(view.total_steps), target);
            let style = ProgressStyle::with_template("[{bar:28}] {pos}/{len} {msg}");
            self.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("█▌ "));
            self.bar.set_position(view.step);
        }
        Ok(Control::Go)
    }

    fn step_begin(&mut self, view: &View<'_>) -> Result<Control, TrainError> {
        self.bar.set_position(view.step);
        Ok(Control::Go)
    }

    fn log(&mut self, view: &View<'_>, record: &Record) -> Result<Control, TrainError> {
        match self.output {
            Output::Json => {
                let _ = self.output.line(record, |_| String::new());
            }
            Output::Text => self.say(&line(record, view)),
        }
        if let Some(left) = view.seconds_left {
            self.bar.set_message(format!("{} left", duration(left)));
        }
        Ok(Control::Go)
    }

    fn evaluate(&mut self, view: &View<'_>, evaluation: &Evaluation) -> Result<Control, TrainError> {
        if let Some(loss) = evaluation.loss {
            self.say(&format!(
                "step {}: held-out loss {loss:.4}, perplexity {:.2}, over {}",
                view.step,
                loss.exp(),
                counted(evaluation.targets as usize, "token"),
            ));
        }
        for (prompt, text) in &evaluation.samples {
            self.say(&format!("  {prompt:?} → {text:?}"));
        }
        if self.output == Output::Json {
            let told = Measured { step: view.step, eval_loss: evaluation.loss, samples: &evaluation.samples };
            let _ = self.output.line(&told, |_| String::new());
        }
        Ok(Control::Go)
    }

    fn save(&mut self, _: &View<'_>, checkpoint: &Path) -> Result<Control, TrainError> {
        self.say(&format!("saved {}", checkpoint.display()));
        Ok(Control::Go)
    }

    fn load(&mut self, view: &View<'_>, checkpoint: &Path) -> Result<Control, TrainError> {
        self.say(&format!("going on from {}, behind step {}", checkpoint.display(), view.step));
        Ok(Control::Go)
    }

    fn train_end(&mut self, _: &View<'_>) -> Result<Control, TrainError> {
        self.bar.finish_and_clear();
        Ok(Control::Go)
    }

    fn remark(&mut self, remark: &Remark) -> Result<Control, TrainError> {
        self.say(&match remark {
            Remark::NoSamples => "note: a model that is cut into stages writes no samples".to_owned(),
            Remark::LeftOut { documents } => {
                format!(
                    "note: {} left out, since nothing in them counts",
                    counted(*documents as usize, "document")
                )
            }
            Remark::Truncated { documents } => format!(
                "note: {} cut off at the end; raise `data.max_seq_len` to keep all",
                counted(*documents as usize, "document")
            ),
        });
        Ok(Control::Go)
    }
}

pub(super) fn millions(count: u64) -> String {
    match count {
        0..1_000_000 => format!("{:.0}k", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}M", count as f64 / 1e6),
        _ => format!("{:.1}B", count as f64 / 1e9),
    }
}

#[derive(Serialize)]
struct Measured<'a> {
    step: u64,
    eval_loss: Option<f64>,
    samples: &'a [(String, String)],
}

/// How a run ended, as it is told.
#[derive(Serialize)]
struct Ended {
    end: &'static str,
    step: u64,
    steps_done: u64,
    tokens: u64,
    loss: Option<f64>,
    eval_loss: Option<f64>,
    checkpoint: Option<PathBuf>,
    save_stall_seconds: f64,
    output_dir: String,
    adapter: bool,
    weights: Option<String>,
}

impl Ended {
    fn new(config: &Config, outcome: &Outcome) -> Self {
        Self {
            end: match outcome.end {
                End::Finished => "finished",
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
            adapter: config.model.lora.is_some(),
            weights: config.model.weights_path.clone(),
        }
    }
}

fn text(ended: &Ended, options: &str) -> String {
    let mut lines = vec![format!(
        "{} at step {} after {} tokens{}",
        ended.end,
        ended.step,
        ended.tokens,
        ended.loss.map_or_else(String::new, |loss| format!(", loss {loss:.4}")),
    )];
    if ended.steps_done == 0 {
        lines[0] = format!("nothing to do: the run is at step {} already", ended.step);
    }
    if ended.end == "stopped" {
        lines.push("start it again to go on".to_owned());
    }
    if let Some(checkpoint) = &ended.checkpoint {
        let place = checkpoint.display();
        lines.push(match (ended.adapter, &ended.weights) {
            (true, Some(weights)) => {
                format!("try it: weightloom generate {weights} 'Hello' --adapter {place}{options}")
            }
            _ => format!("try it: weightloom generate {place} 'Hello'{options}"),
        });
    }
    lines.push(format!("metrics: {0}/metrics.jsonl, tensorboard --logdir {0}/tensorboard", ended.output_dir));
    lines.join("\n")
}
