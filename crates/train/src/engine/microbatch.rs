//! Forward and backward passes of micro-batches.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use weightloom_dtensor::{DTensor, GradientReduction, NanCheck, PassContext, backward};
use weightloom_gang::Elements;
use weightloom_layout::Shape;
use weightloom_nn::{ForwardArgs, IGNORED, Input};
use weightloom_tensor::{TensorError, no_grad};

use super::{Engine, LossPurpose, StageModel, StepHooks, StepSettings};
use crate::error::TrainError;
use crate::pipeline::{Action, Message, Payload};

/// Rows that a rank processes at once.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs)]
pub struct MicroBatch {
    pub rows: usize,
    /// Tokens of all rows, which have the same length.
    pub inputs: Vec<i64>,
    /// The next token at each position; [`IGNORED`](weightloom_nn::IGNORED)
    /// masks it.
    pub targets: Vec<i64>,
    /// The first position of each position's document, for rows of several
    /// documents: tokens attend only to their own. `None` on all ranks if every
    /// row is one document.
    pub documents: Option<Vec<i64>>,
    /// What losses of preferences need beside the rows.
    pub preferences: Option<Box<PreferenceRows>>,
}

/// What losses of preferences need beside the rows of a micro-batch. Of pairs, chosen
/// and rejected rows alternate.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PreferenceRows {
    /// Whether each labelled completion is desirable.
    pub labels: Vec<bool>,
    /// Log-probabilities of the rows' completions under the reference, unless it is the
    /// model without its adapter.
    pub reference: Option<Vec<f32>>,
    /// Prompts with completions of others, which only estimate a divergence.
    pub mismatched: Option<MicroBatch>,
}

impl MicroBatch {
    pub(crate) fn seq_len(&self) -> usize {
        self.inputs.len() / self.rows.max(1)
    }

    /// The targets of each row.
    pub(crate) fn rows_of_targets(&self) -> impl Iterator<Item = &[i64]> {
        self.targets.chunks_exact(self.seq_len().max(1))
    }

    /// The next token at each position up to a row's last target, also where it is
    /// masked.
    pub(crate) fn next_tokens(&self) -> Vec<i64> {
        let mut next = Vec::with_capacity(self.targets.len());
        for (inputs, targets) in self.inputs.chunks_exact(self.seq_len().max(1)).zip(self.rows_of_targets()) {
            let end = targets.iter().rposition(|&target| target != IGNORED).map_or(0, |last| last + 1);
            let following = |at: usize| inputs.get(at + 1).copied().unwrap_or(IGNORED);
            let token = |(at, &target): (usize, &i64)| match target {
                _ if at >= end => IGNORED,
                IGNORED => following(at),
                target => target,
            };
            next.extend(targets.iter().enumerate().map(token));
        }
        next
    }
}

/// A micro-batch in a stage, between its forward and backward pass.
struct ForwardResult {
    /// Activations from the previous stage.
    input: Option<DTensor>,
    /// Activations for the next stage, or the loss.
    output: DTensor,
}

/// The micro-batches of a step that are in progress.
#[derive(Default)]
struct InFlight {
    /// By stage and micro-batch.
    forwarded: BTreeMap<(usize, usize), ForwardResult>,
    /// Activations and gradients that are computed or received, and not yet
    /// used or sent.
    messages: HashMap<Message, DTensor>,
    loss: f64,
}

impl InFlight {
    fn take(&mut self, message: Message) -> Result<DTensor, TrainError> {
        let Message { stage, micro, .. } = message;
        self.messages.remove(&message).ok_or(TrainError::Schedule { stage, micro })
    }
}

/// The tag of a message. Tags have 32 bits; messages that are never in flight
/// at the same time may share one.
pub(super) fn tag(message: Message) -> u32 {
    let kind = match message.payload {
        Payload::Activation => 0,
        Payload::Gradient => 1,
    };
    0x2000_0000 | ((message.stage as u32 & 0xfff) << 16) | ((message.micro as u32 & 0x7fff) << 1) | kind
}

pub(super) fn activation(stage: usize, micro: usize) -> Message {
    Message { payload: Payload::Activation, stage, micro }
}

fn gradient(stage: usize, micro: usize) -> Message {
    Message { payload: Payload::Gradient, stage, micro }
}

