//! Generating text through a pipeline, for samples during training.
//!
//! All tokens are computed anew for each new one: no rank has the whole model, and a
//! cache for each stage would be memory that training needs.

use weightloom_dtensor::DTensor;
use weightloom_gang::GangExt;
use weightloom_layout::{DType, Shape};
use weightloom_nn::{ForwardArgs, IGNORED, Sampler, Sampling};
use weightloom_tensor::no_grad;

use super::microbatch::{activation, tag};
use super::{Engine, MicroBatch, StageModel};
use crate::error::TrainError;

/// Row lengths are multiples of this, which tensor-parallel ranks can split.
const LENGTH_STEP: usize = 64;

/// What to generate.
#[derive(Clone, Debug)]
pub struct SampleRequest<'a> {
    /// Tokens of the prompt, at least one.
    pub prompt: &'a [u32],
    /// The most tokens to add.
    pub max_new_tokens: usize,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Tokens that end the text.
    pub stop_tokens: &'a [u32],
}

impl Engine {
    /// Continues a prompt, with the same result on all ranks. Called by every rank.
    pub fn generate(&self, request: &SampleRequest<'_>) -> Result<Vec<u32>, TrainError> {
        let sampler = Sampler::new(request.sampling.clone()).map_err(weightloom_nn::NnError::from)?;
        let last = (self.stage_count - 1) % self.gangs.pp.size();
        let most = self.stages.first().and_then(|stage| stage.model.definition().max_positions());
        let mut tokens = request.prompt.to_vec();
        for drawn in 0..request.max_new_tokens {
            if tokens.is_empty() || most.is_some_and(|most| tokens.len() >= most) {
                break;
            }
            let logits = no_grad(|| self.next_logits(&tokens))?;
            let token = logits.map(|mut logits| sampler.sample(&mut logits, 0, drawn as u64, &tokens));
            let token: u32 = self.gangs.pp.broadcast_object(token.as_ref(), last)?;
            tokens.push(token);
            if request.stop_tokens.contains(&token) {
                break;
            }
        }
        Ok(tokens.split_off(request.prompt.len()))
    }

    /// The logits after a text, on the ranks of the last stage.
    fn next_logits(&self, tokens: &[u32]) -> Result<Option<Vec<f32>>, TrainError> {
        let most = self.stages.first().and_then(|stage| stage.model.definition().max_positions());
        // Later positions do not change earlier ones.
        let length = tokens.len().next_multiple_of(LENGTH_STEP).min(most.unwrap_or(usize::MAX));
        let mut inputs: Vec<i64> = tokens.iter().map(|&token| i64::from(token)).collect();
        inputs.resize(length, 0);
        let batch = MicroBatch { rows: 1, inputs, targets: vec![IGNORED; length], ..MicroBatch::default() };
        let pp = self.gangs.pp.size();
        let mut here = None;
        for stage in &self.stages {
            let number = stage.number;
            let input = match number {
                0 => None,
                _ if pp == 1 => here.take(),
                _ => Some(self.receive(&batch, (number - 1) % pp, tag(activation(number - 1, 0)))?),
            };
            let args = ForwardArgs { adapters: stage.change().into(), ..ForwardArgs::default() };
            let hidden = self.forward_stage(stage, &batch, input.as_ref(), args)?;
            if number + 1 == self.stage_count {
                return last_logits(stage, &hidden, tokens.len() - 1).map(Some);
            } else if pp == 1 {
                here = Some(hidden);
            } else {
                self.send(&hidden, (number + 1) % pp, tag(activation(number, 0)))?;
            }
        }
        Ok(None)
    }
}

/// The logits of a position of the first row.
fn last_logits(stage: &StageModel, hidden: &DTensor, position: usize) -> Result<Vec<f32>, TrainError> {
    let [batch, time, width] = [hidden.shape()[0], hidden.shape()[1], hidden.shape()[2]];
    let rows = hidden.reshape(&Shape::new(&[batch * time, width]).map_err(weightloom_nn::NnError::from)?)?;
    let logits = stage.model.logits(&rows, stage.change().into())?.cast(DType::F32)?.full_tensor()?;
    let vocabulary = stage.model.definition().vocabulary();
    let all = logits.to_vec::<f32>()?;
    Ok(all.into_iter().skip(position * vocabulary).take(vocabulary).collect())
}
