//! The loop of a run in progress.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use weightloom_gang::{Gang, GangExt};
use weightloom_hub::text::Tokenizer;
use weightloom_layout::ReduceOp;

use super::End;
use super::batch::micro_batches;
use super::checkpoint_manager::CheckpointManager;
use super::epochs::epochs_done;
use super::evaluate::HeldOut;
use super::reference::ReferenceLogprobs;
use crate::callback::{
    Callback, CallbackResult, Control, EvalMetrics, Evaluator, Notice, RunSummary, TimeEstimate,
    TrainerState, for_each,
};
use crate::checkpointing::Progress;
use crate::config::{Config, SpikeConfig};
use crate::data::{Batch, DataState, DataSummary, DocumentsRead, Position, Prefetched};
use crate::engine::{Engine, LayerNorms, NormsByLayer, StepHooks, StepResult, StepSettings, StepVerdict};
use crate::error::TrainError;
use crate::guard::{GuardState, Spike};
use crate::metrics::{BadStep, Event, EventKind, Meter, Record, Sinks, peak_memory};
use crate::schedule::LearningRate;
use crate::spec::SharedSpec;
use crate::warning::Warning;

/// Steps after which the remaining time is reported.
const ESTIMATED_FROM: u64 = 3;

/// Documents that a run reads before it judges how many are dropped: bad ones may
/// follow each other.
const JUDGED: u64 = 1000;

/// A run in progress on one rank.
pub(super) struct Run<'a> {
    pub(super) config: &'a Config,
    pub(super) gang: Arc<dyn Gang>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) callbacks: Vec<Box<dyn Callback + 'a>>,
    pub(super) evaluators: Vec<Box<dyn Evaluator + 'a>>,
    pub(super) engine: Engine,
    pub(super) data: Prefetched,
    pub(super) sinks: Sinks,
    pub(super) checkpoints: CheckpointManager,
    pub(super) held_out: HeldOut,
    /// Log-probabilities of the training documents under the initial weights.
    pub(super) reference: Option<ReferenceLogprobs>,
    pub(super) rates: LearningRate,
    pub(super) micro_batch_size: usize,
    /// The size before any step ran out of memory.
    pub(super) first_micro_batch_size: usize,
    pub(super) total: u64,
    pub(super) epoch: u64,
    pub(super) meter: Meter,
    pub(super) tokenizer: Option<Arc<Tokenizer>>,
    pub(super) spec: SharedSpec,
    pub(super) progress: Progress,
    pub(super) summary: RunSummary,
    pub(super) loss: Option<f64>,
    pub(super) eval_loss: Option<f64>,
    /// Whether a callback of this rank asked to stop.
    pub(super) wants_stop: bool,
    /// The checkpoint that this process started from.
    pub(super) resumed: Option<PathBuf>,
    /// Rows of this rank in a step.
    pub(super) rows_per_rank: usize,
    /// The position in the data before the current batch.
    pub(super) before: Position,
    /// Returns to the last checkpoint.
    pub(super) returns: u64,
    pub(super) last_save: Instant,
    pub(super) stall: f64,
    /// What the run survived so far.
    pub(super) warnings: Vec<Warning>,
}

/// Passes the events of a step on to the callbacks, and clips as the spec says.
struct CallbackHooks<'h, 'a> {
    callbacks: &'h mut [Box<dyn Callback + 'a>],
    wants_stop: &'h mut bool,
    spec: &'h SharedSpec,
    max_grad_norm: f64,
    guard: &'h GuardState,
    on_spike: Option<&'h SpikeConfig>,
    spike: Option<Spike>,
    wants_layer_norms: bool,
    norms: Option<NormsByLayer>,
}

impl CallbackHooks<'_, '_> {
    fn notify(&mut self, call: impl FnMut(&mut dyn Callback) -> CallbackResult) -> Result<(), TrainError> {
        *self.wants_stop |= for_each(self.callbacks, call)? == Control::Stop;
        Ok(())
    }
}

