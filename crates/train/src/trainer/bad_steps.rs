//! What a run does after a step with a NaN or a spike of the loss: stop, skip it, or
//! return to the last checkpoint.

use std::path::Path;
use std::time::Instant;

use super::run::{Run, StepEnd};
use crate::checkpointing::Progress;
use crate::config::BadStepAction;
use crate::data::DataState;
use crate::engine::{Engine, MicroBatch, StepResult};
use crate::error::{BatchOutcome, TrainError};
use crate::extensions::Extensions;
use crate::guard::{MOST_RETURNS, Spike};
use crate::metrics::{BadStep, EventKind, Sinks, open};
use crate::warning::Warning;

/// Whether the weights before a bad step can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weights {
    Good,
    NotFinite,
}

/// Makes an engine from a checkpoint, or with the initial weights.
pub(super) type Rebuild<'a> = dyn Fn(Option<&Path>) -> Result<(Engine, Progress), TrainError> + 'a;

impl Run<'_> {
    /// After a step with a loss or gradients that are not finite.
    pub(super) fn after_nan(
        &mut self,
        number: u64,
        micros: &[MicroBatch],
        result: &StepResult,
    ) -> Result<StepEnd, TrainError> {
        let weights = match self.engine.has_finite_weights()? {
            true => Weights::Good,
            false => Weights::NotFinite,
        };
        let error = self.engine.diagnose_non_finite(number, micros, result)?;
        self.after_bad(number, self.config.train.on_nan, error, weights)
    }

    /// After a step whose loss is a spike.
    pub(super) fn after_spike(&mut self, number: u64, spike: Spike) -> Result<StepEnd, TrainError> {
        let Spike { loss, mean, deviation } = spike;
        let error = TrainError::Spike { step: number, loss, mean, deviation, batch: BatchOutcome::default() };
        let action = self.config.train.on_spike.as_ref().map_or(BadStepAction::Stop, |config| config.action);
        self.after_bad(number, action, error, Weights::Good)
    }

    /// Every rank decides alike: by the config, the progress, and weights of all ranks.
    fn after_bad(
        &mut self,
        number: u64,
        action: BadStepAction,
        mut error: TrainError,
        weights: Weights,
    ) -> Result<StepEnd, TrainError> {
        let documents = self.data.documents().clone();
        if let TrainError::NotFinite { batch, .. } | TrainError::Spike { batch, .. } = &mut error {
            batch.documents = documents.clone();
        }
        let action = match action {
            BadStepAction::Skip if weights == Weights::NotFinite || !self.progress.guard.may_skip() => {
                BadStepAction::Stop
            }
            BadStepAction::RollBack if self.returns >= MOST_RETURNS => BadStepAction::Stop,
            action => action,
        };
        let reason = error.to_string();
        let mut bad = BadStep { bad_step: number, action, reason, documents, back_to: None };
        match action {
            BadStepAction::Stop => {
                self.record_event_of(number, EventKind::BadStep(bad))?;
                let saved = if weights == Weights::Good { self.save_good_weights() } else { None };
                if let TrainError::NotFinite { batch, .. } | TrainError::Spike { batch, .. } = &mut error {
                    batch.saved = saved;
                }
                Err(error)
            }
            BadStepAction::Skip => {
                self.progress.guard.skip();
                self.progress.step = number;
                let position = self.data.state().position;
                self.progress.tokens = position.tokens;
                let warning = Warning::BadStep { reason: bad.reason.clone(), back_to: None };
                self.record_event_of(number, EventKind::BadStep(bad))?;
                self.warn(vec![warning])?;
                self.epoch_ended(position.epoch)?;
                Ok(StepEnd::Skipped)
            }
            BadStepAction::RollBack => {
                bad.back_to = Some(0);
                Ok(StepEnd::RollBack(bad))
            }
        }
    }

    /// Saves the weights before a bad step, so that a new process tries it again. The
    /// path of the checkpoint, if there is one: the bad step is the error to report.
    fn save_good_weights(&mut self) -> Option<String> {
        let step = self.progress.step;
        if step > 0 && self.checkpoints.needs_save(step) {
            let data = DataState { position: self.before, ..self.data.state() };
            self.save_at(data).ok()?;
        }
        if self.checkpoints.wait().ok()? {
            let path = self.checkpoints.last()?;
            self.notify(|callback, state| callback.on_save(state, &path)).ok()?;
        }
        Some(self.checkpoints.last()?.display().to_string())
    }

    /// Returns to the last checkpoint, or to the initial weights, and continues with
    /// the batch after the bad one. `rebuild` makes an engine from a checkpoint.
    pub(super) fn roll_back(
        mut self,
        mut bad: BadStep,
        extensions: &Extensions,
        rebuild: &Rebuild<'_>,
    ) -> Result<Self, TrainError> {
        if self.checkpoints.wait()? {
            self.checkpoint_saved()?;
        }
        let checkpoint = self.checkpoints.last().or_else(|| self.resumed.clone());
        let micro_batch_size = self.micro_batch_size;
        // Two engines may not fit into memory.
        drop(self.engine);
        let (mut engine, progress) = rebuild(checkpoint.as_deref())?;
        if micro_batch_size < self.first_micro_batch_size {
            engine.split_further(self.rows_per_rank / micro_batch_size)?;
        }
        let step = progress.step;
        let tokens = self.data.state().position.tokens;
        let progress = Progress { tokens, config: self.progress.config.clone(), ..progress };
        // Closed before they are opened again.
        self.sinks = Sinks::default();
        let logging = &self.config.train.logging;
        let sinks = match self.gang.rank() {
            0 => open(logging, &extensions.sinks, self.config.train.checkpoint.output_dir.as_ref(), step)?,
            _ => Sinks::default(),
        };
        let returns = self.returns + 1;
        let mut run = Run { engine, progress, sinks, returns, last_save: Instant::now(), ..self };
        run.held_out.evaluated_step = None;
        bad.back_to = Some(step);
        // What opens anew begins with the account of the run.
        let summary = run.summary.clone();
        run.record_event_of(step, EventKind::Start(Box::new(summary)))?;
        let warning = Warning::BadStep { reason: bad.reason.clone(), back_to: bad.back_to };
        // Dropped when a new process resumes from the checkpoint, and returns to it again.
        run.record_event_of(step + 1, EventKind::BadStep(bad))?;
        run.warn(vec![warning])?;
        if let Some(path) = checkpoint {
            run.notify(|callback, state| callback.on_resume(state, &path))?;
        }
        Ok(run)
    }
}
