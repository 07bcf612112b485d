//! Evaluation during training: the losses of held-out data, and generated samples.

use std::collections::BTreeMap;
use std::ops::Range;

use weightloom_gang::Gang;
use weightloom_hub::text::{SpecialText, Tokenizer};
use weightloom_nn::{GenerateRequest, Generation, Sampling};
use weightloom_tensor::no_grad;

use super::batch::micro_batches;
use super::reference::{ReferenceLogprobs, ReferencePass};
use crate::callback::{Callback, Evaluation, SetLoss};
use crate::config::{Config, SampleConfig};
use crate::data::{DocumentsRead, Loader, Row};
use crate::engine::{Engine, EvalTotals, MicroBatch, SampleRequest};
use crate::error::TrainError;
use crate::parallel_dims::ParallelDims;

/// The evaluation sets of a run, which are read anew for each evaluation, and the
/// prompts of samples.
pub(super) struct HeldOut {
    sets: Vec<HeldOutSet>,
    /// Prompts, and their tokens as the data has prompts.
    prompts: Vec<(String, Vec<u32>)>,
    pub(super) micro_rows: usize,
    /// Data-parallel ranks, and which of them this one is.
    dp: usize,
    dp_rank: usize,
    max_rows: Option<usize>,
    /// The step of the last evaluation.
    pub(super) evaluated_step: Option<u64>,
}

/// An evaluation set.
struct HeldOutSet {
    /// `None` for the main set, `data.eval_paths`.
    name: Option<String>,
    loader: Loader,
    /// The documents of the rows that are used.
    documents: DocumentsRead,
    /// The log-probabilities of its documents under the initial weights.
    reference: Option<ReferenceLogprobs>,
}

impl HeldOut {
    pub(super) fn new(
        config: &Config,
        loader: &Loader,
        dims: &ParallelDims,
        gang: &dyn Gang,
    ) -> Result<Self, TrainError> {
        let max_rows = Some(config.train.eval.max_rows).filter(|rows| *rows > 0);
        let mut sets = Vec::new();
        for (name, mut loader) in loader.evaluation_sets()? {
            let documents = loader.account(max_rows)?;
            documents.check_dropped(config.data.max_dropped)?;
            sets.push(HeldOutSet { name, loader, documents, reference: None });
        }
        let mut prompts = Vec::new();
        for prompt in &config.train.eval.samples.prompts {
            prompts.extend(loader.encode_prompt(prompt)?.map(|tokens| (prompt.clone(), tokens)));
        }
        let dp = dims.dp();
        // In mesh order, tensor-parallel neighbours share rows.
        let dp_rank = gang.rank() / dims.tp % dp;
        let micro_rows = dims.micro_batch_size;
        Ok(Self { sets, prompts, micro_rows, dp, dp_rank, max_rows, evaluated_step: None })
    }

    /// Computes the log-probabilities of all evaluated documents under the initial
    /// weights. Called by every rank.
    pub(super) fn compute_reference(
        &mut self,
        pass: &ReferencePass<'_>,
        callbacks: &mut [Box<dyn Callback + '_>],
    ) -> Result<(), TrainError> {
        for HeldOutSet { name, loader, documents, reference } in &mut self.sets {
            let file = name.as_ref().map_or_else(|| "eval".to_owned(), |name| format!("eval_{name}"));
            let documents = loader.document_count().min(documents.read as usize);
            *reference = Some(pass.run(&file, loader, documents, callbacks)?);
        }
        Ok(())
    }

    /// The documents of the main set, if there is one.
    pub(super) fn documents(&self) -> Option<DocumentsRead> {
        self.sets.iter().find(|set| set.name.is_none()).map(|set| set.documents.clone())
    }

    /// The documents of the other sets.
    pub(super) fn documents_of_sets(&self) -> BTreeMap<String, DocumentsRead> {
        let named = |set: &HeldOutSet| Some((set.name.clone()?, set.documents.clone()));
        self.sets.iter().filter_map(named).collect()
    }

    /// Computes the losses and generates samples. Called by every rank.
    pub(super) fn evaluate(
        &mut self,
        engine: &Engine,
        config: &Config,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<Evaluation, TrainError> {
        let mut evaluation = Evaluation::default();
        let shares = Shares {
            micro_rows: self.micro_rows,
            dp: self.dp,
            dp_rank: self.dp_rank,
            max_rows: self.max_rows.unwrap_or(usize::MAX),
        };
        for set in &mut self.sets {
            let found = shares.loss(set, engine)?;
            match &set.name {
                None => {
                    (evaluation.loss, evaluation.targets) = (Some(found.loss), found.targets);
                    evaluation.metrics = found.metrics;
                }
                Some(name) => {
                    evaluation.sets.insert(name.clone(), found);
                }
            }
        }
        if evaluation.loss.is_none() && !evaluation.sets.is_empty() {
            let losses = evaluation.sets.values().map(|set| set.loss);
            evaluation.loss = Some(losses.sum::<f64>() / evaluation.sets.len() as f64);
            evaluation.targets = evaluation.sets.values().map(|set| set.targets).sum();
        }
        if let Some(tokenizer) = tokenizer {
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
            let sampling = Sampling { temperature, seed, ..Sampling::default() };
            if engine.stage_count > 1 {
                let request =
                    SampleRequest { prompt: tokens, max_new_tokens, sampling, stop_tokens: tokenizer.eos() };
                let made = engine.generate(&request)?;
                samples.push((prompt.clone(), tokenizer.decode(&made, SpecialText::Skip)));
                continue;
            }
            let request = GenerateRequest {
                prompts: vec![tokens.clone()],
                max_new_tokens,
                sampling,
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

/// How ranks share the rows of a set: in turn, so many micro-batches later.
#[derive(Clone, Copy)]
struct Shares {
    micro_rows: usize,
    dp: usize,
    dp_rank: usize,
    max_rows: usize,
}

impl Shares {
    /// The mean loss of a set. Called by every rank. The rows are read twice: losses of
    /// preferences need totals of all of them.
    fn loss(&self, set: &mut HeldOutSet, engine: &Engine) -> Result<SetLoss, TrainError> {
        let mut totals = EvalTotals::default();
        self.each(set, engine, |micros| {
            totals.add(engine.eval_totals(micros)?);
            Ok(())
        })?;
        let (divisor, targets) = engine.begin_evaluation(totals)?;
        let mut share = 0.0;
        self.each(set, engine, |micros| {
            share += engine.eval_share(micros, divisor)?;
            Ok(())
        })?;
        Ok(SetLoss { loss: engine.loss(share)?, targets, metrics: engine.loss_metrics()? })
    }

    /// Passes the rows of a set on, one micro-batch at a time.
    fn each(
        &self,
        set: &mut HeldOutSet,
        engine: &Engine,
        mut work: impl FnMut(&[MicroBatch]) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        let HeldOutSet { loader, reference, .. } = set;
        let at_once = self.micro_rows * self.dp;
        let own: Vec<Range<usize>> =
            (0..self.micro_rows).map(|row| row * self.dp + self.dp_rank).map(|row| row..row + 1).collect();
        let mut first = 0;
        loader.rewind();
        while first < self.max_rows {
            let Some(mut batch) = loader.next_batch(at_once, &own)? else { break };
            // Ranks process the same number of rows; some are empty.
            for (row, place) in batch.rows.iter_mut().zip(&own) {
                if first + place.start >= self.max_rows {
                    *row = Row::empty(row.inputs.len(), 0);
                }
            }
            work(&micro_batches(&batch.rows, self.micro_rows, engine, reference.as_ref())?)?;
            first += at_once;
        }
        Ok(())
    }
}