impl StepHooks for CallbackHooks<'_, '_> {
    fn microbatch_end(&mut self, done: usize, total: usize) -> Result<(), TrainError> {
        self.notify(|callback| callback.on_substep_end(done, total))
    }

    fn judge(&mut self, result: &StepResult) -> StepVerdict {
        self.spike = self.on_spike.and_then(|config| self.guard.judge(result.loss, config));
        match self.spike {
            Some(_) => StepVerdict::Discard,
            None => StepVerdict::Update,
        }
    }

    fn wants_layer_norms(&self) -> bool {
        self.wants_layer_norms
    }

    fn layer_norms(&mut self, norms: NormsByLayer) {
        self.norms = Some(norms);
    }

    fn clip(&mut self, gradient_norm: f64) -> Result<f64, TrainError> {
        self.notify(|callback| callback.on_pre_optimizer_step(gradient_norm))?;
        Ok(self.spec.clip_factor(gradient_norm, self.max_grad_norm))
    }
}

/// How a stretch of a run ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Stretch {
    /// With the last step of this process.
    End(End),
    /// With a bad step, after which the run returns to the last checkpoint.
    RollBack(BadStep),
}

/// What became of a step.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum StepEnd {
    Updated,
    Skipped,
    RollBack(BadStep),
}

/// Whether an evaluation or a save happens now, or only at its interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Now,
    AtInterval,
}

/// The norms of layers as metrics.
fn layer_scalars(norms: &NormsByLayer) -> BTreeMap<String, f64> {
    let of_layer = |(layer, norms): (&String, &LayerNorms)| {
        [("weight", norms.weights), ("gradient", norms.gradients), ("update", norms.updates)]
            .map(|(what, norm)| (format!("{layer}/{what}_norm"), norm))
    };
    norms.iter().flat_map(of_layer).collect()
}

impl Due {
    fn is_due(self, step: u64, interval: u64) -> bool {
        self == Self::Now || (interval > 0 && step.is_multiple_of(interval))
    }
}

