//! The passes of one micro-batch through one stage, on meta tensors.

use weightloom_dtensor::{CommRecord, DTensor, backward};
use weightloom_layout::{DType, Layout, Shape};
use weightloom_nn::{AdapterSpec, ForwardArgs, Input};
use weightloom_tensor::{Device, Tensor, TensorError, counted, no_grad};

use super::DryRunError;
use super::context::RunContext;
use super::stage::DryStage;
use crate::config::DataType;
use crate::data::Supervision;
use crate::engine::MicroBatch;
use crate::loss::{LossArgs, LossBatch, Reference, completion_logprobs, teacher_logits};

/// The costs of one micro-batch. Memory is in bytes, relative to the start of the
/// pass.
pub(super) struct Passes {
    /// Stored between the passes: what grows with the rows, and the rest.
    pub(super) activations: u64,
    pub(super) kept_weights: u64,
    pub(super) forward_peak: u64,
    /// Of the first micro-batch, whose gradients are not accumulated.
    pub(super) first_backward_peak: u64,
    pub(super) later_backward_peak: u64,
    pub(super) forward_flops: u64,
    pub(super) backward_flops: u64,
    /// Communication of the first micro-batch, and of a later one.
    pub(super) first_sent: Vec<CommRecord>,
    pub(super) later_sent: Vec<CommRecord>,
    /// Bytes of the activations between stages.
    pub(super) message: u64,
}

/// A micro-batch between its passes.
struct ForwardResult {
    input: Option<DTensor>,
    output: DTensor,
}

/// Measurements of one micro-batch.
struct Measurement {
    kept: u64,
    forward_peak: u64,
    backward_peak: u64,
    flops: [u64; 2],
    sent: Vec<CommRecord>,
}

impl Passes {
    pub(super) fn new(context: &RunContext<'_>, stage: &DryStage) -> Result<Self, DryRunError> {
        let passes = StagePasses { context, stage };
        // Twice the rows double the activations and nothing else.
        let twice = passes.kept(2 * context.rows)?;
        stage.dist.take_comm_log();
        let first = passes.forward_backward()?;
        let later = if context.micros > 1 { Some(passes.forward_backward()?) } else { None };
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
            message: passes.message()?,
        })
    }
}

/// Runs the passes of a stage.
struct StagePasses<'a> {
    context: &'a RunContext<'a>,
    stage: &'a DryStage,
}

