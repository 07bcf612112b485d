//! Models: one trait for our decoder and for users' own.

use std::any::Any;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use weightloom_dtensor::{DTensor, DistContext};
use weightloom_layout::{DType, Shape};
use weightloom_tensor::{CrossEntropy, no_grad};

use crate::adapter::{Adapter, merge_by_name};
use crate::batch_adapters::{AdapterSpec, BatchAdapters};
use crate::decoder::{ForwardArgs, Input};
use crate::decoding::{Decoding, RecomputedDecoding};
use crate::definition::ModelDefinition;
use crate::error::NnError;
use crate::loss::IGNORED;
use crate::plan::Plan;
use crate::score::{TokenLogprobs, token_logprobs};
use crate::sequence::{Sequence, SequenceOutput, SequencesAlone};
use crate::shard::ModelShard;
use crate::stage::Stage;

/// A check that is called between pieces of work and may break.
pub type Check<'c> = &'c mut dyn FnMut() -> ControlFlow<()>;

/// A model, or a pipeline stage of one, as one rank holds it.
///
/// Training, generation, scoring, judging and dry runs need nothing else. A model
/// provides [`forward`](Self::forward) and [`logits`](Self::logits); everything else
/// follows from them, and can be replaced where a model knows a faster way.
pub trait Model: AsModel + Any + fmt::Debug + Send + Sync {
    /// The definition from which the model was built.
    fn definition(&self) -> &dyn ModelDefinition;

    /// This rank's parameters.
    fn shard(&self) -> &ModelShard;

    /// This rank's parameters, for in-place updates.
    fn shard_mut(&mut self) -> &mut ModelShard;

    /// Runs the layers of the stage. A first stage gets tokens `[batch, time]`, others
    /// the result of the stage before, `[batch, time, hidden]`. The result has that
    /// shape too, in the layout of [`Plan::hidden_layout`]; that of the last stage is
    /// passed to [`logits`](Self::logits).
    fn forward(&self, input: Input, args: ForwardArgs<'_>) -> Result<DTensor, NnError>;

    /// Projects the result of the last stage, or some of its rows, to logits
    /// `[…, vocabulary]`.
    fn logits(&self, hidden: &DTensor, adapters: BatchAdapters<'_>) -> Result<DTensor, NnError>;

    /// The loss of the result of the last stage with targets `[batch, time]`, summed
    /// over all targets but [`IGNORED`] and divided by `divisor`. With the number of
    /// targets of a whole batch as the divisor, the losses of its microbatches add up
    /// to the batch's mean. The result is a partial sum over the data-parallel ranks.
    fn loss(
        &self,
        hidden: &DTensor,
        targets: &DTensor,
        divisor: f64,
        adapter: Option<AdapterSpec<'_>>,
    ) -> Result<DTensor, NnError> {
        let [batch, time, width] = [hidden.shape()[0], hidden.shape()[1], hidden.shape()[2]];
        let rows = hidden.reshape(&Shape::new(&[batch * time, width])?)?;
        let targets = targets.reshape(&Shape::new(&[batch * time])?)?;
        let options =
            CrossEntropy { ignore_index: Some(IGNORED), label_smoothing: 0.0, divisor: Some(divisor) };
        Ok(self.logits(&rows, adapter.into())?.cast(DType::F32)?.cross_entropy(&targets, options)?)
    }

    /// Starts to generate after prompts, each with one of the adapters. `capacity` is
    /// the number of positions to reserve for each. By default, every token computes
    /// its whole text again.
    fn decoding<'a>(
        &'a self,
        prompts: &[Sequence<'_>],
        adapters: Vec<Option<AdapterSpec<'a>>>,
        capacity: usize,
    ) -> Result<Box<dyn Decoding + 'a>, NnError> {
        let _ = capacity;
        Ok(Box::new(RecomputedDecoding::new(self.as_model(), prompts, &adapters)?))
    }

    /// Runs sequences, each with one of the adapters. A sequence's numbers have the
    /// same bits whatever it is run with. By default, each runs alone.
    fn forward_sequences<'a>(
        &'a self,
        sequences: &[Sequence<'_>],
        adapters: &[Option<AdapterSpec<'a>>],
    ) -> Result<Box<dyn SequenceOutput + 'a>, NnError> {
        Ok(Box::new(SequencesAlone::new(self.as_model(), sequences, adapters)?))
    }

    /// Scores every token but the first of each row given the tokens before it, with
    /// the `top` most likely tokens at its position. Calls `check` between pieces of
    /// work; if it breaks, the result is `None`.
    fn score_checked(
        &self,
        rows: &[&[u32]],
        top: usize,
        adapter: Option<AdapterSpec<'_>>,
        check: Check<'_>,
    ) -> Result<Option<Vec<Vec<TokenLogprobs>>>, NnError> {
        let mut scores = Vec::with_capacity(rows.len());
        for (row, tokens) in rows.iter().enumerate() {
            if tokens.is_empty() {
                return Err(NnError::EmptyPrompt { row });
            }
            if check().is_break() {
                return Ok(None);
            }
            let hidden = self.as_model().forward_alone(tokens, adapter)?;
            let mut of_row = Vec::with_capacity(tokens.len());
            for start in (0..tokens.len() - 1).step_by(LOGIT_ROWS) {
                let positions = start..(tokens.len() - 1).min(start + LOGIT_ROWS);
                let chosen: Vec<(usize, usize)> = positions.clone().map(|position| (0, position)).collect();
                let logits = self.as_model().logits_at(&hidden, &chosen, adapter)?;
                for (position, logits) in positions.zip(logits.chunks_exact(self.definition().vocabulary())) {
                    let scored = token_logprobs(logits, tokens[position + 1], top);
                    // One NaN among the logits, or +inf, makes all of them NaN.
                    if scored.chosen.is_nan() {
                        return Err(NnError::NotFinite { row, found: scored.chosen.to_string() });
                    }
                    of_row.push(scored);
                }
            }
            scores.push(of_row);
        }
        Ok(Some(scores))
    }

    /// The model with an adapter added to its parameters, each rounded once.
    fn merged(&self, adapter: &Adapter, strength: f64) -> Result<Box<dyn Model>, NnError> {
        merge_by_name(self.as_model(), adapter, strength)
    }
}

/// Rows of logits in memory at once.
const LOGIT_ROWS: usize = 256;

/// A model as a trait object; implemented for every model.
pub trait AsModel {
    /// The model as a trait object.
    fn as_model(&self) -> &dyn Model;
}

impl<M: Model> AsModel for M {
    fn as_model(&self) -> &dyn Model {
        self
    }
}

impl dyn Model {
    /// The pipeline stage that this rank holds.
    pub fn stage(&self) -> &Stage {
        self.shard().stage()
    }