impl Engine {
    /// Runs all forward and backward passes of a step, and accumulates gradients
    /// in the parameters. Returns this rank's share of the loss.
    pub fn forward_backward(
        &mut self,
        settings: &StepSettings,
        micros: &[MicroBatch],
        targets: f64,
        hooks: &mut dyn StepHooks,
    ) -> Result<f64, TrainError> {
        self.checked_forward_backward(settings, micros, targets, hooks, None)
    }

    /// Like [`forward_backward`](Self::forward_backward), with a check of every
    /// result.
    pub(crate) fn checked_forward_backward(
        &mut self,
        settings: &StepSettings,
        micros: &[MicroBatch],
        targets: f64,
        hooks: &mut dyn StepHooks,
        nan_check: Option<&Arc<NanCheck>>,
    ) -> Result<f64, TrainError> {
        let step = settings.number;
        let mut done = 0;
        let total = micros.len() * self.stages.len();
        let (expected, found) = (self.schedule.micro_batches, micros.len());
        if expected != found {
            return Err(TrainError::MicroBatches { expected, found });
        }
        let mut flight = InFlight::default();
        let program = self.program().to_vec();
        // The last backward pass completes the gradients of each layer, so their
        // reduction can start early.
        let mut last_backward: BTreeMap<usize, usize> = BTreeMap::new();
        for action in &program {
            if let Action::Backward { stage, micro } = action {
                last_backward.insert(*stage, *micro);
            }
        }
        for action in program {
            match action {
                Action::Forward { stage, micro } => {
                    let is_last = last_backward.get(&stage) == Some(&micro);
                    let gradient_reduction = match is_last {
                        true => GradientReduction::DuringBackward,
                        false => GradientReduction::Deferred,
                    };
                    let context = PassContext { gradient_reduction, nan_check: nan_check.cloned() };
                    self.forward(&mut flight, [stage, micro], step, micros, targets, context)?;
                }
                Action::Backward { stage, micro } => {
                    self.backward(&mut flight, stage, micro)?;
                    done += 1;
                    hooks.microbatch_end(done, total)?;
                }
                Action::Send { peer, message } => {
                    let sent = flight.take(message)?;
                    self.send(&sent, peer, tag(message))?;
                }
                Action::Receive { peer, message } => {
                    let received = self.receive(&micros[message.micro], peer, tag(message))?;
                    flight.messages.insert(message, received);
                }
            }
        }
        Ok(flight.loss)
    }

    fn forward(
        &self,
        flight: &mut InFlight,
        [number, micro]: [usize; 2],
        step: u64,
        micros: &[MicroBatch],
        targets: f64,
        context: PassContext,
    ) -> Result<(), TrainError> {
        let (stage, batch) = (self.stage(number)?, &micros[micro]);
        let input = match number {
            0 => None,
            _ => Some(flight.take(activation(number - 1, micro))?.requires_grad()),
        };
        let hidden = self.forward_stage(
            stage,
            batch,
            input.as_ref(),
            ForwardArgs {
                adapters: stage.change().into(),
                checkpointing: self.checkpointing,
                dropout: self.dropout(step, micro),
                context,
                ..ForwardArgs::default()
            },
        )?;
        let output = if number + 1 == self.stage_count {
            let loss = self.stage_loss(stage, &hidden, (batch, targets), LossPurpose::Training)?;
            flight.loss += self.loss_share(&loss)?;
            loss
        } else {
            flight.messages.insert(activation(number, micro), hidden.detach());
            hidden
        };
        flight.forwarded.insert((number, micro), ForwardResult { input, output });
        Ok(())
    }

    pub(super) fn forward_stage(
        &self,
        stage: &StageModel,
        batch: &MicroBatch,
        input: Option<&DTensor>,
        args: ForwardArgs<'_>,
    ) -> Result<DTensor, TrainError> {
        let starts = batch.documents.as_ref();
        let documents = starts.map(|starts| stage.model.shard().batch(starts, batch.rows)).transpose()?;
        let args = ForwardArgs { documents, ..args };
        let input = match input {
            Some(hidden) => Input::Hidden(hidden.clone()),
            None => Input::Tokens(stage.model.shard().batch(&batch.inputs, batch.rows)?),
        };
        Ok(stage.model.forward(input, args)?)
    }

