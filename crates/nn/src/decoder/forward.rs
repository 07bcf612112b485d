//! Forward pass of a stage.
//!
//! There is one path through the layers, [`Decoder::forward_layers`], with two
//! arrangements of its input. [`Decoder::forward`] takes a padded batch `[batch,
//! time]`, as training and decoding need it. A [prefix tree](crate::prefix_tree)
//! takes sequences of any lengths as `[tokens, 1]` and computes shared prefixes
//! once, as prefill and scoring need it. They differ only in [`PositionInfo`],
//! which chooses the attention kernel's call: one per batch, or one per node of
//! the tree. A decoding step keeps the batched form because its rows share
//! nothing, and one kernel call over the cache is faster than one per row. Each
//! token's result has the same bits in both.

use std::sync::Arc;

use weightloom_dtensor::{DTensor, GradientReduction, NanCheck, PassContext, recompute};

use super::Decoder;
use crate::attention::PositionInfo;
use crate::batch_adapters::BatchAdapters;
use crate::cache::Cache;
use crate::context::ForwardContext;
use crate::error::NnError;
use crate::packing::PackedDocuments;

/// Input of a pipeline stage.
#[derive(Clone, Debug)]
pub enum Input {
    /// Tokens `[batch, time]` of dtype `i64`, right-padded with any token.
    Tokens(DTensor),
    /// The output of the previous stage, `[batch, time, hidden]`.
    Hidden(DTensor),
}

impl Input {
    fn with_nan_check(&self, check: &Arc<NanCheck>) -> Self {
        match self {
            Self::Tokens(tokens) => Self::Tokens(tokens.with_nan_check(check)),
            Self::Hidden(hidden) => Self::Hidden(hidden.with_nan_check(check)),
        }
    }
}

/// Options of a forward pass.
#[derive(Debug, Default)]
pub struct ForwardArgs<'a> {
    /// Keys and values of earlier tokens, to which the new ones are appended.
    pub cache: Option<&'a mut Cache>,
    /// The number of tokens in each row; the rest is padding. By default, no
    /// row is padded.
    pub lengths: Option<&'a [usize]>,
    /// For packed rows, the first position of each position's document, `[batch,
    /// time]` of `i64` in the layout of the tokens: a token attends only to its
    /// document, and positions restart with each. By default a row is one document.
    pub documents: Option<DTensor>,
    /// The adapters of the rows.
    pub adapters: BatchAdapters<'a>,
    /// What the tape keeps for the backward pass.
    pub checkpointing: ActivationCheckpointing,
    /// Dropout of the inputs of LoRA updates.
    pub dropout: Option<Dropout>,
    /// When gradients are reduced, and the check for NaN.
    pub context: PassContext,
}

/// What the tape keeps of a layer's activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ActivationCheckpointing {
    /// Everything that the backward pass needs.
    #[default]
    Off,
    /// The layer's input; the backward pass computes the layer again.
    Full,
}

/// Dropout of the inputs of LoRA updates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The probability of zeroing an element.
    pub probability: f64,
    /// The seed of this forward pass.
    pub seed: u64,
}

impl Decoder {
    /// Runs all layers of the stage. The last stage also applies the final norm,
    /// so that its result can be passed to [`logits`](Self::logits).
    pub fn forward(&self, input: Input, args: ForwardArgs<'_>) -> Result<DTensor, NnError> {
        let ForwardArgs { mut cache, lengths, documents, adapters, checkpointing, dropout, context } = args;
        let structure = &self.structure;
        let input = match &context.nan_check {
            Some(check) => input.with_nan_check(check),
            None => input,
        };
        let given = match &input {
            Input::Tokens(tokens) => tokens,
            Input::Hidden(hidden) => hidden,
        };
        let [batch, time] = [given.shape()[0], given.shape()[1]];
        if let Some(found) = cache.as_ref().map(|cache| cache.lengths().len()).filter(|rows| *rows != batch) {
            return Err(NnError::CacheRows { found, expected: batch });
        }
        let starts = cache.as_ref().map_or_else(|| vec![0; batch], |cache| cache.lengths().to_vec());
        adapters.check(batch)?;
        self.check_length(&starts, lengths, time)?;
        let rope = structure.rope.as_ref();
        let positions = match documents {
            Some(_) if cache.is_some() => return Err(NnError::PackedCache),
            Some(documents) => PositionInfo::packed(PackedDocuments::new(documents, batch, time)?, rope)?,
            None => {
                let (layout, device) = (given.layout(), given.device());
                PositionInfo::new(&structure.dist, layout, rope, [batch, time], starts, device)?
            }
        };
        let gradient_reduction = context.gradient_reduction;
        let context = ForwardContext { dropout, gradient_reduction, ..self.context(adapters) };
        let x =
            self.forward_layers(&context, input, Arc::new(positions), cache.as_deref_mut(), checkpointing)?;
        if let Some(cache) = cache {
            match lengths {
                Some(lengths) => cache.advance(lengths.iter().copied()),
                None => cache.advance(std::iter::repeat_n(time, batch)),
            }
        }
        Ok(x)
    }

