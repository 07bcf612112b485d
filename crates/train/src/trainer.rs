//! The loop: data in, steps, measurements, checkpoints.

mod adapter;
mod batch;
mod blueprint;
mod build;
mod evaluate;
mod lock;
mod rehearse;
mod saving;
mod total;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use weightloom_checkpoint::Observer;
use weightloom_gang::{Gang, GangExt};
use weightloom_hub::Hub;
use weightloom_hub::fetch::FetchObserver;
use weightloom_layout::ReduceOp;

use crate::callback::{Callback, Control, Judgement, View, each};
use crate::config::Config;
use crate::data::{Batch, Prefetched};
use crate::engine::{Engine, StepSettings};
use crate::error::TrainError;
use crate::keep::Progress;
use crate::metrics::{Meter, Record, Sink, open, peak_memory};
use crate::schedule::LearningRate;
use crate::spec::Specs;

use batch::micro_batches;
use build::{Built, build};
use evaluate::HeldOut;
use saving::Savings;

pub use rehearse::rehearse;

/// A run to be done.
pub struct TrainRequest<'a> {
    /// What, on what, how.
    pub config: &'a Config,
    /// Where models come from.
    pub hub: &'a Hub,
    /// Specs besides those of the hub.
    pub specs: &'a Specs,
    /// All ranks.
    pub gang: Arc<dyn Gang>,
    /// Set by somebody to end the run behind the step that is under way.
    pub stop: Arc<AtomicBool>,
    /// What others do on the way.
    pub callbacks: Vec<Box<dyn Callback + 'a>>,
    /// Told of downloads.
    pub fetching: &'a dyn FetchObserver,
    /// Told of bytes that are read.
    pub reading: &'a dyn Observer,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Why.
    pub end: End,
    /// Steps that were done, with those of earlier processes.
    pub step: u64,
    /// The step that this process began behind.
    pub began: u64,
    /// Tokens that were read.
    pub tokens: u64,
    /// The last loss.
    pub loss: Option<f64>,
    /// The last held-out loss.
    pub eval_loss: Option<f64>,
    /// The last checkpoint.
    pub checkpoint: Option<PathBuf>,
    /// How long saves held the run up, in all.
    pub stall: f64,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All steps were done.
    Finished,
    /// It was told to stop, and can go on.
    Stopped,
}

/// Does a run, or what is left of it. Every rank.
pub fn train(request: TrainRequest<'_>) -> Result<Outcome, TrainError> {
    let TrainRequest { config, hub, specs, gang, stop, mut callbacks, fetching, reading } = request;
    let folder = PathBuf::from(&config.train.checkpoint.output_dir);
    let mut savings = Savings::new(config, &gang)?;
    let resumed = savings.resumed()?;
    if config.train.eval.sway.is_some()
        && gang.rank() == 0
        && !callbacks.iter().any(|callback| callback.judges())
    {
        return Err(TrainError::NoSway);
    }
    let mut built = build(config, hub, specs, &gang, resumed.as_deref(), fetching, reading)?;
    let total = total::steps(config, &mut built, &gang, &mut callbacks)?;
    let Built { mut engine, mut loader, sizes, spec, tokenizer, assets, family, remarks, .. } = built;
    for remark in &remarks {
        each(&mut callbacks, |callback| callback.remark(remark))?;
    }
    let progress = match &resumed {
        None => Progress { optimizer: engine.optimizer.name().to_owned(), ..Progress::default() },
        Some(path) => {
            let source = weightloom_checkpoint::Source::open(path)?;
            let progress = engine.resume(&source, reading)?;
            let state = serde_json::from_value(progress.data.clone()).map_err(|error| {
                TrainError::Progress { location: path.display().to_string(), message: error.to_string() }
            })?;
            loader.restore(&state)?;
            progress
        }
    };
    let held_out = HeldOut::new(config, &loader, &sizes, &*gang)?;
    let rates = LearningRate::new(config.train.optimizer.lr, &config.train.schedule, total)?;
    let own = gang_rows(&engine, sizes.rows_per_rank);
    let first_epoch = loader.state().position.epoch;
    let data = loader.prefetched(config.train.global_batch_size, vec![own])?;
    let (sinks, _held) = match gang.rank() {
        0 => {
            make_folder(&folder)?;
            let held = lock::hold(&folder)?;
            savings.check_unchanged()?;
            write_config(&folder, config)?;
            (open(&config.train.logging, &folder, progress.step)?, Some(held))
        }
        _ => (Vec::new(), None),
    };
    savings.describe(family, assets);
    let began = progress.step;
    let flops = flops_per_token(&engine, config);
    let peak = config.train.logging.peak_tflops.map(|peak| peak * 1e12 * gang.size() as f64);
    let mut run = Run {
        config,
        gang,
        stop,
        engine,
        data,
        sinks,
        savings,
        held_out,
        rates,
        micro_rows: sizes.micro_batch_size,
        total,
        epoch: first_epoch,
        meter: Meter::new(Some(flops), peak),
        tokenizer,
        clip: Box::new(move |norm, most| spec.clip_factor(norm, most)),
        progress,
        loss: None,
        eval_loss: None,
        wants_stop: false,
        stall: 0.0,
    };
    let end = run.run(&mut callbacks, resumed.as_deref())?;
    let Run { progress, savings, loss, eval_loss, stall, .. } = run;
    Ok(Outcome {
        end,
        step: progress.step,
        began,
        tokens: progress.tokens,
        loss,
        eval_loss,
        checkpoint: savings.last(),
        stall,
    })
}