    /// The sharding plan.
    pub fn plan(&self) -> &Plan {
        self.shard().plan()
    }

    /// The distributed context of the ranks that share the stage.
    pub fn dist(&self) -> &Arc<DistContext> {
        self.shard().dist()
    }

    /// Parameters with their names, in the order of the definition.
    pub fn parameters(&self) -> &[(String, DTensor)] {
        self.shard().parameters()
    }

    /// Parameters for in-place updates. Shapes and layouts must not change.
    pub fn parameters_mut(&mut self) -> &mut [(String, DTensor)] {
        self.shard_mut().parameters_mut()
    }

    /// Whether no gradient reaches a parameter.
    pub fn is_buffer(&self, name: &str) -> bool {
        self.shard().is_buffer(name)
    }

    /// Looks a parameter up by name.
    pub fn parameter(&self, name: &str) -> Option<&DTensor> {
        self.shard().parameter(name)
    }

    /// The model as one of a known type.
    pub fn downcast<M: Model>(&self) -> Option<&M> {
        (self as &dyn Any).downcast_ref()
    }

    /// Builds a replicated `[batch, time]` tensor of tokens, right-padding shorter
    /// rows with zeros.
    pub fn tokens(&self, rows: &[&[u32]]) -> Result<DTensor, NnError> {
        self.shard().tokens(rows, self.definition().vocabulary())
    }

    /// The bytes that decoding keeps per token, on all ranks together.
    pub fn cache_bytes_per_token(&self) -> usize {
        let held = self.parameters().first().map_or(DType::F32, |(_, value)| value.dtype());
        let dtype = self.plan().usage().dtype.unwrap_or(held);
        self.stage().layers.len() * self.definition().cache_bytes_per_layer(dtype)
    }

    /// [`score_checked`](Model::score_checked) without a check.
    pub fn score(
        &self,
        rows: &[&[u32]],
        top: usize,
        adapter: Option<AdapterSpec<'_>>,
    ) -> Result<Vec<Vec<TokenLogprobs>>, NnError> {
        let scores = self.score_checked(rows, top, adapter, &mut || ControlFlow::Continue(()))?;
        Ok(scores.unwrap_or_default())
    }

    /// The result of the last stage for one row, without gradients.
    pub(crate) fn forward_alone(
        &self,
        tokens: &[u32],
        adapter: Option<AdapterSpec<'_>>,
    ) -> Result<DTensor, NnError> {
        let available = self.definition().max_positions().unwrap_or(usize::MAX);
        if tokens.len() > available {
            return Err(NnError::TooLong { needed: tokens.len(), available });
        }
        no_grad(|| {
            let input = Input::Tokens(self.tokens(&[tokens])?);
            self.forward(input, ForwardArgs { adapters: adapter.into(), ..ForwardArgs::default() })
        })
    }

    /// Logits at some positions of the result of the last stage, row after row.
    pub(crate) fn logits_at(
        &self,
        hidden: &DTensor,
        positions: &[(usize, usize)],
        adapter: Option<AdapterSpec<'_>>,
    ) -> Result<Vec<f32>, NnError> {
        no_grad(|| {
            let rows = self.shard().select_positions(hidden, positions)?;
            let logits = self.logits(&rows, adapter.into())?;
            Ok(logits.cast(DType::F32)?.full_tensor()?.to_vec::<f32>()?)
        })
    }
}