impl StagePasses<'_> {
    /// A meta tensor with the batch's rows.
    fn empty(
        &self,
        dtype: DType,
        layout: Layout,
        rows: usize,
        width: Option<usize>,
    ) -> Result<DTensor, DryRunError> {
        let dims: Vec<usize> = [rows * self.context.sequences() * self.context.dp, self.context.seq_len]
            .into_iter()
            .chain(width)
            .collect();
        let shape = Shape::new(&dims).map_err(TensorError::from)?;
        let local = layout.local_shape(&shape, self.stage.dist.rank())?;
        let local = Tensor::zeros(dtype, &local, Device::Meta)?;
        Ok(DTensor::from_local(&self.stage.dist, local, layout, &shape)?)
    }

    fn tokens(&self, rows: usize) -> Result<DTensor, DryRunError> {
        self.empty(DType::I64, self.stage.model.plan().batch_layout()?, rows, None)
    }

    /// Activations from another stage.
    fn hidden(&self, rows: usize) -> Result<DTensor, DryRunError> {
        let plan = self.stage.model.plan();
        let layout = plan.hidden_layout(plan.batch_layout()?)?;
        self.empty(self.context.compute_dtype(), layout, rows, Some(self.context.definition.hidden()))
    }

    /// Bytes of the activations between stages.
    fn message(&self) -> Result<u64, DryRunError> {
        let hidden = self.hidden(self.context.rows)?;
        Ok(hidden.to_local().shape().volume() as u64 * hidden.dtype().size() as u64)
    }

    fn forward(&self, rows: usize) -> Result<ForwardResult, DryRunError> {
        let model = &self.stage.model;
        let change = self.stage.adapter.as_ref().map(|adapter| (adapter, 1.0));
        let input = match model.stage().is_first() {
            true => None,
            false => Some(self.hidden(rows)?.requires_grad()),
        };
        let given = match &input {
            Some(hidden) => Input::Hidden(hidden.clone()),
            None => Input::Tokens(self.tokens(rows)?),
        };
        let dropout = self.context.config.model.lora.as_ref().map_or(0.0, |lora| lora.dropout);
        let dropout = (dropout > 0.0).then_some(weightloom_nn::Dropout { probability: dropout, seed: 0 });
        let args = ForwardArgs {
            adapters: change.into(),
            documents: self.documents(rows)?,
            checkpointing: self.context.checkpointing(),
            dropout,
            ..ForwardArgs::default()
        };
        if model.stage().is_last() && self.context.needs.documents == Supervision::Labels {
            // Mismatched completions, from which the divergence is estimated.
            self.compare(rows, change)?;
            self.compare_without_adapter(rows)?;
        }
        let hidden = model.forward(given, args)?;
        let output = match model.stage().is_last() {
            true => {
                if self.context.needs.reference == Reference::Initial {
                    self.compare_without_adapter(rows)?;
                }
                let teacher = match self.context.needs.teacher {
                    Some(_) => Some(self.teacher_logits(rows)?),
                    None => None,
                };
                let targets = self.tokens(rows)?;
                let micro = self.micro_batch(rows);
                let args = LossArgs {
                    model: &**model,
                    hidden: &hidden,
                    targets: &targets,
                    divisor: 1.0,
                    adapter: change,
                    batch: LossBatch {
                        rows: Some(&micro),
                        teacher: teacher.as_ref(),
                        ..LossBatch::default()
                    },
                };
                self.context.loss.compute(&args)?
            }
            false => hidden,
        };
        Ok(ForwardResult { input, output })
    }

    /// Rows as the loss gets them.
    fn micro_batch(&self, rows: usize) -> MicroBatch {
        let rows = rows * self.context.sequences();
        let tokens = vec![0; rows * self.context.seq_len];
        MicroBatch { rows, inputs: tokens.clone(), targets: tokens, ..MicroBatch::default() }
    }

    /// Passes rows through the model to compare their completions.
    fn compare(&self, rows: usize, adapter: Option<AdapterSpec<'_>>) -> Result<(), DryRunError> {
        no_grad(|| {
            let (model, given) = (&self.stage.model, Input::Tokens(self.tokens(rows)?));
            let hidden =
                model.forward(given, ForwardArgs { adapters: adapter.into(), ..ForwardArgs::default() })?;
            completion_logprobs(&**model, &hidden, &self.micro_batch(rows), adapter)?;
            Ok(())
        })
    }

    /// The same through the reference. That of a run without an adapter is known before
    /// the first step.
    fn compare_without_adapter(&self, rows: usize) -> Result<(), DryRunError> {
        match self.stage.adapter {
            Some(_) => self.compare(rows, None),
            None => Ok(()),
        }
    }

    /// The logits of the teacher, if it is known.
    fn teacher_logits(&self, rows: usize) -> Result<DTensor, DryRunError> {
        if let Some(teacher) = &self.stage.teacher {
            return Ok(teacher_logits(&**teacher, self.tokens(rows)?, self.documents(rows)?)?);
        }
        let layout = self.stage.model.plan().batch_layout()?;
        let rows = rows * self.context.dp * self.context.seq_len;
        let shape = Shape::new(&[rows, self.context.definition.vocabulary()]).map_err(TensorError::from)?;
        let local = layout.local_shape(&shape, self.stage.dist.rank())?;
        let local = Tensor::zeros(DType::F32, &local, Device::Meta)?;
        Ok(DTensor::from_local(&self.stage.dist, local, layout, &shape)?)
    }

    /// The starts of documents. Most packed rows have several.
    fn documents(&self, rows: usize) -> Result<Option<DTensor>, DryRunError> {
        let packed = self.context.config.data.r#type == DataType::Files
            && self.context.needs.documents == Supervision::Tokens
            && self.context.config.data.packing.is_packed();
        packed.then(|| self.tokens(rows)).transpose()
    }

    fn backward(&self, forwarded: ForwardResult) -> Result<(), DryRunError> {
        let ForwardResult { input, output } = forwarded;
        if !output.tracks_gradient() {
            return Ok(());
        }
        let of_output = match self.stage.model.stage().is_last() {
            true => None,
            false => Some(self.hidden(self.context.rows)?),
        };
        let gradients = backward([(output, of_output)])?;
        if let Some(input) = input {
            gradients.of(&input).transpose()?;
        }
        Ok(())
    }

    /// Bytes stored between the passes of a micro-batch.
    fn kept(&self, rows: usize) -> Result<u64, DryRunError> {
        let meter = &self.stage.meter;
        let before = meter.in_use();
        let forwarded = meter.watch(|| self.forward(rows))?;
        let kept = meter.in_use() - before;
        drop(forwarded);
        Ok(kept)
    }

    fn forward_backward(&self) -> Result<Measurement, DryRunError> {
        let meter = &self.stage.meter;
        let before = meter.in_use();
        meter.reset_high_water();
        let (forwarded, forward_costs) = counted(|| meter.watch(|| self.forward(self.context.rows)));
        let forwarded = forwarded?;
        let (between, forward_peak) = (meter.in_use(), meter.high_water() - before);
        meter.reset_high_water();
        let (done, backward_costs) = counted(|| meter.watch(|| self.backward(forwarded)));
        done?;
        Ok(Measurement {
            kept: between.saturating_sub(before),
            forward_peak,
            backward_peak: meter.high_water() - between,
            flops: [forward_costs.total().flops, backward_costs.total().flops],
            sent: self.stage.dist.take_comm_log(),
        })
    }
}
