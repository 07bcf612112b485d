//! The local backend: base and tuned model on our own engine.
//!
//! Each question becomes a token sequence that one or two variants of the model
//! score or continue. Equal sequences are scored once. All variants of a
//! sequence share a batch, so that the weights of the base are read once for
//! all of them, and logits are computed only where needed. An answer does not
//! depend, to the last bit, on the other questions.

mod batch;
pub(super) mod chat;
mod engine;
mod generation;
pub(super) mod identity;
mod logits;
pub(super) mod pending_rows;
pub(super) mod request;
mod schedule;
pub(super) mod score_answer;
mod scoring;
mod variant;

use std::path::PathBuf;
use std::sync::OnceLock;

use weightloom_checkpoint::Source;
use weightloom_checkpoint::storage::ReadMode;
use weightloom_hub::{HubError, Model, TrainingData};
use weightloom_layout::DType;
use weightloom_tensor::Device;

use super::distinct::DistinctQuestions;
use super::preflight::first_problem;
use super::{AnswerSink, Backend, Capabilities, Capability, Description};
use crate::chat::ChatSupport;
use crate::error::BackendError;
use crate::question::Question;
use crate::view::View;
use engine::Engine;
use request::{Request, RequestBuilder, SequenceLimits};

/// The tuned model of a [`LocalBackend`].
#[derive(Clone, Debug)]
pub enum Tuned {
    /// There is none: only the base answers.
    None,
    /// The base with a PEFT or MLX adapter from this folder.
    Adapter(PathBuf),
    /// A separate model.
    Model(Box<Model>),
}

/// Precision and batch sizes of a [`LocalBackend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalOptions {
    /// Data type of the weights and the computation.
    pub dtype: DType,
    /// Device that holds the weights and computes.
    pub device: Device,
    /// How weights are read from files.
    pub read_mode: Option<ReadMode>,
    /// Most tokens in a scoring batch.
    pub max_batch_tokens: usize,
    /// Most sequences in a generation batch.
    pub max_batch_size: usize,
    /// Most prompt and generated tokens in a generation batch.
    pub max_batch_positions: usize,
    /// Most memory for temporary adapters, such as noise.
    pub max_adapter_bytes: usize,
}

impl Default for LocalOptions {
    fn default() -> Self {
        Self {
            dtype: DType::F32,
            device: Device::Cpu,
            read_mode: None,
            max_batch_tokens: 1024,
            max_batch_size: 64,
            max_batch_positions: 2560,
            max_adapter_bytes: 256 << 20,
        }
    }
}

/// Answers questions with our own engine.
pub struct LocalBackend {
    description: Description,
    base_identity: String,
    base: Model,
    tuned: Tuned,
    options: LocalOptions,
    /// How the data that the model was fine-tuned on were formatted, if known.
    training_data: Option<TrainingData>,
    /// Found out when first needed: it takes the tokenizer.
    chat_support: OnceLock<ChatSupport>,
    /// Loaded with the first question: all answers may be cached.
    engine: Option<Engine>,
}

impl LocalBackend {
    /// Opens the models. `kind` is the name of the backend in a suite file.
    /// Weights are loaded with the first question.
    pub fn new(kind: &str, base: Model, tuned: Tuned, options: LocalOptions) -> Result<Self, BackendError> {
        let (name, source) = match &tuned {
            Tuned::None => (None, None),
            Tuned::Adapter(folder) => {
                let source = Source::open(folder).map_err(|error| BackendError::new(kind, &error))?;
                (Some(folder.display().to_string()), Some(source))
            }
            Tuned::Model(model) => (Some(model.name().to_owned()), Some(model.source().clone())),
        };
        let tokenizer = match &tuned {
            Tuned::Adapter(folder) if engine::has_tokenizer(folder) => source.as_ref(),
            _ => None,
        };
        let identity = identity::identity(&base, source.as_ref(), tokenizer, &options)
            .map_err(|error| BackendError::new(kind, &error))?;
        let mut capabilities = capabilities(&tuned);
        if engine::templates(&base, &tuned).is_ok_and(|templates| !templates.is_empty()) {
            capabilities.insert(Capability::Chat);
        }
        let description = Description {
            kind: kind.to_owned(),
            base: base.name().to_owned(),
            adapter: name,
            capabilities,
            notes: notes(&tuned),
            identity: Some(identity.pair),
        };
        let training_data = training_data(&base, &tuned).map_err(|error| BackendError::new(kind, &error))?;
        Ok(Self {
            description,
            base_identity: identity.base,
            base,
            tuned,
            options,
            training_data,
            chat_support: OnceLock::new(),
            engine: None,
        })
    }

