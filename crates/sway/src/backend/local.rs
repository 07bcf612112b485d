//! Answers from our own engine.
//!
//! Every question becomes a text that one or two variants of the model read or
//! write on. Texts that are asked several times are read once; all variants of
//! a text are rows of one pass, so that the base's weights are read once for all
//! of them; logits are computed where something is asked, a block at a time. A
//! question's answer is the same bits whatever else is asked.

mod chunks;
mod engine;
pub(super) mod identity;
mod jobs;
mod noise;
mod reading;
mod rows;
mod variant;
mod work;
mod writing;

use std::collections::BTreeMap;
use std::path::PathBuf;

use weightloom_checkpoint::storage::ReadMode;
use weightloom_checkpoint::{CheckpointError, Source};
use weightloom_errors::Hint;
use weightloom_hub::{HubError, Model};
use weightloom_layout::DType;
use weightloom_nn::NnError;

use super::preflight::first_problem;
use super::{AnswerSink, Backend, Capabilities, Capability, Description};
use crate::answer::Answer;
use crate::error::{QueryError, SwayError};
use crate::question::Question;
use crate::view::View;
use engine::Engine;
use jobs::{Clerk, Job};

/// What the base became.
#[derive(Clone, Debug)]
pub enum Tuned {
    /// Nothing: there is the base alone.
    Nothing,
    /// The base with an adapter, PEFT's or MLX's, from this folder.
    Adapter(PathBuf),
    /// Another model.
    Model(Box<Model>),
}

/// How much is done at once, and in what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalOptions {
    /// What weights are held and computed in.
    pub dtype: DType,
    /// How weights come from files.
    pub way: Option<ReadMode>,
    /// The most tokens that are read at once.
    pub tokens_per_chunk: usize,
    /// The most texts that are written on at once.
    pub rows_per_batch: usize,
    /// The most tokens, read and written, that are kept for them.
    pub positions_per_batch: usize,
    /// The most memory for changes that are made for a while: noise.
    pub adapter_bytes: usize,
}

impl Default for LocalOptions {
    fn default() -> Self {
        Self {
            dtype: DType::F32,
            way: None,
            tokens_per_chunk: 1024,
            rows_per_batch: 64,
            positions_per_batch: 2560,
            adapter_bytes: 256 << 20,
        }
    }
}

/// A model, and what it became, on our own engine.
pub struct LocalBackend {
    description: Description,
    /// The name of the base alone.
    base_identity: String,
    base: Model,
    tuned: Tuned,
    options: LocalOptions,
    /// Weights are read when they are needed: answers may all be known.
    engine: Option<Engine>,
}

impl LocalBackend {
    /// A backend of a kind, as a suite file calls it. Files are looked at, but
    /// weights are loaded with the first question.
    pub fn new(kind: &str, base: Model, tuned: Tuned, options: LocalOptions) -> Result<Self, SwayError> {
        let failed = |message: String, hint: Option<String>| SwayError::Backend {
            backend: kind.to_owned(),
            message,
            hint,
        };
        let of_checkpoint = |error: CheckpointError| failed(error.to_string(), error.hint());
        let (name, source) = match &tuned {
            Tuned::Nothing => (None, None),
            Tuned::Adapter(folder) => {
                (Some(folder.display().to_string()), Some(Source::open(folder).map_err(of_checkpoint)?))
            }
            Tuned::Model(model) => (Some(model.name().to_owned()), Some(model.source().clone())),
        };
        let words = match &tuned {
            Tuned::Adapter(folder) if engine::has_tokenizer(folder) => source.as_ref(),
            _ => None,
        };
        let identity = identity::identity(&base, source.as_ref(), words, options.dtype)
            .map_err(|error| failed(error.to_string(), error.hint()))?;
        let description = Description {
            kind: kind.to_owned(),
            base: base.name().to_owned(),
            adapter: name,
            capabilities: capabilities(&tuned),
            notes: notes(&tuned),
            identity: Some(identity.pair),
        };
        Ok(Self { description, base_identity: identity.base, base, tuned, options, engine: None })
    }