    fn backward(&self, flight: &mut InFlight, stage: usize, micro: usize) -> Result<(), TrainError> {
        let missing = TrainError::Schedule { stage, micro };
        let ForwardResult { input, output } = flight.forwarded.remove(&(stage, micro)).ok_or(missing)?;
        let of_output = match stage + 1 == self.stage_count {
            true => None,
            false => Some(flight.take(gradient(stage + 1, micro))?),
        };
        if !output.tracks_gradient() {
            // A first stage without trained parameters: no gradient is needed.
            return Ok(());
        }
        let gradients = backward([(output, of_output)])?;
        if let Some(input) = input {
            let found = gradients.of(&input).transpose()?;
            let found =
                found.ok_or(TrainError::NoGradient { name: format!("the input of stage {stage}") })?;
            // Gradients of half-precision inputs with several uses are summed in
            // f32; send them in the dtype of the input.
            flight.messages.insert(gradient(stage, micro), found.cast(input.dtype())?);
        }
        Ok(())
    }

    /// This rank's share of the summed loss over all targets, without
    /// gradients.
    pub fn eval_loss(&self, micros: &[MicroBatch]) -> Result<f64, TrainError> {
        self.eval_share(micros, 1.0)
    }

    /// This rank's share of the loss, without gradients.
    pub(crate) fn eval_share(&self, micros: &[MicroBatch], divisor: f64) -> Result<f64, TrainError> {
        let mut loss = 0.0;
        let (pp, stages) = (self.gangs.pp.size(), self.stage_count);
        for batch in micros {
            let mut here = None;
            for stage in &self.stages {
                let number = stage.number;
                let input = match number {
                    0 => None,
                    _ if pp == 1 => here.take(),
                    _ => Some(self.receive(batch, (number - 1) % pp, tag(activation(number - 1, 0)))?),
                };
                let args = ForwardArgs { adapters: stage.change().into(), ..ForwardArgs::default() };
                let hidden = no_grad(|| self.forward_stage(stage, batch, input.as_ref(), args))?;
                if number + 1 == stages {
                    let purpose = LossPurpose::Evaluation;
                    let sum = no_grad(|| self.stage_loss(stage, &hidden, (batch, divisor), purpose))?;
                    loss += self.loss_share(&sum)?;
                } else if pp == 1 {
                    here = Some(hidden);
                } else {
                    self.send(&hidden, (number + 1) % pp, tag(activation(number, 0)))?;
                }
            }
        }
        Ok(loss)
    }

    /// The loss on the first of the ranks that have the same value, zero on the
    /// others, so that a sum over all ranks counts it once.
    fn loss_share(&self, loss: &DTensor) -> Result<f64, TrainError> {
        let layout = loss.layout();
        let mesh = layout.mesh();
        for axis in (0..mesh.ndim()).filter(|&axis| layout.placements()[axis].pending().is_none()) {
            let peers = mesh.peers(self.dist.rank(), axis).map_err(weightloom_dtensor::DTensorError::from)?;
            if peers.first() != Some(&self.dist.rank()) {
                return Ok(0.0);
            }
        }
        Ok(f64::from(loss.detach().to_local().item::<f32>()?))
    }

    pub(super) fn send(&self, tensor: &DTensor, to: usize, tag: u32) -> Result<(), TrainError> {
        let local = tensor.to_local();
        let sent = local.read_host(|bytes| {
            let data = Elements::from_bytes(local.dtype(), bytes)?;
            self.gangs.pp.send(data, to, tag)
        })?;
        Ok(sent?)
    }

    /// Receives activations of a micro-batch, or their gradients.
    pub(super) fn receive(&self, batch: &MicroBatch, from: usize, tag: u32) -> Result<DTensor, TrainError> {
        let stage = self.stages.first().ok_or(TrainError::NoStage { number: 0, rank: 0 })?;
        let plan = stage.model.plan();
        let layout = plan.hidden_layout(plan.batch_layout()?)?;
        let shape =
            [batch.rows * plan.data_parallel_size(), batch.seq_len(), stage.model.definition().hidden()];
        let shape = Shape::new(&shape).map_err(TensorError::from)?;
        let local = layout.local_shape(&shape, self.dist.rank()).map_err(weightloom_nn::NnError::from)?;
        let received = self.receive_local(self.compute_dtype(), &local, from, tag)?;
        Ok(DTensor::from_local(&self.dist, received, layout, &shape)?)
    }
}