    /// Loads the weights unless they are loaded.
    pub fn load(&mut self) -> Result<(), BackendError> {
        self.engine().map(drop)
    }

    fn engine(&mut self) -> Result<&Engine, BackendError> {
        match &mut self.engine {
            Some(engine) => Ok(engine),
            empty => {
                let loaded = Engine::load(&self.base, &self.tuned, &self.options);
                Ok(empty.insert(loaded.map_err(|error| BackendError::new(&self.description.kind, &error))?))
            }
        }
    }
}

/// The training record of the tuned side, or of a base alone.
fn training_data(base: &Model, tuned: &Tuned) -> Result<Option<TrainingData>, HubError> {
    match tuned {
        Tuned::None => base.training_data(),
        Tuned::Adapter(folder) => Ok(TrainingData::from_folder(folder)?),
        Tuned::Model(model) => model.training_data(),
    }
}

fn capabilities(tuned: &Tuned) -> Capabilities {
    use Capability::{
        Attributable, CacheIdentity, Differential, Embedding, FullVocabulary, MatchedNoise, NullCalibrated,
        Preflight, Scalable, Tokenizer,
    };
    let mut all = Capabilities::from([Preflight, CacheIdentity, FullVocabulary, Embedding, Tokenizer]);
    match tuned {
        Tuned::None => {}
        Tuned::Model(_) => all.extend([Differential]),
        Tuned::Adapter(_) => {
            all.extend([Differential, Scalable, NullCalibrated, MatchedNoise, Attributable]);
        }
    }
    all
}

fn notes(tuned: &Tuned) -> Vec<String> {
    match tuned {
        Tuned::None => vec!["no tuned model: only the base answers".to_owned()],
        Tuned::Adapter(_) => Vec::new(),
        Tuned::Model(_) => vec![
            "the tuned model is a full checkpoint: scaled, noise and ablated views are not available"
                .to_owned(),
        ],
    }
}

impl Backend for LocalBackend {
    fn description(&self) -> &Description {
        &self.description
    }

    fn answer(&mut self, questions: &[Question], sink: &mut dyn AnswerSink) -> Result<(), BackendError> {
        if questions.is_empty() {
            return Ok(());
        }
        let (options, kind) = (self.options, self.description.kind.clone());
        let engine = self.engine()?;
        let distinct = DistinctQuestions::of(questions);
        let mut sink = distinct.sink(sink);
        let definitions = [Some(engine.base.definition()), engine.tuned_definition()];
        let limits = definitions.into_iter().flatten().map(SequenceLimits::of).collect();
        let builder = RequestBuilder::new(&engine.tokenizer, engine.template(), limits);
        let mut requests: Vec<(usize, Request)> = Vec::new();
        for (index, question) in distinct.iter() {
            let request = builder.build(question).and_then(|request| {
                request.views().try_for_each(|view| engine.check_view(&kind, view))?;
                Ok(request)
            });
            match request {
                Ok(request) => requests.push((index, request)),
                Err(error) => sink.answered(index, Err(error)),
            }
        }
        schedule::run_all(engine, &options, &requests, &mut sink)
            .map_err(|error| BackendError::new(&kind, &error))
    }

    fn base_identity(&self) -> Option<String> {
        Some(self.base_identity.clone())
    }

    fn layers(&self) -> Vec<String> {
        match (&self.tuned, self.base.definition()) {
            // The engine's names, whatever the checkpoint calls them.
            (Tuned::Adapter(_), Ok(definition)) => {
                (0..definition.layers()).map(|layer| format!("model.layers.{layer}")).collect()
            }
            _ => Vec::new(),
        }
    }

    fn chat_support(&self) -> ChatSupport {
        let found = || chat::support(&self.base, &self.tuned, self.training_data.as_ref());
        self.chat_support.get_or_init(found).clone()
    }

    fn preflight(&mut self) -> Result<(), BackendError> {
        let is_pair = self.description.capabilities.contains(&Capability::Differential);
        let views = if is_pair { &[View::Base, View::Tuned][..] } else { &[View::Base] };
        match first_problem(self, views, 8)? {
            None => Ok(()),
            Some(error) => Err(BackendError {
                backend: self.description.kind.clone(),
                message: error.to_string(),
                hint: Some("check the weights and the adapter, or compute in f32".to_owned()),
            }),
        }
    }
}
