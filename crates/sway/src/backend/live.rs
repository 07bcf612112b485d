//! Models in the memory of the program that judges them.
//!
//! A [`LiveModel`] runs token sequences, in the views that it knows. Everything
//! else is computed here as by the local backend, so that a live model gets the
//! verdict that its saved files would get: tokens, chats, distributions, sampling.

mod generation;
mod scoring;
mod text;

use weightloom_hub::TrainingData;

pub use text::LiveText;

use super::distinct::DistinctQuestions;
use super::local::chat::{ChatFacts, support_of};
use super::local::request::{Request, RequestBuilder, SequenceLimits};
use super::preflight::first_problem;
use super::{AnswerSink, Backend, Capabilities, Capability, Description};
use crate::chat::ChatSupport;
use crate::error::{BackendError, QueryError};
use crate::question::Question;
use crate::view::{Real, View};

/// The kind in reports.
const KIND: &str = "live";

/// A base model and its tuned version, which run token sequences.
pub trait LiveModel: Send {
    /// Runs sequences in a view, in one batch. Returns what is asked of each.
    fn forward(
        &mut self,
        view: &View,
        batch: &[ForwardRequest<'_>],
    ) -> Result<Vec<ForwardOutput>, BackendError>;

    /// Begins to continue prompts in a view. Returns the logits after each, row by
    /// row.
    fn start_generation(&mut self, view: &View, prompts: &[&[u32]]) -> Result<Vec<f32>, BackendError>;

    /// Appends a token to each row of the generation that was started last. Returns
    /// the logits after each.
    fn continue_generation(&mut self, tokens: &[u32]) -> Result<Vec<f32>, BackendError>;
}

/// A sequence, and what is asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardRequest<'a> {
    /// At least one token.
    pub tokens: &'a [u32],
    /// The first token whose log-probability is asked for, with those of all later
    /// ones; at least 1, and the length of the sequence if none is.
    pub scored_from: usize,
    /// Whether the logits after the last token are asked for.
    pub next: bool,
    /// Whether the mean of the last hidden states is asked for.
    pub hidden: bool,
}

/// What was asked of a sequence; the rest is empty.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs)]
pub struct ForwardOutput {
    pub logprobs: Vec<f32>,
    pub next_logits: Vec<f32>,
    pub mean_hidden: Vec<f32>,
}

/// What the tuned side of a [`LiveModel`] is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LiveTuned {
    /// An adapter, with the views that can be made of it.
    Adapter {
        /// [`Capability::Scalable`], [`Capability::NullCalibrated`],
        /// [`Capability::MatchedNoise`] and [`Capability::Attributable`], or some of
        /// them.
        views: Capabilities,
        /// Names of the layers, first to last, for [`View::Without`].
        layers: Vec<String>,
    },
    /// A separate model.
    Model,
}

/// What a [`LiveBackend`] knows about its models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveDescription {
    /// Name of the base model.
    pub base: String,
    /// Name of the adapter or tuned model.
    pub tuned_name: String,
    /// What the tuned side is.
    pub tuned: LiveTuned,
    /// Number of logits of a position.
    pub vocabulary: usize,
    /// The longest sequence.
    pub max_positions: Option<usize>,
    /// How the data that the model was fine-tuned on were formatted, if known.
    pub training_data: Option<TrainingData>,
    /// Limitations that a reader of the report should know.
    pub notes: Vec<String>,
}

/// Batch sizes of a [`LiveBackend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveOptions {
    /// Most tokens in a scoring batch, with padding.
    pub max_batch_tokens: usize,
    /// Most sequences in a generation batch.
    pub max_batch_size: usize,
    /// Most prompt and generated tokens in a generation batch, with padding.
    pub max_batch_positions: usize,
    /// Most memory for distributions that wait for others to be compared with.
    pub max_row_bytes: usize,
}

impl Default for LiveOptions {
    fn default() -> Self {
        Self {
            max_batch_tokens: 1024,
            max_batch_size: 64,
            max_batch_positions: 8192,
            max_row_bytes: 256 << 20,
        }
    }
}

/// Answers questions with a [`LiveModel`].
pub struct LiveBackend<M> {
    model: M,
    description: Description,
    layers: Vec<String>,
    limits: SequenceLimits,
    text: LiveText,
    chat_support: ChatSupport,
    options: LiveOptions,
}