/// The rows of the whole batch that this rank computes.
fn gang_rows(engine: &Engine, rows: usize) -> std::ops::Range<usize> {
    let dp = engine.gangs.dp.rank();
    dp * rows..(dp + 1) * rows
}

fn unwritable(folder: &Path) -> impl Fn(std::io::Error) -> TrainError {
    let path = folder.display().to_string();
    move |error| TrainError::Folder { path: path.clone(), message: error.to_string() }
}

fn make_folder(folder: &Path) -> Result<(), TrainError> {
    std::fs::create_dir_all(folder).map_err(unwritable(folder))
}

/// The run's file as it is meant, with everything that was left to defaults.
fn write_config(folder: &Path, config: &Config) -> Result<(), TrainError> {
    std::fs::write(folder.join("config.yaml"), crate::config::dump(config)).map_err(unwritable(folder))
}

/// Arithmetic of the model for one token: forward, and backward with respect to
/// activations and to what is trained.
fn flops_per_token(engine: &Engine, config: &Config) -> f64 {
    let Some(stage) = engine.stages().first() else { return 0.0 };
    let decoder = stage.decoder.config();
    let weights = decoder.active_parameters() as f64;
    let attention = 2.0
        * decoder.layers as f64
        * (decoder.attention.heads * decoder.attention.width) as f64
        * config.data.max_seq_len as f64;
    let passes = if stage.adapter.is_some() { 2.0 } else { 3.0 };
    passes * (2.0 * weights + attention)
}

/// A run that is under way.
struct Run<'a> {
    config: &'a Config,
    gang: Arc<dyn Gang>,
    stop: Arc<AtomicBool>,
    engine: Engine,
    data: Prefetched,
    sinks: Vec<Box<dyn Sink>>,
    savings: Savings,
    held_out: HeldOut,
    rates: LearningRate,
    micro_rows: usize,
    total: u64,
    epoch: u64,
    meter: Meter,
    tokenizer: Option<Arc<weightloom_hub::text::Tokenizer>>,
    clip: Box<dyn Fn(f64, f64) -> f64>,
    progress: Progress,
    loss: Option<f64>,
    eval_loss: Option<f64>,
    /// A callback of this rank wants an end.
    wants_stop: bool,
    stall: f64,
}

type Callbacks<'a, 'b> = &'a mut Vec<Box<dyn Callback + 'b>>;

