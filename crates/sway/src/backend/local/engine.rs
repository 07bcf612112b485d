//! A model in memory, before and after its tuning.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use weightloom_checkpoint::Source;
use weightloom_hub::text::Tokenizer;
use weightloom_hub::{HubError, LoadOptions, Model};
use weightloom_nn::{Adapter, Decoder, DecoderConfig, NnError};

use super::variant::{Side, Variant, variant};
use super::{LocalOptions, Tuned};
use crate::error::QueryError;
use crate::view::View;

/// A model in memory.
pub(super) struct Engine {
    pub(super) base: Decoder,
    pub(super) after: After,
    pub(super) tokenizer: Tokenizer,
    /// Tokens that end texts.
    pub(super) stop: Vec<u32>,
    pub(super) repetition_penalty: f64,
}

/// What it is after its tuning.
pub(super) enum After {
    Nothing,
    Adapter(Arc<Adapter>),
    Decoder(Box<Decoder>),
}

impl Engine {
    /// Reads everything into memory.
    pub(super) fn load(model: &Model, tuned: &Tuned, options: &LocalOptions) -> Result<Self, HubError> {
        let how = || LoadOptions { dtype: Some(options.dtype), way: options.way, ..LoadOptions::default() };
        let base = model.load(&how(), &())?.decoder;
        let mut own_tokenizer = None;
        let after = match tuned {
            Tuned::Nothing => After::Nothing,
            Tuned::Adapter(folder) => {
                let adapter = model.adapter(&base, &Source::open(folder)?, &())?;
                own_tokenizer = tokenizer_of(folder)?;
                After::Adapter(Arc::new(adapter))
            }
            Tuned::Model(other) => After::Decoder(Box::new(other.load(&how(), &())?.decoder)),
        };
        let tokenizer = own_tokenizer.map_or_else(|| model.tokenizer(), Ok)?;
        let defaults = model.generation_defaults()?;
        let stop = [defaults.eos, config_ends(model), tokenizer.eos().to_vec()];
        Ok(Self {
            base,
            after,
            stop: stop.into_iter().find(|ends| !ends.is_empty()).unwrap_or_default(),
            repetition_penalty: defaults.repetition_penalty.unwrap_or(1.0),
            tokenizer,
        })
    }

    pub(super) fn decoder(&self, side: Side) -> &Decoder {
        match (&self.after, side) {
            (After::Decoder(tuned), Side::Tuned) => tuned,
            _ => &self.base,
        }
    }

    /// What the other decoder is made of, if there is one.
    pub(super) fn tuned_config(&self) -> Option<&DecoderConfig> {
        match &self.after {
            After::Decoder(tuned) => Some(tuned.config()),
            _ => None,
        }
    }

    /// Why a view cannot be asked, if it cannot.
    pub(super) fn able(&self, backend: &str, view: &View) -> Result<(), QueryError> {
        let able = match (&self.after, view) {
            (_, View::Base) | (After::Adapter(_), _) => true,
            (After::Decoder(_), View::Tuned) => true,
            (After::Nothing | After::Decoder(_), _) => false,
        };
        if !able {
            let query = format!("the view {view}");
            return Err(QueryError::Unsupported { backend: backend.to_owned(), query });
        }
        let numbers = match view {
            View::Scaled(strength) => vec![("part", strength.0, strength.0.is_finite())],
            View::Noise { init_scale, rank_scale, .. } => vec![
                ("deviation", init_scale.0, init_scale.0.is_finite()),
                ("rank factor", rank_scale.0, rank_scale.0.is_finite() && rank_scale.0 > 0.0),
            ],
            _ => Vec::new(),
        };
        match numbers.into_iter().find(|(.., fits)| !fits) {
            None => Ok(()),
            Some((what, value, _)) => {
                Err(QueryError::Failed { message: format!("{value} is no {what} of a change") })
            }
        }
    }

    /// What a view is.
    pub(super) fn variant(&self, view: &View) -> Result<Variant, NnError> {
        match (&self.after, view) {
            (After::Adapter(adapter), view) => variant(view, &self.base, adapter),
            (After::Decoder(_), View::Tuned) => Ok(Variant::plain(Side::Tuned)),
            _ => Ok(Variant::plain(Side::Base)),
        }
    }

    /// The bytes that a change of its own takes.
    pub(super) fn adapter_bytes(&self) -> usize {
        match &self.after {
            After::Adapter(adapter) => adapter.bytes(),
            _ => 0,
        }
    }
}

/// The tokenizer of an adapter, if it has one.
fn tokenizer_of(folder: &Path) -> Result<Option<Tokenizer>, HubError> {
    has_tokenizer(folder).then(|| Ok(Tokenizer::from_folder(folder)?)).transpose()
}

/// Whether the folder of an adapter has a tokenizer, which then is used.
pub(super) fn has_tokenizer(folder: &Path) -> bool {
    ["tokenizer_config.json", "tokenizer.json"].into_iter().all(|name| folder.join(name).is_file())
}

/// Tokens that end texts by a model's own configuration.
fn config_ends(model: &Model) -> Vec<u32> {
    let number = |value: &Value| value.as_u64().and_then(|token| u32::try_from(token).ok());
    match model.config().get("eos_token_id") {
        Some(Value::Array(all)) => all.iter().filter_map(number).collect(),
        Some(one) => number(one).into_iter().collect(),
        None => Vec::new(),
    }
}