impl<M: LiveModel> LiveBackend<M> {
    /// A backend of a model with its tokenizer. Its answers are not cached: nothing
    /// identifies weights that the program may change.
    pub fn new(model: M, about: LiveDescription, text: LiveText, options: LiveOptions) -> Self {
        use Capability::{Chat, Differential, Embedding, FullVocabulary, Preflight, Tokenizer};
        let mut capabilities =
            Capabilities::from([Preflight, FullVocabulary, Embedding, Tokenizer, Differential]);
        let mut notes = about.notes;
        let (trained, layers) = match about.tuned {
            LiveTuned::Adapter { views, layers } => {
                capabilities.extend(views);
                ("adapter", layers)
            }
            LiveTuned::Model => {
                notes.push(
                    "the tuned model is a whole model: scaled, noise and ablated views are not available"
                        .to_owned(),
                );
                ("model", Vec::new())
            }
        };
        if text.template().is_some() {
            capabilities.insert(Chat);
        }
        let facts = ChatFacts {
            base: &about.base,
            trained,
            has_template: text.template().is_some(),
            record: about.training_data.as_ref(),
        };
        let instruct = || Ok(text.is_instruct()?.then(|| about.base.clone()));
        let chat_support = support_of(facts.decide(instruct));
        let description = Description {
            kind: KIND.to_owned(),
            base: about.base,
            adapter: Some(about.tuned_name),
            capabilities,
            notes,
            identity: None,
        };
        let limits = SequenceLimits { vocabulary: about.vocabulary, max_positions: about.max_positions };
        Self { model, description, layers, limits, text, chat_support, options }
    }

    /// The model.
    pub fn into_model(self) -> M {
        self.model
    }

    /// Checks that a view exists and has valid parameters.
    fn check_view(&self, view: &View) -> Result<(), QueryError> {
        let has = |capability| self.description.capabilities.contains(&capability);
        let is_supported = match view {
            View::Base | View::Tuned => true,
            View::Scaled(_) => has(Capability::Scalable),
            View::Noise { .. } => has(Capability::NullCalibrated),
            View::Matched { .. } => has(Capability::MatchedNoise),
            View::Without { .. } => has(Capability::Attributable),
        };
        if !is_supported {
            let query = format!("queries of the view `{view}`");
            return Err(QueryError::Unsupported { backend: KIND.to_owned(), query });
        }
        view.check()
    }
}

/// The view with the same weights that is simplest to make.
fn simplest(view: &View) -> View {
    match view {
        View::Scaled(Real(0.0)) => View::Base,
        View::Scaled(Real(1.0)) => View::Tuned,
        View::Without { modules } if modules.is_empty() => View::Tuned,
        other => other.clone(),
    }
}

impl<M: LiveModel> Backend for LiveBackend<M> {
    fn description(&self) -> &Description {
        &self.description
    }

    fn answer(&mut self, questions: &[Question], sink: &mut dyn AnswerSink) -> Result<(), BackendError> {
        let distinct = DistinctQuestions::of(questions);
        let mut sink = distinct.sink(sink);
        let builder = RequestBuilder::new(&self.text.tokenizer, self.text.template(), vec![self.limits]);
        let (mut scores, mut generations) = (Vec::new(), Vec::new());
        for (index, question) in distinct.iter() {
            let request = builder.build(question).and_then(|request| {
                request.views().try_for_each(|view| self.check_view(view))?;
                Ok(request)
            });
            match request {
                Ok(Request::Answered(answer)) => sink.answered(index, Ok(answer)),
                Ok(Request::Score(request)) => scores.push((index, request)),
                Ok(Request::Generate(request)) => generations.push((index, request)),
                Err(error) => sink.answered(index, Err(error)),
            }
        }
        scoring::score_all(&mut self.model, &scores, (&self.limits, &self.options), &mut sink)?;
        generation::generate_all(
            &mut self.model,
            &self.text,
            &generations,
            (&self.limits, &self.options),
            &mut sink,
        )
    }

    fn layers(&self) -> Vec<String> {
        self.layers.clone()
    }

    fn chat_support(&self) -> ChatSupport {
        self.chat_support.clone()
    }

    fn preflight(&mut self) -> Result<(), BackendError> {
        match first_problem(self, &[View::Base, View::Tuned], 8)? {
            None => Ok(()),
            Some(error) => Err(BackendError {
                backend: KIND.to_owned(),
                message: error.to_string(),
                hint: Some("check the weights and the adapter, or compute in float32".to_owned()),
            }),
        }
    }
}