    fn failed(&self, message: String, hint: Option<String>) -> SwayError {
        SwayError::Backend { backend: self.description.kind.clone(), message, hint }
    }

    /// Reads the weights, if that is still to be done. Later calls do nothing.
    pub fn load(&mut self) -> Result<(), SwayError> {
        if self.engine.is_none() {
            let loaded = Engine::load(&self.base, &self.tuned, &self.options);
            let failed = |error: HubError| self.failed(error.to_string(), error.hint());
            self.engine = Some(loaded.map_err(failed)?);
        }
        Ok(())
    }
}

fn capabilities(tuned: &Tuned) -> Capabilities {
    use Capability::{
        Attributable, CacheIdentity, Differential, Embedding, FullVocabulary, MatchedNoise, NullCalibrated,
        Preflight, Scalable, Tokenizer,
    };
    let mut all = Capabilities::from([Preflight, CacheIdentity, FullVocabulary, Embedding, Tokenizer]);
    match tuned {
        Tuned::Nothing => {}
        Tuned::Model(_) => all.extend([Differential]),
        Tuned::Adapter(_) => {
            all.extend([Differential, Scalable, NullCalibrated, MatchedNoise, Attributable]);
        }
    }
    all
}

fn notes(tuned: &Tuned) -> Vec<String> {
    match tuned {
        Tuned::Nothing => vec!["there is no tuned model: the base alone answers".to_owned()],
        Tuned::Adapter(_) => Vec::new(),
        Tuned::Model(_) => vec![
            "the tuned model is a checkpoint of its own: parts of the change, and noise in its place, cannot be asked"
                .to_owned(),
        ],
    }
}

impl Backend for LocalBackend {
    fn description(&self) -> &Description {
        &self.description
    }

    fn answer(&mut self, questions: &[Question], sink: &mut dyn AnswerSink) -> Result<(), SwayError> {
        if questions.is_empty() {
            return Ok(());
        }
        self.load()?;
        let Some(engine) = &self.engine else { return Ok(()) };
        let mut places: BTreeMap<&Question, Vec<usize>> = BTreeMap::new();
        for (place, question) in questions.iter().enumerate() {
            places.entry(question).or_default().push(place);
        }
        let places: Vec<(&Question, Vec<usize>)> = places.into_iter().collect();
        let mut tell = |question: usize, answer: Result<Answer, QueryError>| {
            for &place in &places[question].1 {
                sink.answered(place, answer.clone());
            }
        };
        let configs = [Some(engine.base.config()), engine.tuned_config()];
        let clerk = Clerk::new(&engine.tokenizer, configs.into_iter().flatten().collect());
        let mut jobs: Vec<(usize, Job)> = Vec::new();
        for (number, (question, _)) in places.iter().enumerate() {
            let job = clerk.job(question).and_then(|job| {
                job.views().try_for_each(|view| engine.able(&self.description.kind, view))?;
                Ok(job)
            });
            match job {
                Ok(job) => jobs.push((number, job)),
                Err(error) => tell(number, Err(error)),
            }
        }
        let done = work::work(engine, &self.options, &jobs, &mut tell);
        done.map_err(|error: NnError| self.failed(error.to_string(), error.hint()))
    }

    fn base_identity(&self) -> Option<String> {
        Some(self.base_identity.clone())
    }

    fn layers(&self) -> Vec<String> {
        match (&self.tuned, self.base.decoder_config()) {
            // As our own engine names them, whatever the files say.
            (Tuned::Adapter(_), Ok(config)) => {
                (0..config.layers).map(|layer| format!("model.layers.{layer}")).collect()
            }
            _ => Vec::new(),
        }
    }

    fn preflight(&mut self) -> Result<(), SwayError> {
        let differs = self.description.capabilities.contains(&Capability::Differential);
        let views = if differs { &[View::Base, View::Tuned][..] } else { &[View::Base] };
        match first_problem(self, views, 8)? {
            None => Ok(()),
            Some(error) => {
                let hint = "check the weights and the adapter, or compute in f32".to_owned();
                Err(self.failed(error.to_string(), Some(hint)))
            }
        }
    }
}
