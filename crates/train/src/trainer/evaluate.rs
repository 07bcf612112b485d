//! Evaluation during training: held-out loss and generated samples.

use weightloom_gang::Gang;
use weightloom_hub::text::{Special, SpecialText, Tokenizer};
use weightloom_nn::{GenerateRequest, Generation, Sampling};
use weightloom_tensor::no_grad;

use super::batch::micro_batches;
use crate::callback::Evaluation;
use crate::config::{Config, SampleConfig};
use crate::data::{Loader, Row};
use crate::engine::Engine;
use crate::error::TrainError;
use crate::parallel_dims::ParallelDims;

/// The evaluation rows of this rank.
pub(super) struct HeldOut {
    rows: Vec<Row>,
    micro_rows: usize,
    /// The step of the last evaluation.
    pub(super) evaluated_step: Option<u64>,
}

impl HeldOut {
    pub(super) fn new(
        config: &Config,
        loader: &Loader,
        dims: &ParallelDims,
        gang: &dyn Gang,
    ) -> Result<Self, TrainError> {
        let (micro_rows, dp) = (dims.micro_batch_size, dims.dp());
        let mut rows = loader.eval_rows(config.train.eval.max_rows)?;
        if let Some(first) = rows.first() {
            // Ranks process the same number of rows; some are empty.
            let size = first.inputs.len();
            let empty = Row::empty(size, 0);
            rows.resize(rows.len().next_multiple_of(micro_rows * dp), empty);
        }
        // In mesh order, tensor-parallel neighbours share rows.
        let own = gang.rank() / dims.tp % dp;
        let rows = rows.into_iter().skip(own).step_by(dp).collect();
        Ok(Self { rows, micro_rows, evaluated_step: None })
    }

    /// Computes the loss and generates samples. Called by every rank.
    pub(super) fn evaluate(
        &self,
        engine: &Engine,
        config: &Config,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<Evaluation, TrainError> {
        let mut evaluation = Evaluation::default();
        if !self.rows.is_empty() {
            let micros = micro_batches(&self.rows, self.micro_rows, engine)?;
            let targets = engine.count_targets(&micros)?;
            let sum = engine.loss(engine.eval_loss(&micros)?)?;
            evaluation.loss = Some(sum / (targets as f64).max(1.0));
            evaluation.targets = targets;
        }
        let samples = &config.train.eval.samples;
        if let (Some(tokenizer), false) = (tokenizer, samples.prompts.is_empty() || engine.stage_count > 1) {
            evaluation.samples = generate_samples(engine, samples, tokenizer, config.train.seed)?;
        }
        Ok(evaluation)
    }
}

/// Generates text for each prompt.
fn generate_samples(
    engine: &Engine,
    config: &SampleConfig,
    tokenizer: &Tokenizer,
    seed: u64,
) -> Result<Vec<(String, String)>, TrainError> {
    let Some(stage) = engine.stages().first() else { return Ok(Vec::new()) };
    let mut samples = Vec::with_capacity(config.prompts.len());
    for prompt in &config.prompts {
        let mut tokens = tokenizer.encode(prompt, Special::Add).map_err(weightloom_hub::HubError::from)?;
        if tokens.is_empty() {
            tokens.extend(tokenizer.bos().or_else(|| tokenizer.eos().first().copied()));
        }
        let request = GenerateRequest {
            prompts: vec![tokens],
            max_new_tokens: config.max_new_tokens,
            sampling: Sampling { temperature: config.temperature, seed, ..Sampling::default() },
            stop_tokens: tokenizer.eos().to_vec(),
            ..GenerateRequest::default()
        };
        let adapter = stage.adapter.as_ref().map(|adapter| (adapter, 1.0));
        let made = no_grad(|| Generation::new(&stage.decoder, adapter, request)?.run())?;
        let tokens = made.into_iter().next().map(|made| made.tokens).unwrap_or_default();
        samples.push((prompt.clone(), tokenizer.decode(&tokens, SpecialText::Skip)));
    }
    Ok(samples)
}