    /// Runs all layers with given positions.
    pub(crate) fn forward_layers(
        &self,
        context: &ForwardContext<'_>,
        input: Input,
        positions: Arc<PositionInfo>,
        mut cache: Option<&mut Cache>,
        checkpointing: ActivationCheckpointing,
    ) -> Result<DTensor, NnError> {
        let structure = &self.structure;
        let prefetch = structure.plan.usage().prefetch;
        if prefetch > 0 {
            self.prefetch_layers(0..prefetch)?;
        }
        let mut x = match input {
            Input::Tokens(tokens) => structure.plan.leave_block(self.embed(context, &tokens, &positions)?)?,
            Input::Hidden(hidden) => hidden,
        };
        for index in 0..structure.layers.len() {
            x = self.hook_input(index, x, context)?;
            if prefetch > 0 {
                self.prefetch_layers(index + prefetch..index + prefetch + 1)?;
            }
            x = match (&mut cache, checkpointing) {
                (None, ActivationCheckpointing::Full) => {
                    self.forward_layer_checkpointed(index, x, &positions, context)?
                }
                (cache, _) => {
                    let cache = cache.as_deref_mut().map(|cache| (cache, index));
                    structure.forward_layer(context, index, x, &positions, cache)?
                }
            };
            x = self.hook_output(index, x)?;
        }
        match &structure.last_norm {
            Some(norm) => structure.plan.enter_block(norm.forward(context, &structure.config.norm, &x)?),
            None => Ok(x),
        }
    }

    /// Runs a layer of which the tape keeps only the input.
    fn forward_layer_checkpointed(
        &self,
        index: usize,
        x: DTensor,
        positions: &Arc<PositionInfo>,
        context: &ForwardContext<'_>,
    ) -> Result<DTensor, NnError> {
        let dropout = context.dropout();
        let (structure, positions) = (Arc::clone(&self.structure), Arc::clone(positions));
        let indices = structure.layers[index].parameters.clone();
        let parameters = self.parameters()[indices.clone()].to_vec();
        let number = structure.stage.layers.start + index;
        let adapters = context.adapters().to_owned_below(&format!("model.layers.{number}."));
        let trained: Vec<DTensor> = parameters
            .iter()
            .map(|(_, value)| value)
            .chain(adapters.tensors())
            .filter(|value| value.tracks_gradient())
            .cloned()
            .collect();
        let outputs = recompute(&[x], &trained, move |x| {
            let x = adapters.with(|adapters| {
                let context = ForwardContext {
                    structure: &structure,
                    parameters: &parameters,
                    first_parameter: indices.start,
                    adapters,
                    dropout,
                    gradient_reduction: GradientReduction::Deferred,
                };
                structure.forward_layer(&context, index, x[0].clone(), &positions, None)
            });
            Ok(vec![x?])
        })?;
        outputs.into_iter().next().ok_or_else(|| self.structure.wrong_stage("compute a layer"))
    }

    /// The positions of single-token rows, `[tokens, 1]`.
    pub(crate) fn position_info(
        &self,
        tokens: &DTensor,
        positions: Vec<usize>,
    ) -> Result<PositionInfo, NnError> {
        let (structure, dims) = (&self.structure, [positions.len(), 1]);
        let rope = structure.rope.as_ref();
        PositionInfo::new(&structure.dist, tokens.layout(), rope, dims, positions, tokens.device())
    }

    /// Checks that rows fit into the positions, if they have an end.
    pub(crate) fn check_length(
        &self,
        starts: &[usize],
        lengths: Option<&[usize]>,
        time: usize,
    ) -> Result<(), NnError> {
        let end = |(row, start): (usize, &usize)| {
            start + lengths.and_then(|lengths| lengths.get(row)).copied().unwrap_or(time)
        };
        let needed = starts.iter().enumerate().map(end).max().unwrap_or(0);
        match self.structure.config.position_limit() {
            Some(available) if needed > available => Err(NnError::TooLong { needed, available }),
            _ => Ok(()),
        }
    }
}