impl<'a> Run<'a> {
    fn view(&self) -> View<'_> {
        View {
            config: self.config,
            engine: &self.engine,
            rank: self.gang.rank(),
            world: self.gang.size(),
            step: self.progress.step,
            total_steps: self.total,
            epoch: self.epoch,
            seconds_left: self.meter.seconds_left(self.total.saturating_sub(self.progress.step)),
        }
    }

    fn tell(
        &mut self,
        callbacks: Callbacks<'_, '_>,
        mut call: impl FnMut(&mut dyn Callback, &View<'_>) -> Result<Control, TrainError>,
    ) -> Result<(), TrainError> {
        let control = {
            let view = self.view();
            each(callbacks, |callback| call(callback, &view))?
        };
        self.wants_stop |= control == Control::Stop;
        Ok(())
    }

    fn run(&mut self, callbacks: Callbacks<'_, '_>, resumed: Option<&Path>) -> Result<End, TrainError> {
        self.tell(callbacks, |callback, view| callback.init_end(view))?;
        if let Some(path) = resumed {
            self.tell(callbacks, |callback, view| callback.load(view, path))?;
        }
        self.tell(callbacks, |callback, view| callback.train_begin(view))?;
        self.tell(callbacks, |callback, view| callback.epoch_begin(view))?;
        let mut end = End::Finished;
        while self.progress.step < self.total {
            self.tell(callbacks, |callback, view| callback.step_begin(view))?;
            let Some(batch) = self.data.next_batch()? else { break };
            self.step(callbacks, &batch)?;
            let last = self.progress.step == self.total;
            // Everybody stops behind the same step.
            let stopping = self.agreed_stop()? && !last;
            self.measure(callbacks, if last { Due::Now } else { Due::Perhaps })?;
            self.save(callbacks, if last || stopping { Due::Now } else { Due::Perhaps })?;
            if stopping {
                end = End::Stopped;
                break;
            }
        }
        if self.savings.is_behind(self.progress.step) && self.progress.step > 0 {
            // The data ended before the last step was there.
            self.measure(callbacks, Due::Now)?;
            self.save(callbacks, Due::Now)?;
        }
        self.finish_save(callbacks)?;
        self.tell(callbacks, |callback, view| callback.train_end(view))?;
        Ok(end)
    }

    fn step(&mut self, callbacks: Callbacks<'_, '_>, batch: &Batch) -> Result<(), TrainError> {
        let begin = Instant::now();
        let number = self.progress.step + 1;
        let micros = micro_batches(&batch.rows, self.micro_rows, &self.engine)?;
        let learning_rate = self.rates.at(number);
        let limit = self.config.train.optimizer.max_grad_norm;
        let mut failure = None;
        let stepped = {
            let Self { engine, clip, wants_stop, .. } = self;
            let cell = std::cell::RefCell::new((&mut *callbacks, &mut failure, wants_stop));
            let answered = |answer: Result<Control, TrainError>| {
                let mut cell = cell.borrow_mut();
                match answer {
                    Ok(Control::Go) => {}
                    Ok(Control::Stop) => *cell.2 = true,
                    Err(error) => *cell.1 = Some(error),
                }
            };
            let substep = |done: usize, of: usize| {
                let answer = each(cell.borrow_mut().0, |callback| callback.substep_end(done, of));
                answered(answer);
            };
            let clip = |norm: f64| {
                let answer = each(cell.borrow_mut().0, |callback| callback.before_optimizer_step(norm));
                answered(answer);
                clip(norm, limit)
            };
            let settings = StepSettings { number, learning_rate, clip: &clip, substep: &substep };
            engine.step(&settings, &micros)?
        };
        if let Some(error) = failure {
            return Err(error);
        }
        if !stepped.loss.is_finite() || !stepped.gradient_norm.is_finite() {
            return Err(self.engine.not_finite(number, &micros, &stepped)?);
        }
        self.loss = Some(stepped.loss);
        self.progress.step = number;
        let position = self.data.state().position;
        let tokens = position.tokens - self.progress.tokens.min(position.tokens);
        self.progress.tokens = position.tokens;
        self.progress.targets += stepped.targets;
        let reading = self.meter.step(tokens, begin.elapsed().as_secs_f64());
        self.tell(callbacks, |callback, view| callback.step_end(view, &stepped))?;
        let every = self.config.train.logging.logging_steps.max(1);
        if number.is_multiple_of(every) || number == self.total || number == 1 {
            let record = Record {
                epoch: Some(position.epoch as f64),
                loss: Some(stepped.loss),
                learning_rate: Some(learning_rate),
                gradient_norm: Some(stepped.gradient_norm),
                tokens: Some(self.progress.tokens),
                tokens_per_second: Some(reading.tokens_per_second),
                mfu: reading.mfu,
                memory: peak_memory().process,
                seconds: Some(begin.elapsed().as_secs_f64()),
                ..Record::new(number)
            };
            self.sinks.record(&record)?;
            self.tell(callbacks, |callback, view| callback.log(view, &record))?;
        }
        if position.epoch != self.epoch {
            self.tell(callbacks, |callback, view| callback.epoch_end(view))?;
            self.epoch = position.epoch;
            self.tell(callbacks, |callback, view| callback.epoch_begin(view))?;
        }
        Ok(())
    }

    /// Whether any rank was told to stop.
    fn agreed_stop(&self) -> Result<bool, TrainError> {
        let mut votes = [u64::from(self.wants_stop || self.stop.load(Ordering::Relaxed))];
        self.gang.all_reduce(&mut votes, ReduceOp::Sum)?;
        Ok(votes[0] > 0)
    }

    /// Measures the model, if that is due.
    fn measure(&mut self, callbacks: Callbacks<'_, '_>, due: Due) -> Result<(), TrainError> {
        let (step, every) = (self.progress.step, self.config.train.eval.eval_steps);
        if due == Due::Perhaps && (every == 0 || !step.is_multiple_of(every)) {
            return Ok(());
        }
        if self.held_out.measured == Some(step) {
            return Ok(());
        }
        self.held_out.measured = Some(step);
        let tokenizer = self.tokenizer.as_deref();
        let evaluation = self.held_out.evaluate(&self.engine, self.config, tokenizer)?;
        if evaluation.loss.is_none() && evaluation.samples.is_empty() {
            return Ok(());
        }
        if let Some(loss) = evaluation.loss {
            self.eval_loss = Some(loss);
            self.savings.score(step, loss);
            self.progress.best = Some(self.progress.best.map_or(loss, |best| best.min(loss)));
        }
        let mut record = Record::new(step);
        if let Some(loss) = evaluation.loss {
            record.scalars.insert("eval/loss".to_owned(), loss);
            record.scalars.insert("eval/perplexity".to_owned(), loss.exp());
        }
        for (number, (prompt, text)) in evaluation.samples.iter().enumerate() {
            record.texts.insert(format!("sample/{number}"), format!("{prompt}{text}"));
        }
        self.sinks.record(&record)?;
        self.tell(callbacks, |callback, view| callback.evaluate(view, &evaluation))
    }

    /// Saves a checkpoint, if that is due.
    fn save(&mut self, callbacks: Callbacks<'_, '_>, due: Due) -> Result<(), TrainError> {
        if self.savings.finished()? {
            self.tell_saved(callbacks)?;
        }
        let (step, every) = (self.progress.step, self.config.train.checkpoint.save_steps);
        if due == Due::Perhaps && (every == 0 || !step.is_multiple_of(every)) {
            return Ok(());
        }
        if !self.savings.is_behind(step) {
            return Ok(());
        }
        if self.savings.wait()? {
            self.tell_saved(callbacks)?;
        }
        let state = self.data.state();
        self.progress.data = serde_json::to_value(&state).map_err(|error| TrainError::Progress {
            location: "the run".to_owned(),
            message: error.to_string(),
        })?;
        self.stall += self.savings.save(&self.engine, &self.progress)?.as_secs_f64();
        // What was waited for is there already.
        if self.savings.finished()? {
            self.tell_saved(callbacks)?;
        }
        Ok(())
    }

    fn finish_save(&mut self, callbacks: Callbacks<'_, '_>) -> Result<(), TrainError> {
        if self.savings.wait()? {
            self.tell_saved(callbacks)?;
        }
        Ok(())
    }

    fn tell_saved(&mut self, callbacks: Callbacks<'_, '_>) -> Result<(), TrainError> {
        let Some(path) = self.savings.last() else { return Ok(()) };
        self.tell(callbacks, |callback, view| callback.save(view, &path))?;
        self.judge(callbacks, &path)
    }

    /// Lets a checkpoint be judged, if there is a suite.
    fn judge(&mut self, callbacks: Callbacks<'_, '_>, checkpoint: &Path) -> Result<(), TrainError> {
        if self.config.train.eval.sway.is_none() {
            return Ok(());
        }
        for callback in callbacks.iter_mut() {
            if let Some(Judgement { scalars, texts }) = callback.judge(&self.view(), checkpoint)? {
                self.sinks.record(&Record { scalars, texts, ..Record::new(self.progress.step) })?;
            }
        }
        Ok(())
    }
}

/// Whether something is done now or only at its step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Now,
    Perhaps,
}
