//! The passes of one micro-batch through one stage, run without data.

use weightloom_dtensor::{CommRecord, DTensor, backward};
use weightloom_layout::{DType, Layout, Shape};
use weightloom_nn::{ForwardArgs, Input};
use weightloom_tensor::{Device, Tensor, TensorError, counted};

use super::DryError;
use super::setup::Setup;
use super::stage::DryStage;

/// What the passes of one micro-batch take. Memory is in bytes, and is counted
/// from what is there when a args begins.
pub(super) struct Passes {
    /// What is kept between the passes: what grows with rows, and the rest.
    pub(super) activations: u64,
    pub(super) kept_weights: u64,
    pub(super) forward_peak: u64,
    /// Of the first micro-batch, whose gradients find nothing to be added to.
    pub(super) first_backward_peak: u64,
    pub(super) later_backward_peak: u64,
    pub(super) forward_flops: u64,
    pub(super) backward_flops: u64,
    /// What is sent for the first micro-batch, and for a later one.
    pub(super) first_sent: Vec<CommRecord>,
    pub(super) later_sent: Vec<CommRecord>,
    /// Bytes of hidden states between stages.
    pub(super) message: u64,
}

/// A micro-batch between its passes.
struct Flying {
    input: Option<DTensor>,
    output: DTensor,
}

/// What one micro-batch took.
struct Taken {
    kept: u64,
    forward_peak: u64,
    backward_peak: u64,
    flops: [u64; 2],
    sent: Vec<CommRecord>,
}

impl Passes {
    pub(super) fn new(setup: &Setup<'_>, stage: &DryStage) -> Result<Self, DryError> {
        let way = Way { setup, stage };
        // With twice the rows, what rows keep doubles, and the rest stays.
        let twice = way.kept(2 * setup.rows)?;
        stage.dist.take_comm_log();
        let first = way.there_and_back()?;
        let later = if setup.micros > 1 { Some(way.there_and_back()?) } else { None };
        let activations = twice.saturating_sub(first.kept).min(first.kept);
        Ok(Self {
            activations,
            kept_weights: first.kept - activations,
            forward_peak: first.forward_peak,
            first_backward_peak: first.backward_peak,
            later_backward_peak: later.as_ref().map_or(first.backward_peak, |later| later.backward_peak),
            forward_flops: first.flops[0],
            backward_flops: first.flops[1],
            later_sent: later.map_or_else(Vec::new, |later| later.sent),
            first_sent: first.sent,
            message: way.message()?,
        })
    }
}

/// One way through a stage.
struct Way<'a> {
    setup: &'a Setup<'a>,
    stage: &'a DryStage,
}

impl Way<'_> {
    /// A tensor of the batch's rows on this rank.
    fn empty(
        &self,
        dtype: DType,
        layout: Layout,
        rows: usize,
        width: Option<usize>,
    ) -> Result<DTensor, DryError> {
        let dims: Vec<usize> =
            [rows * self.setup.sharers, self.setup.time].into_iter().chain(width).collect();
        let shape = Shape::new(&dims).map_err(TensorError::from)?;
        let local = layout.local_shape(&shape, self.stage.dist.rank())?;
        let local = Tensor::zeros(dtype, &local, Device::Meta)?;
        Ok(DTensor::from_local(&self.stage.dist, local, layout, &shape)?)
    }

    fn tokens(&self, rows: usize) -> Result<DTensor, DryError> {
        self.empty(DType::I64, self.stage.decoder.plan().batch_layout()?, rows, None)
    }

    /// What comes from another stage.
    fn hidden(&self, rows: usize) -> Result<DTensor, DryError> {
        let plan = self.stage.decoder.plan();
        let layout = plan.hidden_layout(plan.batch_layout()?)?;
        self.empty(self.setup.computed_in(), layout, rows, Some(self.setup.decoder.hidden))
    }

    /// Bytes of hidden states between stages.
    fn message(&self) -> Result<u64, DryError> {
        let hidden = self.hidden(self.setup.rows)?;
        Ok(hidden.to_local().shape().volume() as u64 * hidden.dtype().size() as u64)
    }

    fn forward(&self, rows: usize) -> Result<Flying, DryError> {
        let decoder = &self.stage.decoder;
        let change = self.stage.adapter.as_ref().map(|adapter| (adapter, 1.0));
        let input = match decoder.stage().is_first() {
            true => None,
            false => Some(self.hidden(rows)?.requires_grad()),
        };
        let given = match &input {
            Some(hidden) => Input::Hidden(hidden.clone()),
            None => Input::Tokens(self.tokens(rows)?),
        };
        let dropout = self.setup.config.model.lora.as_ref().map_or(0.0, |lora| lora.dropout);
        let dropout = (dropout > 0.0).then_some(weightloom_nn::Dropout { probability: dropout, seed: 0 });
        let args = ForwardArgs {
            adapters: change.into(),
            checkpointing: self.setup.checkpointing(),
            dropout,
            ..ForwardArgs::default()
        };
        let hidden = decoder.forward(given, args)?;
        let output = match decoder.stage().is_last() {
            true => decoder.loss(&hidden, &self.tokens(rows)?, 1.0, change)?,
            false => hidden,
        };
        Ok(Flying { input, output })
    }

    fn backward(&self, flying: Flying) -> Result<(), DryError> {
        let Flying { input, output } = flying;
        if !output.tracks_gradient() {
            return Ok(());
        }
        let of_output = match self.stage.decoder.stage().is_last() {
            true => None,
            false => Some(self.hidden(self.setup.rows)?),
        };
        let gradients = backward([(output, of_output)])?;
        if let Some(input) = input {
            gradients.of(&input).transpose()?;
        }
        Ok(())
    }

    /// Bytes that a micro-batch of so many rows keeps.
    fn kept(&self, rows: usize) -> Result<u64, DryError> {
        let meter = &self.stage.meter;
        let before = meter.in_use();
        let flying = meter.watch(|| self.forward(rows))?;
        let kept = meter.in_use() - before;
        drop(flying);
        Ok(kept)
    }

    fn there_and_back(&self) -> Result<Taken, DryError> {
        let meter = &self.stage.meter;
        let before = meter.in_use();
        meter.reset_high_water();
        let (flying, there) = counted(|| meter.watch(|| self.forward(self.setup.rows)));
        let flying = flying?;
        let (between, forward_peak) = (meter.in_use(), meter.high_water() - before);
        meter.reset_high_water();
        let (done, back) = counted(|| meter.watch(|| self.backward(flying)));
        done?;
        Ok(Taken {
            kept: between.saturating_sub(before),
            forward_peak,
            backward_peak: meter.high_water() - between,
            flops: [there.total().flops, back.total().flops],
            sent: self.stage.dist.take_comm_log(),
        })
    }
}
