//! Evaluation during training: held-out loss and generated samples.

use weightloom_gang::Gang;
use weightloom_hub::text::{SpecialText, Tokenizer};
use weightloom_nn::{GenerateRequest, Generation, Sampling};
use weightloom_tensor::no_grad;

use super::batch::micro_batches;
use super::reference::ReferenceLogprobs;
use crate::callback::Evaluation;
use crate::config::{Config, SampleConfig};
use crate::data::{DocumentsRead, Loader, Row};
use crate::engine::Engine;
use crate::error::TrainError;
use crate::parallel_dims::ParallelDims;

/// The evaluation rows of this rank, and the prompts of samples.
pub(super) struct HeldOut {
    rows: Vec<Row>,
    /// The documents of the rows of all ranks, if there is evaluation data.
    pub(super) documents: Option<DocumentsRead>,
    /// Prompts, and their tokens as the data has prompts.
    prompts: Vec<(String, Vec<u32>)>,
    /// The number of documents up to the last one that is evaluated.
    pub(super) last_document: usize,
    reference: Option<ReferenceLogprobs>,
    pub(super) micro_rows: usize,
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
        let (mut rows, documents) = loader.eval_rows(config.train.eval.max_rows)?;
        if let Some(documents) = &documents {
            documents.check_dropped(config.data.max_dropped)?;
        }
        let mut prompts = Vec::new();
        for prompt in &config.train.eval.samples.prompts {
            prompts.extend(loader.encode_prompt(prompt)?.map(|tokens| (prompt.clone(), tokens)));
        }
        let documents_of_pairs = rows.iter().filter_map(|row| row.pair.as_ref()).map(|pair| pair.document);
        let last_document = documents_of_pairs.max().map_or(0, |last| last as usize + 1);
        if let Some(first) = rows.first() {
            // Ranks process the same number of rows; some are empty.
            let size = first.inputs.len();
            let empty = Row::empty(size, 0);
            rows.resize(rows.len().next_multiple_of(micro_rows * dp), empty);
        }
        // In mesh order, tensor-parallel neighbours share rows.
        let own = gang.rank() / dims.tp % dp;
        let rows = rows.into_iter().skip(own).step_by(dp).collect();
        let (reference, evaluated_step) = (None, None);
        Ok(Self { rows, documents, prompts, last_document, reference, micro_rows, evaluated_step })
    }

    /// The log-probabilities of the evaluation documents under the initial weights.
    pub(super) fn set_reference(&mut self, reference: ReferenceLogprobs) {
        self.reference = Some(reference);
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
            let micros = micro_batches(&self.rows, self.micro_rows, engine, self.reference.as_ref())?;
            let (loss, targets) = engine.eval_mean(&micros)?;
            evaluation.loss = Some(loss);
            evaluation.targets = targets;
            evaluation.metrics = engine.loss_metrics()?;
        }
        if let (Some(tokenizer), 1) = (tokenizer, engine.stage_count) {
            evaluation.samples = self.samples(engine, config, tokenizer)?;
        }
        Ok(evaluation)
    }

    /// Generates text for each prompt.
    fn samples(
        &self,
        engine: &Engine,
        config: &Config,
        tokenizer: &Tokenizer,
    ) -> Result<Vec<(String, String)>, TrainError> {
        let Some(stage) = engine.stages().first() else { return Ok(Vec::new()) };
        let SampleConfig { max_new_tokens, temperature, .. } = config.train.eval.samples;
        let seed = config.train.seed;
        let mut samples = Vec::with_capacity(self.prompts.len());
        for (prompt, tokens) in &self.prompts {
            let request = GenerateRequest {
                prompts: vec![tokens.clone()],
                max_new_tokens,
                sampling: Sampling { temperature, seed, ..Sampling::default() },
                stop_tokens: tokenizer.eos().to_vec(),
                ..GenerateRequest::default()
            };
            let adapter = stage.adapter.as_ref().map(|adapter| (adapter, 1.0));
            let made = no_grad(|| Generation::new(&*stage.model, adapter, request)?.run())?;
            let tokens = made.into_iter().next().map(|made| made.tokens).unwrap_or_default();
            samples.push((prompt.clone(), tokenizer.decode(&tokens, SpecialText::Skip)));
        }
        Ok(samples)
    }
}
