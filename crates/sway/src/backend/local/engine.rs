//! The base and tuned model in memory.

use std::path::Path;
use std::sync::Arc;

use weightloom_checkpoint::Source;
use weightloom_hub::text::{ChatContext, ChatTemplate, ChatTemplates, Tokenizer};
use weightloom_hub::{HubError, Model, ModelLoadOptions};
use weightloom_nn::{self as nn, Adapter, ModelDefinition, NnError};

use super::variant::{Side, Variant, variant};
use super::{LocalOptions, Tuned};
use crate::error::QueryError;
use crate::view::View;

/// The base and tuned model in memory.
pub(super) struct Engine {
    pub(super) base: Box<dyn nn::Model>,
    tuned: TunedWeights,
    pub(super) tokenizer: Tokenizer,
    templates: ChatTemplates,
    /// Tokens that end a generation.
    pub(super) stop: Vec<u32>,
    /// Tokens that end an answer in a chat.
    pub(super) turn_stop: Vec<u32>,
    pub(super) repetition_penalty: f64,
}

/// The tuned model.
enum TunedWeights {
    None,
    Adapter(Arc<Adapter>),
    Model(Box<dyn nn::Model>),
}

impl Engine {
    /// Loads all weights.
    pub(super) fn load(model: &Model, side: &Tuned, options: &LocalOptions) -> Result<Self, HubError> {
        let load_options = || ModelLoadOptions {
            dtype: Some(options.dtype),
            device: options.device,
            read_mode: options.read_mode,
            ..ModelLoadOptions::default()
        };
        let base = model.load(&load_options(), &())?.model;
        let mut adapter_tokenizer = None;
        let tuned = match side {
            Tuned::None => TunedWeights::None,
            Tuned::Adapter(folder) => {
                let adapter = model.adapter(&*base, &Source::open(folder)?, &())?;
                adapter_tokenizer = tokenizer_of(folder)?;
                TunedWeights::Adapter(Arc::new(adapter))
            }
            Tuned::Model(other) => TunedWeights::Model(other.load(&load_options(), &())?.model),
        };
        let tokenizer = adapter_tokenizer.map_or_else(|| model.tokenizer(), Ok)?;
        let defaults = model.generation_defaults()?;
        let stop = [defaults.eos, model.config_eos(), tokenizer.eos().to_vec()];
        let stop = stop.into_iter().find(|eos| !eos.is_empty()).unwrap_or_default();
        // A broken template is no obstacle to plain text.
        let templates = templates(model, side).unwrap_or_default();
        let mut turn_stop = stop.clone();
        if let Some(template) = templates.pick(&ChatContext::default()) {
            turn_stop.extend(template.end_of_turn_token(&tokenizer)?);
        }
        Ok(Self {
            base,
            tuned,
            templates,
            stop,
            turn_stop,
            repetition_penalty: defaults.repetition_penalty.unwrap_or(1.0),
            tokenizer,
        })
    }

    /// The template that messages are rendered with.
    pub(super) fn template(&self) -> Option<&ChatTemplate> {
        self.templates.pick(&ChatContext::default())
    }

    pub(super) fn model(&self, side: Side) -> &dyn nn::Model {
        match (&self.tuned, side) {
            (TunedWeights::Model(tuned), Side::Tuned) => &**tuned,
            _ => &*self.base,
        }
    }

    /// The definition of the tuned model, if it is a separate one.
    pub(super) fn tuned_definition(&self) -> Option<&dyn ModelDefinition> {
        match &self.tuned {
            TunedWeights::Model(tuned) => Some(tuned.definition()),
            _ => None,
        }
    }

    /// Checks that a view exists and has valid parameters.
    pub(super) fn check_view(&self, backend: &str, view: &View) -> Result<(), QueryError> {
        let is_supported = match (&self.tuned, view) {
            (_, View::Base) | (TunedWeights::Adapter(_), _) => true,
            (TunedWeights::Model(_), View::Tuned) => true,
            (TunedWeights::None | TunedWeights::Model(_), _) => false,
        };
        if !is_supported {
            let query = format!("queries of the view `{view}`");
            return Err(QueryError::Unsupported { backend: backend.to_owned(), query });
        }
        view.check()
    }

    /// The variant of a view.
    pub(super) fn variant(&self, view: &View) -> Result<Variant, NnError> {
        match (&self.tuned, view) {
            (TunedWeights::Adapter(adapter), view) => variant(view, &*self.base, adapter),
            (TunedWeights::Model(_), View::Tuned) => Ok(Variant::plain(Side::Tuned)),
            _ => Ok(Variant::plain(Side::Base)),
        }
    }

    /// Memory of an adapter like the tuned one.
    pub(super) fn adapter_bytes(&self) -> usize {
        match &self.tuned {
            TunedWeights::Adapter(adapter) => adapter.bytes(),
            _ => 0,
        }
    }
}

/// The tokenizer in the folder of an adapter.
fn tokenizer_of(folder: &Path) -> Result<Option<Tokenizer>, HubError> {
    has_tokenizer(folder).then(|| Ok(Tokenizer::from_folder(folder)?)).transpose()
}

/// Whether the folder of an adapter has a tokenizer, which replaces the
/// base's.
pub(super) fn has_tokenizer(folder: &Path) -> bool {
    ["tokenizer_config.json", "tokenizer.json"].into_iter().all(|name| folder.join(name).is_file())
}

/// The chat templates of the tuned side, or else those of the base. Both sides
/// see the same messages, so both use these.
pub(super) fn templates(base: &Model, tuned: &Tuned) -> Result<ChatTemplates, HubError> {
    let own = match tuned {
        Tuned::None => ChatTemplates::default(),
        Tuned::Adapter(folder) => ChatTemplates::from_folder(folder)?,
        Tuned::Model(model) => model.chat_templates()?,
    };
    if own.is_empty() { base.chat_templates() } else { Ok(own) }
}