impl<'a> Run<'a> {
    fn state(&self) -> TrainerState<'_> {
        TrainerState {
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

    pub(super) fn notify(
        &mut self,
        mut call: impl FnMut(&mut dyn Callback, &TrainerState<'_>) -> CallbackResult,
    ) -> Result<(), TrainError> {
        let mut callbacks = std::mem::take(&mut self.callbacks);
        let state = self.state();
        let control = for_each(&mut callbacks, |callback| call(callback, &state));
        self.callbacks = callbacks;
        self.wants_stop |= control? == Control::Stop;
        Ok(())
    }

    /// Tells callbacks and sinks that the run begins.
    pub(super) fn begin(&mut self, warnings: Vec<Warning>) -> Result<(), TrainError> {
        self.notify(|callback, state| callback.on_init_end(state))?;
        if let Some(path) = &self.resumed.clone() {
            self.notify(|callback, state| callback.on_resume(state, path))?;
        }
        let summary = self.summary.clone();
        self.notify(|callback, _| callback.on_summary(&summary))?;
        self.record_event(EventKind::Start(Box::new(summary)))?;
        for warning in warnings {
            self.record_event(EventKind::Warning { message: warning.to_string() })?;
            self.warn(vec![warning])?;
        }
        self.notify(|callback, state| callback.on_train_begin(state))?;
        self.notify(|callback, state| callback.on_epoch_begin(state))
    }

    /// Runs steps until the end, or until a bad step to roll back from.
    pub(super) fn steps(&mut self) -> Result<Stretch, TrainError> {
        let stopping = self.config.train.eval.early_stopping.as_ref();
        let mut end = End::Finished;
        while self.progress.step < self.total {
            if self.progress.guard.is_stale(stopping) {
                // The run had ended already.
                end = End::EarlyStopped;
                break;
            }
            self.notify(|callback, state| callback.on_step_begin(state))?;
            self.before = self.data.state().position;
            let Some(batch) = self.data.next_batch()? else { break };
            if let StepEnd::RollBack(bad) = self.step(&batch)? {
                return Ok(Stretch::RollBack(bad));
            }
            let last = self.progress.step == self.total;
            let [wants_stop, wants_save] = self.agree()?;
            let stopped = wants_stop && !last;
            self.evaluate(if last { Due::Now } else { Due::AtInterval })?;
            let stale = self.progress.guard.is_stale(stopping) && !last;
            let now = last || stopped || stale || wants_save;
            self.save(if now { Due::Now } else { Due::AtInterval })?;
            if stopped || stale {
                end = if stale { End::EarlyStopped } else { End::Stopped };
                break;
            }
        }
        self.finish(end).map(Stretch::End)
    }

    /// Completes the last checkpoint.
    fn finish(&mut self, end: End) -> Result<End, TrainError> {
        if self.checkpoints.needs_save(self.progress.step) && self.progress.step > 0 {
            // The data ended before the last step.
            self.evaluate(Due::Now)?;
            self.save(Due::Now)?;
        }
        if self.checkpoints.wait()? {
            self.checkpoint_saved()?;
        }
        let early = end == End::EarlyStopped;
        self.record_event(EventKind::End { data: self.documents_read(), early })?;
        self.notify(|callback, state| callback.on_train_end(state))?;
        Ok(end)
    }

    fn record_event(&mut self, what: EventKind) -> Result<(), TrainError> {
        self.record_event_of(self.progress.step, what)
    }

    pub(super) fn record_event_of(&mut self, step: u64, what: EventKind) -> Result<(), TrainError> {
        let warnings = self.sinks.event(&Event { step, what });
        self.warn(warnings)
    }

    fn record(&mut self, record: &Record) -> Result<(), TrainError> {
        let warnings = self.sinks.record(record);
        self.warn(warnings)
    }

    /// Reports what the run survives.
    pub(super) fn warn(&mut self, warnings: Vec<Warning>) -> Result<(), TrainError> {
        for warning in warnings {
            let notice = Notice::Warning(warning.clone());
            self.notify(|callback, _| callback.on_notice(&notice))?;
            self.warnings.push(warning);
        }
        Ok(())
    }

    /// The documents read so far; `None` for dummy data.
    pub(super) fn documents_read(&self) -> Option<DocumentsRead> {
        self.summary.data.as_ref().map(|_| DocumentsRead::at(&self.data.state().position))
    }

    /// Fails if too many documents are dropped, unless all were counted before the
    /// first step.
    fn check_dropped(&self) -> Result<(), TrainError> {
        let is_counted = self.summary.data.as_ref().is_none_or(DataSummary::is_complete);
        match self.documents_read() {
            Some(documents) if !is_counted && documents.read >= JUDGED => {
                Ok(documents.check_dropped(self.config.data.max_dropped)?)
            }
            _ => Ok(()),
        }
    }

    /// Reports the remaining time once the first steps are done.
    fn estimate(&mut self) -> Result<(), TrainError> {
        let measured_steps = self.progress.step - self.summary.first_step;
        let steps_left = self.total.saturating_sub(self.progress.step);
        if measured_steps != ESTIMATED_FROM || steps_left == 0 {
            return Ok(());
        }
        let Some(seconds_left) = self.meter.seconds_left(steps_left) else { return Ok(()) };
        let estimate = TimeEstimate { measured_steps, steps_left, seconds_left };
        self.record_event(EventKind::Estimate(estimate))?;
        self.notify(|callback, _| callback.on_estimate(&estimate))
    }

    fn step(&mut self, batch: &Batch) -> Result<StepEnd, TrainError> {
        let begin = Instant::now();
        let number = self.progress.step + 1;
        let layer_stats_steps = self.config.train.logging.layer_stats_steps;
        let on_spike = self.config.train.on_spike.as_ref();
        let learning_rate = self.rates.checked_at(number)?;
        let settings = StepSettings { number, learning_rate };
        let (micros, result, spike, norms) = loop {
            let reference = self.reference.as_ref();
            let micros = micro_batches(&batch.rows, self.micro_batch_size, &self.engine, reference)?;
            let mut hooks = CallbackHooks {
                callbacks: &mut self.callbacks,
                wants_stop: &mut self.wants_stop,
                spec: &self.spec,
                max_grad_norm: self.config.train.optimizer.max_grad_norm,
                guard: &self.progress.guard,
                on_spike,
                spike: None,
                wants_layer_norms: Due::AtInterval.is_due(number, layer_stats_steps),
                norms: None,
            };
            match self.engine.step(&settings, &micros, &mut hooks) {
                Err(error) => self.split_further(batch.rows.len(), error)?,
                Ok(result) => break (micros, result, hooks.spike, hooks.norms),
            }
        };
        if !result.loss.is_finite() || !result.gradient_norm.is_finite() {
            return self.after_nan(number, &micros, &result);
        }
        if let Some(spike) = spike {
            return self.after_spike(number, spike);
        }
        self.progress.guard.accept(result.loss, on_spike);
        self.loss = Some(result.loss);
        self.progress.step = number;
        let position = self.data.state().position;
        let tokens = position.tokens - self.progress.tokens.min(position.tokens);
        self.progress.tokens = position.tokens;
        self.progress.targets += result.targets;
        let reading = self.meter.step(tokens, begin.elapsed().as_secs_f64());
        self.notify(|callback, state| callback.on_step_end(state, &result))?;
        let interval = self.config.train.logging.logging_steps.max(1);
        if number.is_multiple_of(interval) || number == self.total || number == 1 {
            let device = self.engine.dist.device();
            let scalars = self.engine.loss_metrics()?;
            let record = Record {
                epoch: Some(epochs_done(&position, self.summary.data.as_ref(), &self.config.data)),
                scalars,
                loss: Some(result.loss),
                learning_rate: Some(learning_rate),
                gradient_norm: Some(result.gradient_norm),
                tokens: Some(self.progress.tokens),
                tokens_per_second: Some(reading.tokens_per_second),
                mfu: reading.mfu,
                memory: peak_memory(device).of_device(device),
                seconds: Some(begin.elapsed().as_secs_f64()),
                ..Record::new(number)
            };
            self.record(&record)?;
            self.notify(|callback, state| callback.on_log(state, &record))?;
        }
        if let Some(norms) = norms {
            self.record(&Record { scalars: layer_scalars(&norms), ..Record::new(number) })?;
        }
        self.estimate()?;
        self.check_dropped()?;
        self.epoch_ended(position.epoch)?;
        Ok(StepEnd::Updated)
    }

    /// Tells callbacks if an epoch has ended.
    pub(super) fn epoch_ended(&mut self, epoch: u64) -> Result<(), TrainError> {
        if epoch != self.epoch {
            self.notify(|callback, state| callback.on_epoch_end(state))?;
            self.epoch = epoch;
            self.notify(|callback, state| callback.on_epoch_begin(state))?;
        }
        Ok(())
    }

    /// After a step of this many rows ran out of memory: smaller micro-batches for it
    /// and all later ones. Another error, or that of a step that cannot be split, is
    /// returned.
    fn split_further(&mut self, rows: usize, error: TrainError) -> Result<(), TrainError> {
        let TrainError::OutOfMemory { step, rows: at_once, reason } = &error else { return Err(error) };
        let smaller = (1..*at_once).rev().find(|smaller| rows.is_multiple_of(*smaller));
        let Some(smaller) = smaller.filter(|_| self.engine.can_split_further()) else { return Err(error) };
        self.engine.split_further(rows / smaller)?;
        self.micro_batch_size = smaller;
        self.held_out.micro_rows = self.held_out.micro_rows.min(smaller);
        let reason = reason.to_string();
        let warning = Warning::OutOfMemory { step: *step, rows: *at_once, smaller, reason };
        self.record_event(EventKind::Warning { message: warning.to_string() })?;
        self.warn(vec![warning])
    }

    /// Whether any rank asked to stop, so that all stop after the same step; and
    /// whether the last checkpoint is so old that another one is due.
    fn agree(&self) -> Result<[bool; 2], TrainError> {
        let minutes = self.config.train.checkpoint.save_minutes;
        let is_old = minutes > 0.0 && self.last_save.elapsed().as_secs_f64() >= minutes * 60.0;
        let wants_stop = self.wants_stop || self.stop.load(Ordering::Relaxed);
        let mut votes = [wants_stop, is_old].map(u64::from);
        self.gang.all_reduce(&mut votes, ReduceOp::Sum)?;
        Ok(votes.map(|votes| votes > 0))
    }

    fn evaluate(&mut self, due: Due) -> Result<(), TrainError> {
        let step = self.progress.step;
        if !due.is_due(step, self.config.train.eval.eval_steps) || self.held_out.evaluated_step == Some(step)
        {
            return Ok(());
        }
        self.held_out.evaluated_step = Some(step);
        let (tokenizer, config, held_out) = (self.tokenizer.as_deref(), self.config, &mut self.held_out);
        let evaluate = |engine: &Engine| held_out.evaluate(engine, config, tokenizer);
        let evaluation = self.engine.with_evaluated_weights(evaluate)?;
        if evaluation.loss.is_none() && evaluation.samples.is_empty() {
            return Ok(());
        }
        let mut record = Record::new(step);
        if let Some(loss) = evaluation.loss {
            self.eval_loss = Some(loss);
            self.checkpoints.set_score(step, loss);
            self.progress.best = Some(self.progress.best.map_or(loss, |best| best.min(loss)));
            record.scalars.insert("eval/loss".to_owned(), loss);
            if evaluation.has_perplexity() {
                record.scalars.insert("eval/perplexity".to_owned(), loss.exp());
            }
            if let Some(stopping) = &self.config.train.eval.early_stopping {
                self.progress.guard.observe(loss, stopping);
            }
        }
        for (name, value) in &evaluation.metrics {
            record.scalars.insert(format!("eval/{name}"), *value);
        }
        for (set_name, set) in &evaluation.sets {
            record.scalars.insert(format!("eval/{set_name}/loss"), set.loss);
            for (name, value) in &set.metrics {
                record.scalars.insert(format!("eval/{set_name}/{name}"), *value);
            }
        }
        for (number, (prompt, text)) in evaluation.samples.iter().enumerate() {
            record.texts.insert(format!("sample/{number}"), format!("{prompt}{text}"));
        }
        self.record(&record)?;
        self.notify(|callback, state| callback.on_evaluate(state, &evaluation))
    }

    fn save(&mut self, due: Due) -> Result<(), TrainError> {
        if self.checkpoints.poll()? {
            self.checkpoint_saved()?;
        }
        let step = self.progress.step;
        if !due.is_due(step, self.config.train.checkpoint.save_steps) || !self.checkpoints.needs_save(step) {
            return Ok(());
        }
        self.save_at(self.data.state())
    }

    /// Saves a checkpoint that resumes from a position in the data.
    pub(super) fn save_at(&mut self, data: DataState) -> Result<(), TrainError> {
        if self.checkpoints.wait()? {
            self.checkpoint_saved()?;
        }
        (self.returns, self.last_save) = (0, Instant::now());
        self.progress.data = serde_json::to_value(data).map_err(|error| TrainError::Progress {
            location: "the run".to_owned(),
            message: error.to_string(),
        })?;
        self.stall += self.checkpoints.save(&self.engine, &self.progress)?.as_secs_f64();
        // A blocking save is complete already.
        if self.checkpoints.poll()? {
            self.checkpoint_saved()?;
        }
        Ok(())
    }

    pub(super) fn checkpoint_saved(&mut self) -> Result<(), TrainError> {
        let Some(path) = self.checkpoints.last() else { return Ok(()) };
        self.notify(|callback, state| callback.on_save(state, &path))?;
        let mut evaluators = std::mem::take(&mut self.evaluators);
        for evaluator in &mut evaluators {
            if let Some(EvalMetrics { scalars, texts }) = evaluator.evaluate(&self.state(), &path)? {
                self.record(&Record { scalars, texts, ..Record::new(self.progress.step) })?;
            }
        }
        self.evaluators = evaluators;
        Ok(())
    }
}
